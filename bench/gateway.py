"""The gateway's command path beside a bare Starlette route: CPU of the server's process per request.

Run it with `python -m bench.gateway`. Both servers are processes of their own on loopback, driven
by the same client over 64 connections, in turns; the figures are medians over the turns. What "the
commit" takes is measured too: the bare route makes the very commits that one command makes, which
are noted first, under names of its own.

The floor is a third bare route. It makes those commits and, in one function, with everything it
needs laid out before it, the calls of libraries that no command can do without: hashes, searches,
encodings, the policy, the seal. It decides, checks and remembers nothing.
"""

import asyncio
import contextlib
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from bench.measure import process_cpu
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.journal.journal import Append, Delete, Event, Operation, Put
from toolgate.journal.sqlite.journal import SqliteJournal

CONNECTIONS = 64
REQUESTS = 1500
TURNS = 5
OPERATOR = "bench-operator"
MARK = "the-command-that-was-noted"
BODY = {
    "payload": {"name": "echo", "args": {"text": "hello from a device"}},
    "security": {"level": "read"},
    "trace": {"traceId": "4bf92f3577b34da6a3ce929d0e0e4736"},
}

BARE = """
import asyncio, hashlib, hmac, itertools, pickle, sys
from pathlib import Path
import msgspec, uvloop
from starlette.applications import Starlette
from starlette.routing import Route
from toolgate.http import asgi
from toolgate.journal.local_bus import LocalBus
from toolgate.core.system_clock import SystemClock
from toolgate.core.random_ids import RandomIds
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.policy.file import default_policy_text, load_policy
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.evidence.signer import Commitments
from toolgate.contracts.gateway_v1 import decode_tool_command
from toolgate.policy.decide import decide
from toolgate.core.tools import Caller, Level, ToolRequest
from bench.gateway import documents_in, renamed

async def main(home):
    noted = pickle.loads((Path(home) / "commits").read_bytes())
    numbers = itertools.count()
    journal = await SqliteJournal.open(Path(home) / "journal.db", clock=SystemClock(), bus=LocalBus())
    async def bare(request):
        command = msgspec.json.decode(await request.body())
        return asgi.Json({"ok": True, "data": command["payload"]["args"]["text"]})
    async def committing(request):
        command = msgspec.json.decode(await request.body())
        number = str(next(numbers))
        for commit in noted:
            await journal.commit(*[renamed(one, number) for one in commit])
        return asgi.Json({"ok": True, "data": command["payload"]["args"]["text"]})
    written, parts = documents_in(noted)
    encode, encode_sorted = msgspec.json.Encoder().encode, msgspec.json.Encoder(order="sorted").encode
    decode, pack = msgspec.json.Decoder().decode, msgspec.msgpack.Encoder().encode
    new_id, seal, commitment = RandomIds(SystemClock()), AesGcmSeal(b"k" * 32), Commitments(b"k" * 32)
    is_clean = SecretPatterns(["a-secret-that-is-known"]).is_clean
    shell = TreeSitterShellParser()
    policy = load_policy(default_policy_text(), parse_shell=shell)
    caller = Caller(device="bench", user="bench", role="device", level=Level.WRITE)
    async def by_hand(request):
        raw = await request.body()
        token = hashlib.sha256(b"a token of thirty-two bytes, hashed").hexdigest()
        hmac.compare_digest(token, token)
        text = encode_sorted(decode(raw))
        hashed = hashlib.sha256(text).hexdigest()
        command = decode_tool_command(raw)
        name, args = new_id("cmd"), command.payload.args
        is_clean(hashed + name), is_clean(args["text"] + name), is_clean(args["text"])
        commitment(text), commitment(hashed.encode())
        call = ToolRequest(name, "echo", args, caller)
        decide(policy, call, level=Level.READ, parse_shell=shell)
        for part in parts:
            hashlib.sha256(encode_sorted(part)).hexdigest()
        for document in written:
            encode(document)
        answer = encode({"ok": True, "data": {"results": [args]}, "traceId": name})
        seal.close(pack((hashed, name, answer)))
        for commit in noted:
            await journal.commit(*[renamed(one, name) for one in commit])
        return asgi.Json({"ok": True, "data": args["text"]})
    app = Starlette(routes=[
        Route("/bare", bare, methods=["POST"]), Route("/commit", committing, methods=["POST"]),
        Route("/floor", by_hand, methods=["POST"]),
    ])
    bound = asgi.bind("127.0.0.1", 0, setting="-")
    await asgi.Listener(app, bound).start()
    print(f"http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
    await asyncio.Event().wait()

uvloop.run(main(sys.argv[1]))
"""


