"""The program as a user runs it, and a hand-written client of the WebSocket contract."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self

import aiohttp
import websockets
from websockets.asyncio.client import ClientConnection

from tests.e2e.forked import Forked, fork

PROGRAM = Path(sys.executable).with_name("toolgate")
API_KEY = "k"
INTERNAL_TOKEN = "internal-token-of-the-tests"
INTERNAL = {"Authorization": f"Bearer {INTERNAL_TOKEN}"}
CREDENTIALS = {"API_KEY": API_KEY, "INTERNAL_TOKEN": INTERNAL_TOKEN}
ANY_PORT = {
    **CREDENTIALS,
    "WS_PORT": "0",
    "HTTP_PORT": "0",
    "ORCHESTRATOR_PORT": "0",
    "GATEWAY_PORT": "0",
    "RUNNER_PORT": "0",
}
PATIENCE = 20.0  # seconds; a bound, not an expectation


@dataclass
class Program:
    """`toolgate up`, or one role, with a home of its own and any free ports: forked, or as installed."""

    home: Path
    settings: dict[str, str] = field(default_factory=dict)
    installed: bool = False
    role: str = "up"
    more: tuple[str, ...] = ()  # arguments
    urls: dict[str, str] = field(default_factory=dict)
    process: Forked | asyncio.subprocess.Process | None = None
    log: Path = Path(os.devnull)

    async def start(self) -> Self:
        await self.launch()
        return await self.ready()

    async def launch(self) -> None:
        self.log = self.home.with_suffix(".log")
        given = environment({**ANY_PORT, "TOOLGATE_HOME": str(self.home), **self.settings})
        with self.log.open("ab") as log:
            if self.installed:
                self.process = await asyncio.create_subprocess_exec(
                    PROGRAM,
                    self.role,
                    *self.more,
                    env=given,
                    stdout=PIPE,
                    stderr=log,
                    cwd=self.home.parent,
                )
            else:
                self.process = await fork(
                    self.role,
                    *self.more,
                    env=given,
                    stdout=PIPE,
                    stderr=log,
                    cwd=self.home.parent,
                )

    async def ready(self) -> Self:
        assert self.process is not None
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 3 * PATIENCE)
        assert line, f"it did not start: {self.log.read_text()[-2000:]}"
        ready = json.loads(line)
        assert ready["ready"] is True
        self.urls = ready["urls"]
        return self

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), PATIENCE)


def environment(settings: dict[str, str]) -> dict[str, str]:
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "PYTHONPATH", "XDG_STATE_HOME")
        if name in os.environ
    }
    return {**kept, **CREDENTIALS, **settings}


@contextlib.asynccontextmanager
async def started(program: Program) -> AsyncIterator[Program]:
    await program.start()
    try:
        yield program
    finally:
        await program.kill()
        await hang_up()


def running(home: Path, **settings: str) -> contextlib.AbstractAsyncContextManager[Program]:
    return started(Program(home, settings))


async def bearer_of(program: Program, name: str = "client", **wanted: Any) -> dict[str, str]:
    """The header of a new named token; unless `wanted` says more, an agent's for MCP."""
    operator = (
        program.settings.get("OPERATOR_TOKEN") or (program.home / "operator.token").read_text()
    )
    body = {"name": name, "kind": "agent", "scope": {"tools": "write", "mcp": True}, **wanted}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {operator}"}) as http,
        http.post(f"{program.urls['gateway']}/tokens", json=body) as made,
    ):
        assert made.status == 200, await made.text()
        return {"Authorization": f"Bearer {(await made.json())['data']['token']}"}


async def hang_up() -> None:
    """Close the clients of this loop: a socket must not outlive its test."""
    here = asyncio.get_running_loop()
    for client in [one for one in _connected if one.socket.loop is here]:
        _connected.remove(client)
        client.socket.transport.abort()
        await client.socket.wait_closed()


@dataclass(eq=False)
class Client:
    """One device: its session, the seq of its last event, and the confirmations it has received."""

    socket: ClientConnection
    session_id: str
    ack: dict[str, Any]
    last_seq: int = 0
    user: str = ""
    recalled: int = 0  # up to this number only the events of some runs are received
    confirmed: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    async def connect(cls, url: str, *, user: str = "u1", **hello: Any) -> Self:
        socket = await websockets.connect(url, max_size=None, open_timeout=PATIENCE)
        await socket.send(
            json.dumps({"type": "hello", "ts": 1, "user_id": user, "api_key": API_KEY, **hello})
        )
        ack = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
        assert ack["type"] == "hello_ack", ack
        client = cls(socket, ack["session_id"], ack, last_seq=hello.get("last_seq", 0), user=user)
        if "session_id" in hello and "last_seq" not in hello:
            client.recalled = ack["seq"]
        _connected.append(client)
        return client

    async def say(self, kind: str, **members: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, "ts": 1, **members}))

    async def invoke(self, content: str, *, agent: str = "echo", request_id: str = "r1") -> None:
        message = {"role": "user", "content": content}
        await self.say("agent_invoke", request_id=request_id, agent_id=agent, message=message)

    async def hear(self) -> dict[str, Any]:
        """Receive the next message that confirms no command; events follow without a gap."""
        message = await self.receive()
        while _confirms(message):
            self.confirmed.append(message)
            message = await self.receive()
        if "seq" in message:
            if message["seq"] > self.recalled:
                before = max(self.last_seq, self.recalled)
                assert message.get("first_seq", message["seq"]) == before + 1, message
            self.last_seq = message["seq"]
        return message

    async def receive(self) -> dict[str, Any]:
        message = json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE))
        assert isinstance(message, dict)
        return message

    async def confirmation(self) -> dict[str, Any]:
        """The next confirmation; events before it are passed over."""
        while not self.confirmed:
            message = await self.receive()
            if _confirms(message):
                return message
            self.last_seq = message.get("seq", self.last_seq)
        return self.confirmed.pop(0)

    async def hear_until(self, *kinds: str) -> list[dict[str, Any]]:
        heard = [await self.hear()]
        while heard[-1]["type"] not in kinds:
            heard.append(await self.hear())
        return heard

    async def close(self) -> None:
        await self.socket.close()
        if self in _connected:
            _connected.remove(self)


def _confirms(message: dict[str, Any]) -> bool:
    """True for a `state` that answers a command of this connection; a snapshot's has no detail."""
    if message["type"] != "state" or "seq" in message:
        return False
    return bool(message.get("detail")) or message["state"] == "CANCELLED"


_connected: list[Client] = []
