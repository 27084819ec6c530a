"""The ingress beside others: fan-out, time to run_started, idle connections, a stalled reader."""

import asyncio
import base64
import contextlib
import json
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench._ingress_servers import INSERT, ROW, bare_sqlite
from bench.measure import Result, at_most, run, table

CLIENTS = 200
DELTAS = 400
ROUNDS = 3
IDLE = 5_000
SESSIONS = 1_000
EACH = 20
INVOKES = 200
KINDS = ("toolgate", "picows", "websockets", "socketio")
MARK = b'"delta"'
HELLO: dict[str, Any] = {"type": "hello", "ts": 1, "user_id": "u", "api_key": ""}


def frame(payload: bytes) -> bytes:
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else b"\x81\xfe" + struct.pack("!H", size)
    return head + b"\0\0\0\0" + payload


class Server:
    """A server in a process of its own, told what to do line by line."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench._ingress_servers", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._hear()["port"])

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    async def tell(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return await asyncio.to_thread(self._hear)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def server(kind: str) -> Iterator[Server]:
    one = Server(kind)
    try:
        yield one
    finally:
        one.stop()


class Client(asyncio.Protocol):
    """Reads and counts; parses nothing that it need not."""

    def __init__(self, kind: str, hello: dict[str, Any]) -> None:
        self._kind = kind
        self._hello = hello
        self._tail = b""
        self.count = 0
        self.first = b""
        self.late: list[float] = []
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        path = "/socket.io/?EIO=4&transport=websocket" if self._kind == "socketio" else "/ws"
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self._open(data)
            return
        data = self._tail + data
        found = data.count(MARK)
        if found:
            self.count += found
            at = data.rfind(b'"text":"')
            stamp = data[at + 8 : at + 28]
            if at >= 0 and len(stamp) == 20:
                self.late.append(time.monotonic_ns() - int(stamp))
        self._tail = data[-len(MARK) + 1 :]

    def _open(self, data: bytes) -> None:
        self.first += data
        expected = {"toolgate": b"hello_ack", "socketio": b'40{"sid'}.get(self._kind, b" 101 ")
        if b" 101 " in data:
            if self._kind == "toolgate":
                self.transport.write(frame(json.dumps(self._hello).encode()))
            elif self._kind == "socketio":
                self.transport.write(frame(b"40"))
        if expected in self.first and (expected != b"hello_ack" or b"}" in self.first):
            self.opened.set_result(None)


async def connect(one: Server, count: int, **hello: Any) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for start in range(0, count, 100):
        batch = [
            loop.create_connection(
                lambda: Client(one.kind, {**HELLO, **hello}), "127.0.0.1", one.port
            )
            for _ in range(min(100, count - start))
        ]
        opened = [client for _, client in await asyncio.gather(*batch)]
        await asyncio.gather(*(client.opened for client in opened))
        clients += opened
    return clients


def session_of(client: Client) -> str:
    text = client.first[client.first.index(b'{"type":"hello_ack"') :]
    return str(json.loads(text[: text.index(b"}") + 1])["session_id"])


async def audience(one: Server, count: int) -> list[Client]:
    """So many devices of one session."""
    if one.kind != "toolgate":
        return await connect(one, count)
    (first,) = await connect(one, 1)
    return [first, *await connect(one, count - 1, session_id=session_of(first))]


async def heard(clients: list[Client], count: int) -> None:
    async with asyncio.timeout(120):
        while any(client.count < count for client in clients):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.002)


async def fan_out() -> list[Result]:
    """CPU of the server per message and reader."""
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(server(kind)) for kind in KINDS}
        clients = {kind: await audience(one, CLIENTS) for kind, one in servers.items()}
        for turn in range(ROUNDS + 1):
            for kind, one in servers.items():
                await one.tell("fanout", DELTAS)
                await heard(clients[kind], DELTAS * (turn + 1))
                cpu = (await one.tell("cpu"))["cpu"]
                if turn:
                    costs[kind].append(cpu / DELTAS / CLIENTS * 1e6)
    us = {kind: statistics.median(values) for kind, values in costs.items()}
    detail = ", ".join(f"{kind} {us[kind]:.1f}" for kind in KINDS) + " us"
    return [
        at_most("fan-out beside websockets", us["toolgate"] / us["websockets"], 1.0, detail=detail),
        at_most("fan-out beside python-socketio", us["toolgate"] / us["socketio"], 0.34),
        at_most("fan-out beside bare picows", us["toolgate"] / us["picows"], 1.2),
    ]


async def stalled_reader() -> list[Result]:
    """One of 200 stops reading; how late the others' deltas are, and whether it gets all in the end."""
    with server("toolgate") as one:
        clients = await audience(one, CLIENTS)
        others = clients[1:]

        async def p99() -> float:
            for client in others:
                client.late.clear()
            before = others[0].count
            await one.tell("fanout", DELTAS)
            await heard(others, before + DELTAS)
            late = sorted(value for client in others for value in client.late)
            return late[int(len(late) * 0.99)] / 1e6

        await p99()
        alone, stalled = [], []
        for _ in range(ROUNDS):
            alone.append(await p99())
            clients[0].transport.pause_reading()
            stalled.append(await p99())
            clients[0].transport.resume_reading()
        total = others[0].count
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await heard(clients[:1], total)
        complete = clients[0].count == total
    ratio = statistics.median(stalled) / statistics.median(alone)
    detail = f"p99 {statistics.median(alone):.1f} ms, with it {statistics.median(stalled):.1f} ms"
    return [
        at_most("one stalled reader among 200", ratio, 1.3, detail=detail),
        Result("it recovers", f"{clients[0].count} of {total} heard", "all", complete),
    ]