async def noted_commits(home: Path) -> list[list[Operation]]:
    """The commits that one command makes, with its own names in them marked."""
    found: list[list[Operation]] = []
    commit = SqliteJournal.commit

    async def noted(
        self: SqliteJournal, *operations: Operation, durable: bool = True
    ) -> list[Event]:
        found.append(list(operations))
        return await commit(self, *operations, durable=durable)

    ports = {f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")}
    named = {"TOOLGATE_HOME": str(home), "OPERATOR_TOKEN": OPERATOR, "LOG_LEVEL": "error"}
    running = await start_everything(table.load({**ports, **named}, environment={}))
    try:
        async with connected() as http:
            device = await pair(http, running.urls["gateway"])
            headers = {**device, "Idempotency-Key": MARK}
            setattr(SqliteJournal, "commit", noted)  # noqa: B010  a method of a class not ours
            url = running.urls["gateway"] + "/command/tool"
            async with http.post(url, json=BODY, headers=headers) as answer:
                assert answer.status == 200
            setattr(SqliteJournal, "commit", commit)  # noqa: B010
    finally:
        await running.stop()
    ids = {
        one.key.removesuffix(".0")
        for operations in found
        for one in operations
        if isinstance(one, Put) and one.collection == "executions"
    }
    (command_id,) = ids
    unnamed = [one for one in found if any(command_id in repr(each) for each in one)]
    return [[_marked(one, command_id) for one in operations] for operations in unnamed]


def _marked(operation: Operation, command_id: str) -> Operation:
    if isinstance(operation, Put | Delete):
        return msgspec.structs.replace(operation, key=operation.key.replace(command_id, MARK))
    if isinstance(operation, Append):
        events = [
            msgspec.structs.replace(new, subject=new.subject.replace(command_id, MARK))
            for new in operation.events
        ]
        # Kept from the streams of the real ones, so that the evidence is not published twice.
        return Append(f"bare/{operation.stream}", events)
    return operation


def renamed(operation: Operation, name: str) -> Operation:
    """The same, for another command."""
    if isinstance(operation, Put | Delete):
        return msgspec.structs.replace(operation, key=operation.key.replace(MARK, name))
    if isinstance(operation, Append):
        events = [
            msgspec.structs.replace(new, subject=new.subject.replace(MARK, name))
            for new in operation.events
        ]
        return Append(operation.stream, events)
    return operation


def documents_in(commits: list[list[Operation]]) -> tuple[list[object], list[object]]:
    """What these commits write as JSON, and the artifacts of evidence among it."""
    written: list[object] = []
    artifacts: list[object] = []
    for one in (one for commit in commits for one in commit):
        if isinstance(one, Put) and one.value.startswith(b"{"):
            written.append(json.loads(one.value))
        elif isinstance(one, Append):
            for new in one.events:
                document, *contents = new.data.split(b"\n")
                written.append(json.loads(document))
                artifacts += [json.loads(content) for content in contents]
    return written, artifacts


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    def cpu_s(self) -> float:
        return process_cpu(self.pid)


@contextlib.contextmanager
def running(command: list[str], url_of: Callable[[bytes], str]) -> Iterator[Server]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield Server(url_of(process.stdout.readline()), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def gateway(home: str) -> list[str]:
    settings = ["GATEWAY_RATE=1000000", f"OPERATOR_TOKEN={OPERATOR}", "LOG_LEVEL=error"]
    ports = [f"{name}_PORT=0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")]
    pairs = [part for pair in (*settings, *ports) for part in ("-s", pair)]
    return [sys.executable, "-m", "toolgate", "up", "--home", home, *pairs]


async def pair(http: aiohttp.ClientSession, url: str) -> dict[str, str]:
    await http.get(f"{url}/status", headers={"X-Device-Id": "bench"})
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    scope = {"tools": "write", "mcp": True}
    approved = await http.post(
        f"{url}/pairing/approve", json={"deviceId": "bench", "scope": scope}, headers=headers
    )
    token = (await approved.json())["data"]["deviceToken"]
    return {"X-Device-Id": "bench", "X-Device-Token": token}


Headers = Callable[[int], dict[str, str]]


async def drive(
    http: aiohttp.ClientSession,
    server: Server,
    path: str,
    headers: Headers,
    *,
    requests: int = REQUESTS,
    at_once: int = CONNECTIONS,
    body: dict[str, object] | None = None,
) -> float:
    """CPU of the server's process per request, in microseconds."""
    content = json.dumps(body or BODY).encode()
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            async with http.post(server.url + path, data=content, headers=headers(number)) as got:
                answer = await got.read()
                assert got.status == 200, answer

    before = server.cpu_s()
    await asyncio.gather(*(client() for _ in range(at_once)))
    return (server.cpu_s() - before) / requests * 1e6


async def latency(server: Server, headers: Headers, *, requests: int = 300) -> float:
    """The median time of one request after another over one connection, in microseconds."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(BODY).encode()
    times: list[float] = []
    for number in range(requests):
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers(number).items())
        head = f"POST /command/tool HTTP/1.1\r\nHost: {host}\r\n{lines}"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        began = time.perf_counter()
        writer.write(request)
        told = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert told.startswith(b"http/1.1 200"), told
        await reader.readexactly(int(told.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        times.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()
    return statistics.median(times) * 1e6


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield http


async def measure() -> list[str]:
    with (
        tempfile.TemporaryDirectory() as bare_home,
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as noting_home,
    ):
        commits = await noted_commits(Path(noting_home))
        (Path(bare_home) / "commits").write_bytes(pickle.dumps(commits))
        return await compare(bare_home, home, commits)


async def compare(bare_home: str, home: str, commits: list[list[Operation]]) -> list[str]:
    with (
        running(
            [sys.executable, "-c", BARE, bare_home], lambda line: line.decode().strip()
        ) as bare,
        running(gateway(home), lambda line: str(json.loads(line)["urls"]["gateway"])) as ours,
    ):
        async with connected() as http:
            device = await pair(http, ours.url)
            turn = 0

            def fresh(number: int) -> dict[str, str]:
                return {**device, "Idempotency-Key": f"{turn}-{number}"}

            def replayed(_: int) -> dict[str, str]:
                return {**device, "Idempotency-Key": "0-0"}

            cases: dict[str, tuple[Server, str, Headers]] = {
                "bare": (bare, "/bare", lambda _: {}),
                "commit": (bare, "/commit", lambda _: {}),
                "floor": (bare, "/floor", lambda _: {}),
                "command": (ours, "/command/tool", fresh),
                "replay": (ours, "/command/tool", replayed),
            }
            for server, path, headers in cases.values():  # warm
                await drive(http, server, path, headers, requests=200)
            found: dict[str, list[float]] = {name: [] for name in cases}
            alone: list[float] = []
            firsts: list[float] = []
            replays: list[float] = []
            for _ in range(TURNS):
                turn += 1
                for name, (server, path, headers) in cases.items():
                    found[name].append(await drive(http, server, path, headers))
                alone.append(
                    await drive(http, bare, "/commit", lambda _: {}, requests=200, at_once=1)
                )
                turn += 1_000
                firsts.append(await latency(ours, fresh))
                replays.append(await latency(ours, replayed))
                turn -= 1_000
    cpu = {name: statistics.median(turns) for name, turns in found.items()}
    first, replay = statistics.median(firsts), statistics.median(replays)
    commit = cpu["commit"] - cpu["bare"]
    allowed = 3 * cpu["bare"] + commit
    faster = first / replay
    operations = sum(len(one) for one in commits)
    return [
        f"CPU per request, {CONNECTIONS} connections, {REQUESTS} requests, median of {TURNS}",
        f"  bare Starlette route            {cpu['bare']:8.0f} us",
        f"  the same with a command's {len(commits)} commits ({operations} operations)"
        f" {cpu['commit']:8.0f} us",
        f"  /command/tool echo, all on      {cpu['command']:8.0f} us   "
        f"budget {allowed:.0f} us: {_verdict(cpu['command'] <= allowed)}",
        f"  its floor, by hand, with those commits {cpu['floor']:8.0f} us:"
        f" {allowed - cpu['floor']:.0f} us are left for all that a command is",
        f"  replayed answer                 {cpu['replay']:8.0f} us",
        f"  those commits, one request at a time {statistics.median(alone):8.0f} us",
        f"Time of one alone: first {first:.0f} us, replay {replay:.0f} us: "
        f"{faster:.1f} times as fast, budget 5.0: {_verdict(faster >= 5)}",
    ]


def _verdict(passed: bool) -> str:
    return "PASS" if passed else "FAIL"


def main() -> list[str]:
    return asyncio.run(measure())


if __name__ == "__main__":
    print("\n".join(main()))
