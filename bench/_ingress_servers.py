"""The servers that bench/ingress.py compares, each in a process of its own.

`python -m bench._ingress_servers KIND` prints a JSON line with its port, then obeys lines on stdin:
`fanout COUNT`, `streams SESSIONS EACH`, `cpu`, `rss`, `lag`. Each is answered with a JSON line.
"""

import asyncio
import json
import resource
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.measure import run
from toolgate.access.authentication import Authenticator
from toolgate.access.registry import Registry
from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.http import asgi
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.runs import deliveries, records
from toolgate.runs.originals import Originals
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions

Fanout = Callable[[int], Awaitable[None]]
INSERT = "INSERT INTO events (data) VALUES (?)"
ROW = b"x" * 600
PAUSE_S = 0.0005  # between deltas, as an agent makes them


def message(seq: int) -> bytes:
    """What every server sends: our delta, as long as ours is."""
    text = f"{time.monotonic_ns():020d} and some words"
    return (
        f'{{"type":"delta","ts":1700000000000,"seq":{seq},"event_id":"ev_{seq}",'
        f'"run_id":"run_00000000000000000000000000","text":"{text}"}}'
    ).encode()


class NoRuns:
    """An orchestrator with nothing to do."""

    async def open_runs(self, session_id: str = "") -> Sequence[tuple[str, str]]:
        return ()

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any, **__: Any) -> list[Any]:
            return []

        return nothing


