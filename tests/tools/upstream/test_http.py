"""MCP servers over HTTP that forget their sessions, flood, and redirect."""

import asyncio
import contextlib
import gzip
import itertools
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.support.upstreams import mcp_upstreams
from toolgate.core.enums import HealthStatus, Outcome
from toolgate.core.tools import ToolOutput, ToolRequest
from toolgate.tools.capabilities import Server
from toolgate.tools.upstream.outputs import MAX_TEXT
from toolgate.tools.upstream.stdio import MAX_MESSAGE


class ByHand:
    """A server with sessions, as the revision of 2025-11-25 has them."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.unknown: tuple[int, Any] = (404, None)  # how it refuses a session
        self.is_forgetful = False
        self.refuses = 0  # the status with which it answers everything
        self.calls = 0
        self.no_stream = 405  # how it refuses a stream of its own
        self.streams_refused = asyncio.Event()
        self._numbers = itertools.count(1)

    def restart(self) -> None:
        """It is there again, and knows nobody."""
        self.sessions.clear()

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if self.refuses:
            return web.Response(status=self.refuses)
        if message["method"] == "initialize":
            name = f"session-{next(self._numbers)}"
            if not self.is_forgetful:
                self.sessions.add(name)
            result: dict[str, Any] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "by hand", "version": "1"},
            }
            headers = {"Mcp-Session-Id": name}
            return web.json_response(self._answer(message, result), headers=headers)
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            status, error = self.unknown
            if error is None or "id" not in message:
                return web.Response(status=status)
            refused = {"jsonrpc": "2.0", "id": message["id"], "error": error}
            return web.json_response(refused, status=status)
        if "id" not in message:
            return web.Response(status=202)
        return await self.answer(request, message)

    async def get(self, _request: web.Request) -> web.Response:
        self.streams_refused.set()
        return web.Response(status=self.no_stream)

    async def answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        match message["method"]:
            case "tools/list":
                tools = [{"name": "say", "inputSchema": {"type": "object"}}]
                return web.json_response(self._answer(message, {"tools": tools}))
            case "tools/call":
                self.calls += 1
                said = {"content": [{"type": "text", "text": "said"}]}
                return web.json_response(self._answer(message, said))
            case _:
                error = {"code": -32601, "message": "no such method"}
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def _answer(self, message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Upstream:
    def __init__(self, url: str) -> None:
        self.health: list[HealthStatus] = []
        server = Server(url=url)
        self.sessions = mcp_upstreams(
            lambda name: server if name == "mcp.test" else None,
            report=lambda _name, health, _why: self.health.append(health),
        )

    @property
    def now(self) -> str:
        return str(self.health[-1])

    async def call(self, action: str = "say") -> ToolOutput:
        async with asyncio.timeout(30):
            return await self.sessions.run(ToolRequest("r", f"mcp.test.{action}", {}))


@contextlib.asynccontextmanager
async def upstream(by_hand: ByHand) -> AsyncIterator[Upstream]:
    app = web.Application()
    app.router.add_post("/mcp", by_hand.post)
    app.router.add_get("/mcp", by_hand.get)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one = Upstream(f"http://127.0.0.1:{runner.addresses[0][1]}/mcp")
    try:
        yield one
    finally:
        await one.sessions.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, None),
        (404, {"code": -32001, "message": "Session not found"}),
        (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
    ],
)
async def test_a_server_that_was_restarted_and_has_forgotten_the_session_is_met_anew(
    status: int, body: Any
) -> None:
    by_hand = ByHand()
    by_hand.unknown = (status, body)
    async with upstream(by_hand) as one:
        assert (await one.call()).stdout == "said"
        by_hand.restart()
        assert (await one.call()).stdout == "said"
        assert by_hand.calls == 2


async def test_a_server_that_knows_no_session_for_long_is_not_asked_without_end() -> None:
    by_hand = ByHand()
    async with upstream(by_hand) as one:
        assert (await one.call()).ok
        by_hand.is_forgetful = True
        by_hand.restart()
        refused = await one.call()
        assert (refused.ok, refused.outcome) == (False, Outcome.NOT_STARTED)
        by_hand.is_forgetful = False
        assert (await one.call()).ok


class Mistaken(ByHand):
    """Does what it is asked, and says that it could not."""

    async def answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] != "tools/call":
            return await super().answer(request, message)
        self.calls += 1
        await self.streams_refused.wait()
        error = {"code": -32000, "message": "the browser's session broke"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})


@pytest.mark.parametrize("status", [400, 404])
async def test_a_server_that_has_no_stream_of_its_own_is_asked_once(status: int) -> None:
    by_hand = Mistaken()
    by_hand.no_stream = status
    async with upstream(by_hand) as one:
        failed = await one.call()
    assert by_hand.calls == 1
    assert (failed.ok, failed.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)


class Slow(ByHand):
    """Works on its first call until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.works, self.let_go = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] == "tools/call" and not self.works.is_set():
            self.calls += 1
            self.works.set()
            await self.let_go.wait()
        return await super().answer(request, message)