async def many() -> list[Result]:
    """Idle connections, and a thousand sessions that stream at once."""
    with server("toolgate") as one:
        before = (await one.tell("rss"))["rss"]
        clients = await connect(one, IDLE)
        each = ((await one.tell("rss"))["rss"] - before) / IDLE / 1024
        await one.tell("streams", SESSIONS, EACH)
        lag = (await one.tell("lag"))["p99"] * 1000
        streaming = [client for client in clients if client.count]
        async with asyncio.timeout(60):
            while sum(client.count for client in clients) < SESSIONS * EACH:
                await asyncio.sleep(0.01)
                streaming = [client for client in clients if client.count]
        lost = sum(EACH - client.count for client in streaming)
    return [
        Result("5,000 idle connections", f"{each:.1f} KB each", "<= 40 KB", each <= 40),
        Result("1,000 sessions streaming: lost", str(lost), "0", lost == 0),
        Result("loop lag meanwhile, p99", f"{lag:.1f} ms", "<= 50 ms", lag <= 50),
    ]


def time_to_run_started() -> list[Result]:
    """WebSocket in to run_started out, beside one FULL commit of bare SQLite on the same disk."""
    with tempfile.TemporaryDirectory() as directory, server("commits") as floor:
        home = Path(directory)
        program = Path(sys.executable).with_name("toolgate")
        ports = {f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")}
        settings = [f"--set={name}={value}" for name, value in ports.items()]
        process = subprocess.Popen(
            [
                program,
                "up",
                f"--home={home / 'home'}",
                *settings,
                "--set=LOG_LEVEL=error",
                "--set=API_KEY=none",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["urls"]["ingress_ws"]
        bare = bare_sqlite(home / "bare.db")

        def commit(_: int) -> float:
            before = time.perf_counter()
            bare.execute(INSERT, (ROW,))
            return time.perf_counter() - before

        try:
            port = int(url.removesuffix("/ws").rpartition(":")[2])
            with Invoker(port) as ours, Invoker(floor.port) as least:
                took = _in_turn(ours.invoke, least.invoke, commit)
        finally:
            bare.close()
            process.terminate()
            process.wait()
    whole, floored, alone = took
    ms = f"{whole * 1000:.2f} ms, bare commit {alone * 1000:.2f} ms"
    return [
        at_most("invoke to run_started, p50", whole / alone, 1.5, detail=ms),
        Result(
            "  floor: a server that only commits, in a thread",
            f"{floored / alone:.2f}x ({floored * 1000:.2f} ms)",
        ),
    ]


def _in_turn(*contenders: Callable[[int], float]) -> list[float]:
    """Medians, with a pause before each."""
    times: list[list[float]] = [[] for _ in contenders]
    for number in range(INVOKES):
        for contender, its_times in zip(contenders, times, strict=True):
            its_times.append(contender(number))
            time.sleep(0.005)
    return [statistics.median(its_times) for its_times in times]


class Invoker:
    """A client that is a plain socket, which costs as little as a client can."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Invoker":
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._until(b"\r\n\r\n")
        self._socket.sendall(frame(json.dumps(HELLO).encode()))
        self._until(b"hello_ack")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def invoke(self, number: int) -> float:
        message = {"role": "user", "content": "hi"}
        asked = {"ts": 1, "request_id": f"r{number}", "agent_id": "echo", "message": message}
        invoke = frame(json.dumps({"type": "agent_invoke", **asked}).encode())
        before = time.perf_counter()
        self._socket.sendall(invoke)
        data = self._until(b"run_started")
        took = time.perf_counter() - before
        self._until(b'"done"', data)
        return took

    def _until(self, mark: bytes, data: bytes = b"") -> bytes:
        while mark not in data:
            data += self._socket.recv(65_536)
        return data


def main() -> list[str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = [
        *run(fan_out()),
        *time_to_run_started(),
        *run(many()),
        *run(stalled_reader()),
    ]
    return table("Ingress", results)


if __name__ == "__main__":
    print("\n".join(main()))
