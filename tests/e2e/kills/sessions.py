"""Clients of the WebSocket ingress: each keeps its session over the kills and misses no event."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.e2e.harness import INTERNAL
from tests.e2e.harness import Client as Connection
from tests.e2e.kills.commands import Client, script
from tests.e2e.kills.installation import Installation
from tests.e2e.kills.operations import Operation, claim_of

GONE = (ConnectionClosed, InvalidHandshake, OSError, EOFError)


@dataclass
class SessionClient(Client):
    """One device of one session: it asks an agent, approves, and runs the tool it offers."""

    agent: str = "script"
    content: Callable[[str], str] = str
    offers: tuple[str, ...] = ()
    session_id: str = ""
    last_seq: int = 0
    heard: dict[int, tuple[str, str]] = field(default_factory=dict)  # by seq: type and event_id
    runs: dict[str, str] = field(default_factory=dict)  # run_id: request_id
    text: dict[str, str] = field(default_factory=dict)  # run_id: what its agent said
    approvals: dict[str, str] = field(default_factory=dict)  # run_id: approval_id
    ran: dict[str, dict[str, Any]] = field(default_factory=dict)  # run_id: the tool_result

    async def live(self, at: Installation) -> None:
        async with self._connected(at):
            await super().live(at)

    async def settle(self, at: Installation) -> None:
        async with self._connected(at):
            await super().settle(at)
        await self._replay(at)

    @contextlib.asynccontextmanager
    async def _connected(self, at: Installation) -> Any:
        self.connection = await self._connect(at, self.last_seq)
        self.session_id = self.connection.session_id
        try:
            yield
        finally:
            with contextlib.suppress(*GONE):
                await self.connection.close()

    async def _connect(self, at: Installation, last_seq: int) -> Connection:
        hello: dict[str, Any] = {"client_meta": {"tools": list(self.offers)}}
        if self.session_id:
            hello |= {"session_id": self.session_id, "last_seq": last_seq}
        url = at.program.urls["ingress_ws"]
        connection = await Connection.connect(url, user=self.name, **hello)
        if self.session_id:
            assert connection.ack["resumed"] is True, "a replay is due, not a snapshot"
        return connection

    async def send(self, at: Installation, operation: Operation) -> None:
        """Ask, or ask again; then follow the run to its end."""
        run_id = next((run for run, asked in self.runs.items() if asked == operation.id), "")
        if run_id:
            await self._answer_again(run_id)
        else:
            content = self.content(operation.id)
            await self.connection.invoke(content, agent=self.agent, request_id=operation.id)
        while not operation.is_acknowledged:
            message = await self.connection.hear()
            self.last_seq = self.connection.last_seq
            if "seq" in message:
                self.heard[message["seq"]] = (message["type"], message["event_id"])
                await self._take(message, operation)

    async def _answer_again(self, run_id: str) -> None:
        """Repeat what the program may not have received; a repeat is answered with an error."""
        if approval_id := self.approvals.get(run_id):
            await self._approve(run_id, approval_id)
        if run_id in self.ran:
            await self.connection.say("tool_result", **self.ran[run_id])

    async def _approve(self, run_id: str, approval_id: str) -> None:
        ids = {"run_id": run_id, "approval_id": approval_id}
        await self.connection.say("approval_decision", decision="approve", **ids)

    async def _take(self, message: dict[str, Any], operation: Operation) -> None:
        run_id = message["run_id"]
        match message["type"]:
            case "run_started":
                assert run_id not in self.runs
                self.runs[run_id] = message["request_id"]
                self.text[run_id] = ""
                assert list(self.runs.values()).count(operation.id) == 1, "a second run"
            case "delta":
                self.text[run_id] += message["text"]
            case "approval_required":
                assert run_id not in self.approvals, "asked twice"
                self.approvals[run_id] = operation.approval_id = message["approval_id"]
                await self._approve(run_id, message["approval_id"])
            case "tool_request":
                assert run_id not in self.ran, "requested twice"
                ids = {"run_id": run_id, "tool_call_id": message["tool_call_id"]}
                self.ran[run_id] = {**ids, "ok": True, "result": f"counted {operation.id}"}
                await self.connection.say("tool_result", **self.ran[run_id])
            case "done" | "error":
                self._end(message, operation)
            case other:
                assert other == "state", message

    def _end(self, message: dict[str, Any], operation: Operation) -> None:
        """The text is the whole of what the agent said, over all connections."""
        text = self.text[message["run_id"]]
        if self.agent == "echo":
            assert text == self.content(operation.id), operation
        ok = message["type"] == "done" and (self.agent == "echo" or "counted" in text)
        operation.acknowledge(
            {"run_id": message["run_id"], "text": text}, [claim_of(ok=ok, outcome=None)]
        )

    async def _replay(self, at: Installation) -> None:
        """Every event of the phase comes again, with its number and its id; deltas may be merged."""
        if not self.heard:
            return
        connection = await self._connect(at, min(self.heard) - 1)
        again: dict[int, tuple[str, str]] = {}
        while connection.last_seq < max(self.heard):
            message = await connection.hear()
            again[message["seq"]] = (message["type"], message["event_id"])
        await connection.close()
        assert again.items() <= self.heard.items(), self.name
        missed = (self.heard[seq] for seq in self.heard.keys() - again.keys())
        assert all(kind == "delta" for kind, _ in missed), self.name
        self.heard = {}

    async def check_again(self, at: Installation, operation: Operation) -> None:
        """The run is stored as it was told."""
        run_id = operation.answer["run_id"]
        url = f"{at.program.urls['orchestrator']}/internal/runs/{run_id}"
        run = (await at.ask("GET", url, headers=INTERNAL)).told
        statuses = [call["status"] for call in run["tool_calls"]]
        if self.agent != "echo":
            assert len(statuses) == 1, run
            assert (statuses == ["SUCCEEDED"]) == operation.succeeded, f"{operation}, {run}"


def session_clients() -> list[Client]:
    return [
        SessionClient("ws-echo", agent="echo", content=lambda id_: f"{id_} one two three " * 2),
        SessionClient("ws-tool", content=lambda id_: script("mcp.till.add", id_)),
        SessionClient("ws-approval", content=lambda id_: script("mcp.till.pay", id_)),
        SessionClient(
            "ws-client-tool",
            content=lambda id_: f"[[tool:desk.open {json.dumps({'id': id_})}]]",
            offers=("desk.open",),
        ),
    ]
