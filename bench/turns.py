"""An old and a new tree in turns: how long three requests take in each.

Run it with `python -m bench.turns OLD_TREE [NEW_TREE]`; the new tree is this one if it is not named.
A tree is a checkout with a `.venv` in which it is installed. Each tree's program is a process of its
own, on a home of its own, driven over HTTP and WebSocket by the same client, one request at a time.
Every round measures each request in both trees, one right after the other; the tree that goes first
changes with each round. This module knows the wire only: it imports nothing of Toolgate.
"""

import argparse
import base64
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from bench.measure import process_cpu

ROUNDS: Final = 100
REQUESTS: Final = 10  # of each kind, in a round: few, so that both trees meet the same machine
OPERATOR: Final = "bench-operator-token"
EXECUTOR: Final = "bench-executor-token"
DEVICE: Final = "bench"
ECHO: Final = {"text": "hello from a device"}
API_KEY = "key-of-the-bench"
SETTINGS: Final = {
    "API_KEY": API_KEY,
    **{f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")},
    "GATEWAY_RATE": "1000000",
    "OPERATOR_TOKEN": OPERATOR,
    "EXECUTOR_TOKEN": EXECUTOR,
    "LOG_LEVEL": "error",
}
READY_S: Final = 60.0


class Connection:
    """A plain socket, which costs as little as a client can."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self.host = at.netloc
        self._socket = socket.create_connection((at.hostname or "", at.port or 80), timeout=READY_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def until(self, mark: bytes, data: bytes = b"") -> bytes:
        """Read until this has come."""
        while mark not in data:
            data += self._more()
        return data

    def answer(self) -> tuple[int, bytes]:
        """The status and the body of an HTTP answer."""
        head, _, body = self.until(b"\r\n\r\n").partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += self._more()
        return int(head.split(b" ", 2)[1]), body

    def _more(self) -> bytes:
        if not (data := self._socket.recv(65_536)):
            raise ConnectionError("the server hung up")
        return data

    def request(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{lines}"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    def ask(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Any:
        self.send(self.request(method, path, headers, body))
        status, told = self.answer()
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {told[:300]!r}")
        return json.loads(told)


@dataclass(slots=True)
class Tree:
    """The program of one tree while it runs."""

    name: str
    urls: dict[str, str]
    pid: int
    device: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    def pair(self) -> None:
        named = {"X-Device-Id": DEVICE}
        approve = {"deviceId": DEVICE, "scope": {"tools": "write"}}
        with Connection(self.urls["gateway"]) as http:
            http.send(http.request("GET", "/status", named))
            http.answer()  # that it is to be paired
            operator = {"Authorization": f"Bearer {OPERATOR}"}
            told = http.ask("POST", "/pairing/approve", operator, approve)
        self.device = {**named, "X-Device-Token": told["data"]["deviceToken"]}

    def fresh(self) -> str:
        self.asked += 1
        return f"bench-{self.asked}"

    def command_tool(self, count: int) -> list[float]:
        body = {"payload": {"name": "echo", "args": ECHO}, "security": {"level": "read"}}
        return self._http(
            "/command/tool",
            [({**self.device, "Idempotency-Key": self.fresh()}, body) for _ in range(count)],
        )

    def tool_run(self, count: int) -> list[float]:
        headers = {"Authorization": f"Bearer {EXECUTOR}"}
        call = {"tool_id": "echo", "args": ECHO}
        return self._http(
            "/tool/run", [(headers, {**call, "request_id": self.fresh()}) for _ in range(count)]
        )

    def _http(self, path: str, requests: Sequence[tuple[dict[str, str], Any]]) -> list[float]:
        times: list[float] = []
        with Connection(self.urls["gateway"]) as http:
            for headers, body in requests:
                raw = http.request("POST", path, headers, body)
                before = time.perf_counter()
                http.send(raw)
                status, told = http.answer()
                times.append(time.perf_counter() - before)
                if status != 200:
                    raise RuntimeError(f"POST {path}: {status} {told[:300]!r}")
        return times

    def run_started(self, count: int) -> list[float]:
        """From `agent_invoke` to `run_started`; the run's end is waited for, but not measured."""
        times: list[float] = []
        message = {"role": "user", "content": "hi"}
        invoke = {"type": "agent_invoke", "ts": 1, "agent_id": "echo", "message": message}
        with Connection(self.urls["ingress_ws"]) as client:
            key = base64.b64encode(os.urandom(16)).decode()
            client.send(
                f"GET /ws HTTP/1.1\r\nHost: {client.host}\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            client.until(b"\r\n\r\n")
            client.send(frame({"type": "hello", "ts": 1, "user_id": "u", "api_key": API_KEY}))
            client.until(b'"hello_ack"')
            for _ in range(count):
                raw = frame({**invoke, "request_id": self.fresh()})
                before = time.perf_counter()
                client.send(raw)
                heard = client.until(b'"run_started"')
                times.append(time.perf_counter() - before)
                client.until(b'"done"', heard)
        return times


def frame(message: dict[str, Any]) -> bytes:
    """A WebSocket text frame of a client, masked with zeros."""
    payload = json.dumps(message).encode()
    size = len(payload)
    head = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x81" + head + b"\0\0\0\0" + payload


@contextlib.contextmanager
def running(name: str, path: Path) -> Iterator[Tree]:
    """The installed program of a tree, on a home of its own and any free ports."""
    python = path / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{path} has no .venv/bin/python; install the tree there first")
    where = "import toolgate; print(toolgate.__file__)"
    found = subprocess.run([python, "-P", "-c", where], stdout=subprocess.PIPE, text=True, cwd="/")
    if not Path(found.stdout.strip()).is_relative_to(path):
        raise SystemExit(f"{python} imports {found.stdout.strip()!r}, which is not of that tree")
    script = python.with_name("toolgate")
    program = [script] if script.exists() else [python, "-m", "toolgate"]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [*program, "up"],
            env={**kept, **SETTINGS, "TOOLGATE_HOME": f"{home}/home", "STATE_DIR": f"{home}/s"},
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"`toolgate up` of {path} did not start: run it there to see why")
            tree = Tree(name, json.loads(line)["urls"], process.pid)
            tree.pair()
            yield tree
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


Measure = Callable[[Tree, int], list[float]]
KINDS: Final[dict[str, Measure]] = {
    "POST /command/tool": Tree.command_tool,
    "POST /tool/run": Tree.tool_run,
    "agent_invoke to run_started": Tree.run_started,
}


@dataclass(slots=True)
class Series:
    """What one request took in one tree, by round, in seconds."""

    wall: list[list[float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of the server, per request

    def note(self, tree: Tree, measure: Measure, count: int) -> None:
        before = process_cpu(tree.pid)
        self.wall.append(measure(tree, count))
        self.cpu.append((process_cpu(tree.pid) - before) / count)


def compare(old: Tree, new: Tree, *, rounds: int, requests: int) -> list[str]:
    found = {(kind, tree.name): Series() for kind in KINDS for tree in (old, new)}
    for turn in range(-1, rounds):  # the first warms up
        order = (old, new) if turn % 2 == 0 else (new, old)
        for kind, measure in KINDS.items():
            for tree in order:
                series = Series() if turn < 0 else found[kind, tree.name]
                series.note(tree, measure, requests)
    lines = [
        f"{rounds} rounds of {requests} requests, in ms; new/old is the median over the rounds"
    ]
    row = "{:<29} {:>8} {:>8} {:>8} {:>8} {:>8}   {}".format
    lines.append(row("", "old p50", "old p95", "new p50", "new p95", "new/old", "middle half"))
    for kind in KINDS:
        lines += [
            row(*cells) for cells in _rows(kind, found[kind, old.name], found[kind, new.name])
        ]
    return lines


def _rows(kind: str, old: Series, new: Series) -> Iterator[Sequence[str]]:
    wall = [[one for times in series.wall for one in times] for series in (old, new)]
    medians = [[statistics.median(times) for times in series.wall] for series in (old, new)]
    yield kind, *_figures(wall[0]), *_figures(wall[1]), *_ratio(medians[0], medians[1])
    yield "  CPU of the server", *_figures(old.cpu), *_figures(new.cpu), *_ratio(old.cpu, new.cpu)


def _figures(times: Sequence[float]) -> Sequence[str]:
    return [
        f"{1000 * statistics.median(times):.2f}",
        f"{1000 * statistics.quantiles(times, n=20, method='inclusive')[-1]:.2f}",
    ]


def _ratio(old: Sequence[float], new: Sequence[float]) -> Sequence[str]:
    """The median of new/old over the rounds, and between what half of the rounds are."""
    ratios = [one / other for one, other in zip(new, old, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return [f"{middle:.3f}", f"{low:.2f} to {high:.2f}"]


def in_turns(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout with a .venv")
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each kind, in a round")
    given = parser.parse_args(words)
    if given.rounds < 2 or given.requests < 1:
        parser.error("--rounds must be at least 2 and --requests at least 1")
    with running("old", given.old.resolve()) as old, running("new", given.new.resolve()) as new:
        lines = compare(old, new, rounds=given.rounds, requests=given.requests)
    print(f"old: {given.old}\nnew: {given.new}")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(in_turns(sys.argv[1:]))