async def test_a_call_under_way_in_a_session_that_is_then_forgotten_is_not_made_again() -> None:
    by_hand = Slow()
    async with upstream(by_hand) as one:
        working = asyncio.create_task(one.call())
        await by_hand.works.wait()
        by_hand.restart()
        assert (await one.call()).stdout == "said"
        cut = await working
        calls = by_hand.calls
        by_hand.let_go.set()
    assert calls == 2
    assert (cut.ok, cut.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)


class Garbled(ByHand):
    """Does what it is asked, and says what nobody can read."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__()
        self._garbled = answer

    async def answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] != "tools/call":
            return await super().answer(request, message)
        self.calls += 1
        return self._garbled


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (200, "application/json", "{half"),
        (200, "text/html", "<p>done</p>"),
        (202, "text/plain", ""),
    ],
)
async def test_an_answer_that_cannot_be_read_does_not_say_that_nothing_was_done(
    status: int, kind: str, text: str
) -> None:
    by_hand = Garbled(web.Response(status=status, content_type=kind, text=text))
    async with upstream(by_hand) as one:
        answered = await one.call()
    assert by_hand.calls == 1
    assert (answered.ok, answered.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)


class Flooding(ByHand):
    """Answers a call with a message that has no end, or one that is merely large."""

    sent = 0
    large = 0

    async def answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] != "tools/call":
            return await super().answer(request, message)
        if self.large:
            said = {"content": [{"type": "text", "text": "x" * self.large}]}
            event = f"data: {json.dumps(self._answer(message, said))}\n\n"
            return web.Response(content_type="text/event-stream", text=event)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"jsonrpc": "2.0", "result": "')
        with contextlib.suppress(ConnectionError):
            while self.sent < 8 * MAX_MESSAGE:
                await response.write(b"x" * 2**20)
                self.sent += 2**20
        return response


async def test_an_answer_without_end_is_cut_off_and_a_large_one_is_taken() -> None:
    by_hand = Flooding()
    async with upstream(by_hand) as one:
        flooded = await one.call()
        assert (flooded.ok, flooded.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)
        assert by_hand.sent < 4 * MAX_MESSAGE, "it was read to its end"
        by_hand.large = 2 * 2**20
        large = await one.call()
        assert (large.ok, large.truncated, len(large.stdout)) == (True, True, MAX_TEXT)


async def test_a_small_answer_that_unfolds_without_end_is_cut_off() -> None:
    answer = b'{"jsonrpc": "2.0", "result": "' + b"x" * (8 * MAX_MESSAGE) + b'"}'
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    by_hand = Garbled(web.Response(body=gzip.compress(answer), headers=headers))
    async with upstream(by_hand) as one:
        await one.sessions.tools("mcp.test")
        tracemalloc.start()
        try:
            flooded = await one.call()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (flooded.ok, flooded.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)
    assert most < 4 * MAX_MESSAGE, "it was unfolded to its end"


@pytest.mark.parametrize("status", [401, 502])
async def test_a_server_that_refuses_everything_is_not_called_healthy(status: int) -> None:
    by_hand = ByHand()
    async with upstream(by_hand) as one:
        assert (await one.call()).ok
        by_hand.refuses = status
        for _ in range(3):
            assert not (await one.call()).ok
        assert one.now == HealthStatus.OFFLINE
        by_hand.refuses = 0
        assert await one.sessions.check("mcp.test")
        assert one.now == HealthStatus.HEALTHY


async def test_a_server_that_wants_a_moment_keeps_its_session() -> None:
    by_hand = ByHand()
    async with upstream(by_hand) as one:
        assert (await one.call()).ok
        by_hand.refuses = 429
        assert not (await one.call()).ok
        by_hand.refuses = 0
        assert (await one.call()).ok
        assert len(by_hand.sessions) == 1
