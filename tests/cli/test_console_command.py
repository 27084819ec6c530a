"""`toolgate console` where what answers at its port is no console, or says nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolgate.cli import console
from toolgate.cli.main import main


@contextlib.asynccontextmanager
async def answering(content: bytes | None) -> AsyncIterator[int]:
    """A stranger's server that answers this to whatever it is asked; None: nothing, ever."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if content is None:
            await reader.read()  # until it is left
        else:
            head = f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + head.encode() + content)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def link_from(port: int, home: Path) -> Result:
    (home / "operator.token").write_text("a-token")
    asked = ["console", f"--home={home}", f"--set=GATEWAY_PORT={port}"]
    return await asyncio.to_thread(CliRunner().invoke, main, asked)


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"hello"])
async def test_a_stranger_at_its_port_is_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    async with answering(content) as port:
        ended = await link_from(port, tmp_path)
    assert ended.exit_code == 1
    assert ended.output.startswith("toolgate: ")
    assert "is not a console" in ended.output


async def test_a_server_that_says_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "TIMEOUT_S", 0.3)
    async with answering(None) as port:
        ended = await asyncio.wait_for(link_from(port, tmp_path), 20)
    assert ended.exit_code == 1
    assert "does not answer" in ended.output