class Lag:
    """How late the loop is, measured by a sleep."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self._late.append(time.perf_counter() - before - 0.005)

    def p99(self) -> float:
        late, self._late = sorted(self._late), []
        return late[int(len(late) * 0.99)] if late else 0.0


async def toolgate(home: Path) -> tuple[int, Fanout, Callable[[int, int], Awaitable[None]]]:
    clock, bus = SystemClock(), LocalBus()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    originals = Originals(journal, AesGcmSeal(bytes(32)))
    hub = Hub(bus, clock, originals, resume_window_ms=3_600_000)
    ingress = Ingress(
        options=Options(max_message_bytes=65_536, write_wait_ms=10_000),
        authenticator=Authenticator(Registry(journal, clock)),
        hub=hub,
        sessions=Sessions(journal, clock, RandomIds(clock)),
        journal=journal,
        orchestrator=NoRuns(),  # type: ignore[arg-type]
        clock=clock,
        ping_interval_ms=30_000,
        pong_wait_ms=600_000,
        cancel_when_gone=False,
        metrics=lambda: b"",
    )
    port = await ingress.start(asgi.bind("127.0.0.1", 0, setting="WS_PORT"))

    def sessions() -> list[str]:
        return [name.removeprefix("session/") for name in hub._channels]

    async def say(session_id: str, count: int, pause: float) -> None:
        for _ in range(count):
            text = f"{time.monotonic_ns():020d} and some words"
            told = deliveries.delta("run_00000000000000000000000000", text)
            await journal.commit(records.delivery_append(session_id, [told]), durable=False)
            await asyncio.sleep(pause)

    async def fanout(count: int) -> None:
        await say(sessions()[0], count, PAUSE_S)

    async def streams(count: int, each: int) -> None:
        await asyncio.gather(*(say(one, each, 0.05) for one in sessions()[:count]))

    return port, fanout, streams


async def bare_picows() -> tuple[int, Fanout]:
    from picows import WSListener, WSMsgType, ws_create_server  # noqa: PLC0415 - one kind's own

    connected: list[Any] = []

    class Client(WSListener):
        def on_ws_connected(self, transport: Any) -> None:
            connected.append(transport)

        def pause_writing(self) -> None:
            """It only ever sends to readers that keep up."""

        def resume_writing(self) -> None:
            """See above."""

    server = await ws_create_server(lambda _: Client(), "127.0.0.1", 0)

    async def fanout(count: int) -> None:
        for seq in range(count):
            data = message(seq)
            for transport in connected:
                transport.send(WSMsgType.TEXT, data)
            await asyncio.sleep(PAUSE_S)

    return server.sockets[0].getsockname()[1], fanout


async def only_commits(home: Path) -> tuple[int, Fanout]:
    """What any server must do between invoke and run_started: commit in a thread, then answer."""
    from picows import WSListener, WSMsgType, ws_create_server  # noqa: PLC0415 - one kind's own

    loop = asyncio.get_running_loop()
    asked: SimpleQueue[Any] = SimpleQueue()

    def write() -> None:
        bare = bare_sqlite(home / "bare.db")
        while True:
            transport = asked.get()
            bare.execute(INSERT, (ROW,))
            answer = b'{"type":"run_started"}{"type":"done"}'
            loop.call_soon_threadsafe(transport.send, WSMsgType.TEXT, answer)

    class Client(WSListener):
        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            if b"agent_invoke" in frame.get_payload_as_memoryview().tobytes():
                asked.put(transport)
            else:
                transport.send(WSMsgType.TEXT, b'{"type":"hello_ack"}')

    threading.Thread(target=write, daemon=True).start()
    server = await ws_create_server(lambda _: Client(), "127.0.0.1", 0)

    async def fanout(_: int) -> None:
        """It is only asked for commits."""

    return server.sockets[0].getsockname()[1], fanout


def bare_sqlite(path: Path) -> sqlite3.Connection:
    bare = sqlite3.connect(path, isolation_level=None)
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("PRAGMA synchronous=FULL")
    bare.execute("CREATE TABLE events (position INTEGER PRIMARY KEY, data BLOB)")
    return bare


async def with_websockets() -> tuple[int, Fanout]:
    from websockets.asyncio.server import broadcast, serve  # noqa: PLC0415 - one kind's own

    connected: set[Any] = set()

    async def accept(socket: Any) -> None:
        connected.add(socket)
        await socket.wait_closed()

    server = await serve(accept, "127.0.0.1", 0, compression=None, ping_interval=None)

    async def fanout(count: int) -> None:
        for seq in range(count):
            broadcast(connected, message(seq).decode())
            await asyncio.sleep(PAUSE_S)

    return next(iter(server.sockets)).getsockname()[1], fanout


async def with_socketio() -> tuple[int, Fanout]:
    import socketio  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - one kind's own
    import uvicorn  # noqa: PLC0415 - one kind's own

    server = socketio.AsyncServer(async_mode="asgi", ping_interval=300)
    app = socketio.ASGIApp(server)
    bound = asgi.bind("127.0.0.1", 0, setting="WS_PORT")
    config = uvicorn.Config(app, loop="none", log_level="error", lifespan="off")
    task = asyncio.create_task(uvicorn.Server(config).serve(sockets=[bound]))
    assert not task.done()

    async def fanout(count: int) -> None:
        for seq in range(count):
            await server.emit("delta", json.loads(message(seq)))
            await asyncio.sleep(PAUSE_S)

    return bound.getsockname()[1], fanout


async def serve(kind: str, home: Path) -> None:
    streams = None
    if kind == "toolgate":
        port, fanout, streams = await toolgate(home)
    else:
        kinds = {
            "picows": bare_picows,
            "commits": lambda: only_commits(home),
            "websockets": with_websockets,
            "socketio": with_socketio,
        }
        port, fanout = await kinds[kind]()
    lag = Lag()
    answer({"port": port})
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    cpu = time.process_time()
    while line := (await reader.readline()).split():
        match line:
            case [b"fanout", count]:
                cpu = time.process_time()
                await fanout(int(count))
                answer({})
            case [b"streams", count, each] if streams is not None:
                lag.p99()
                await streams(int(count), int(each))
                answer({})
            case [b"cpu"]:
                answer({"cpu": time.process_time() - cpu})
            case [b"lag"]:
                answer({"p99": lag.p99()})
            case _:
                answer({"rss": resident()})


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def answer(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as directory:
        run(serve(sys.argv[1], Path(directory)))
