"""The doors alone, called as ASGI calls them: whose word ends a session."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tasks.runtimes import Gate, SlowJournal, a_toolset, instant, until
from toolgate.core.enums import TaskStatus, TrustLevel
from toolgate.http.asgi import Message
from toolgate.surfaces.mcp.transports import McpDoors

HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


async def ask(
    doors: McpDoors,
    method: str,
    *,
    user: str,
    session: str = "",
    body: bytes = b"",
    path: str = "/mcp",
    query: bytes = b"",
    sent: list[Message] | None = None,
) -> tuple[int, dict[str, str]]:
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **({"mcp-session-id": session} if session else {}),
    }
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "user": SimpleNamespace(display_name=user),
    }
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent = [] if sent is None else sent

    async def receive() -> Message:
        if given:
            return given.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(30):
        await doors(scope, receive, send)
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], named


async def test_only_the_client_itself_gives_up_what_is_kept_for_it(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant(), grace_s=0.0) as toolset:
        doors = McpDoors(toolset)
        try:
            status, headers = await ask(doors, "POST", user="ann", body=json.dumps(HELLO).encode())
            assert status == 200
            session = headers["mcp-session-id"]
            sessions = toolset.runtime.sessions
            await sessions.open("sess_1", trust=TrustLevel.REMOTE, client=f"http:{session}")
            sessions.keep("sess_1")

            status, _ = await ask(doors, "DELETE", user="bob", session=session)
            assert status == 404
            leaving = list(sessions._leaving.values())
            await asyncio.gather(*leaving)
            assert sessions.count == 1

            status, _ = await ask(doors, "DELETE", user="ann", session=session)
            assert status == 200
            await asyncio.gather(*sessions._leaving.values())
            assert sessions.count == 0
        finally:
            await doors.close()


@pytest.mark.parametrize("comes_again", [True, False])
async def test_a_first_caller_that_goes_away_leaves_doors_that_open_and_close(
    tmp_path: Path, comes_again: bool
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        doors = McpDoors(toolset)
        first = asyncio.ensure_future(ask(doors, "POST", user="ann"))
        while doors._life is None:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        if comes_again:
            life = doors._life
            status, _ = await ask(doors, "POST", user="ann", body=json.dumps(HELLO).encode())
            assert status == 200
            assert doors._life is life
        await doors.close()


async def test_doors_that_cannot_be_opened_say_so_to_each_who_asks_and_still_close(
    tmp_path: Path,
) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError

    async with a_toolset(tmp_path, instant()) as toolset:
        doors = McpDoors(toolset, extend=fails)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(ask(doors, "POST", user="ann"), 20)
        await doors.close()


class Listener:
    """A client of the doors over server-sent events."""

    def __init__(self, doors: McpDoors) -> None:
        self._doors = doors
        self._query = b""
        self.sent: list[Message] = []
        self.stream = asyncio.ensure_future(
            ask(doors, "GET", user="ann", path="/mcp/sse", sent=self.sent)
        )

    async def shake_hands(self) -> None:
        await until(lambda: len(self.sent) > 1)
        self._query = self.sent[1]["body"].partition(b"?")[2].strip()
        await self.post("initialize", HELLO["params"], id=1)
        await until(lambda: len(self.sent) > 2)
        await self.post("notifications/initialized", {})

    async def post(self, method: str, params: dict[str, Any], **more: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more})
        where: dict[str, Any] = {"path": "/mcp/message", "query": self._query}
        status, _ = await ask(self._doors, "POST", user="ann", body=body.encode(), **where)
        assert status == 202

    async def call_gated(self, request_id: str) -> None:
        called = {"templateId": "gated", "inputs": {"name": "a"}, "options": {"mode": "sync"}}
        params = {"name": "run_task_template", "arguments": called}
        await self.post("tools/call", params, id=request_id)


async def test_a_call_that_its_client_cancelled_holds_no_stop_of_its_stream_up(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template) as toolset:
        doors = McpDoors(toolset)
        client = Listener(doors)
        await client.shake_hands()
        await client.call_gated("two")
        await until(lambda: gate.started)
        doors.end_streams()
        await asyncio.sleep(0)
        assert not client.stream.done()
        await client.post("notifications/cancelled", {"requestId": "two"})
        async with asyncio.timeout(10):
            await client.stream
        await doors.close()


async def test_a_call_that_is_cancelled_while_its_run_is_written_down_cancels_the_run(
    tmp_path: Path,
) -> None:
    gate, journal = Gate(), SlowJournal()
    journal.slow = "task_queued"
    async with a_toolset(tmp_path, gate.template, journal=journal) as toolset:
        doors = McpDoors(toolset)
        client = Listener(doors)
        await client.shake_hands()
        await client.call_gated("two")
        await journal.written.wait()
        await client.post("notifications/cancelled", {"requestId": "two"})
        await client.post("ping", {}, id="three")  # what came before it was taken
        await until(lambda: any(b"three" in each.get("body", b"") for each in client.sent))
        journal.told.set()
        await until(lambda: toolset.runtime.listed(status=TaskStatus.CANCELED), within_s=10)
        doors.end_streams()
        await client.stream
        await doors.close()
