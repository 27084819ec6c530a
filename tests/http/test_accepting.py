"""A server that is out of file descriptors: it waits, says so once a second, and goes on."""

import asyncio
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, logging, resource, sys
from picows import WSListener, ws_create_server
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from toolgate.http import accepting, asgi

async def main():
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    bound = asgi.bind("127.0.0.1", 0, setting="PORT", listen=True)
    if sys.argv[1] == "http":
        async def hello(_):
            return PlainTextResponse("hello")
        await asgi.Listener(Starlette(routes=[Route("/", hello)]), bound).start()
    else:
        await ws_create_server(
            lambda _: WSListener(), sock=bound, **accepting.fast()
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print(bound.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, flush=True)
    await asyncio.to_thread(sys.stdin.readline)

accepting.run(main())
"""
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FLOOD = 80
SECONDS = 3


@pytest.mark.parametrize(
    ("kind", "asked"), [("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ("websocket", UPGRADE)]
)
async def test_a_server_without_descriptors_waits_and_answers_again(
    kind: str, asked: bytes, tmp_path: Path
) -> None:
    errors = (tmp_path / "errors").open("w+b")
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, kind,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(await asyncio.wait_for(server.stdout.readline(), 60))
        flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(FLOOD)]
        await asyncio.sleep(SECONDS)  # nothing is waited for: the server has time to log too much
        server.stdin.write(b"\n")
        busy = float(await asyncio.wait_for(server.stdout.readline(), 60))
        lines = (tmp_path / "errors").read_text().splitlines()
        for _, writer in flood:
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked)
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 ")
        writer.close()
    finally:
        server.kill()
        await server.wait()
        errors.close()
    said = [line for line in lines if line.startswith("accept_failed")]
    assert lines == said, lines
    assert 1 <= len(said) <= SECONDS + 2
    assert "ulimit -n" in said[0]
    assert busy < SECONDS, "it does not spin"
