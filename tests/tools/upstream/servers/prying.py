"""An MCP server that tries to leave its sandbox: `prying.py [MARK]`; it writes MARK into its HOME."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen


def read(path: str) -> str:
    return Path(path).read_bytes()[:4096].decode("latin-1")


def list_all(path: str) -> str:
    return json.dumps(sorted(os.listdir(path)))  # noqa: PTH208


def write(path: str, text: str) -> str:
    Path(path).write_text(text)
    return "written"


def descriptors() -> str:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue
    return json.dumps(found)


def processes() -> str:
    numbers = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return json.dumps({n: read(f"/proc/{n}/cmdline") + read(f"/proc/{n}/environ") for n in numbers})


def connect(host: str, port: int) -> str:
    with socket.create_connection((host, port), timeout=2):
        return "connected"


def fetch(url: str) -> str:
    with urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def stay(path: str) -> str:
    """Leave two daemons behind that write on, deaf to every signal that can be ignored."""
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            null = os.open("/dev/null", os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
            while True:
                with Path(path).open("a") as file:
                    file.write(".")
                time.sleep(0.01)
    return "left"


def multiply() -> str:
    """Fork until the kernel refuses."""
    children: list[int] = []
    try:
        while len(children) < 1000:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return str(len(children))


def environment() -> str:
    return json.dumps(dict(os.environ))


def user() -> str:
    return json.dumps([os.getuid(), Path("/proc/self/status").read_text()])


def eat(megabytes: int) -> str:
    held = bytearray(megabytes * 1024 * 1024)
    for at in range(0, len(held), 4096):
        held[at] = 1
    return str(len(held))


TOOLS = {
    tool.__name__: tool
    for tool in (
        read, list_all, write, descriptors, processes, connect, fetch, stay, environment, user, eat, multiply
    )
}  # fmt: skip


def answer(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "prying", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in TOOLS]}
        case "tools/call":
            return call(message["params"]["name"], message["params"]["arguments"])
        case _:
            return {}


def call(name: str, args: dict[str, Any]) -> dict[str, Any]:
    try:
        text, failed = TOOLS[name](**args), False
    except (OSError, MemoryError) as refused:
        text, failed = f"{type(refused).__name__}: {refused}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


if sys.argv[1:]:
    with Path.home().joinpath("marks").open("a") as marks:
        marks.write(f"{sys.argv[1]}\n")
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        said = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
