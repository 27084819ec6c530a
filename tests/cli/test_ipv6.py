"""Commands find a Toolgate by its settings wherever it listens."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from tests.e2e.forked import fork
from tests.e2e.harness import environment, running
from toolgate.cli.main import main

PATIENCE = 30


@pytest.mark.parametrize(("host", "more"), [("::1", {}), ("::", {"API_KEY": "the-key-of-clients"})])
async def test_commands_find_a_toolgate_that_listens_on_ipv6(
    tmp_path: Path, host: str, more: dict[str, str]
) -> None:
    async with running(tmp_path / "home", HOST=host, **more) as program:
        ports = {
            "GATEWAY_PORT": str(urlsplit(program.urls["gateway"]).port),
            "WS_PORT": str(urlsplit(program.urls["ingress_ws"]).port),
        }
        kept = tmp_path / "kept.txt"
        kept.write_text("a file to keep")
        given = {"HOST": host, "TOOLGATE_HOME": str(program.home), **ports, **more}

        def ask(*words: str) -> str:
            ended = CliRunner(env=given).invoke(main, words)
            assert ended.exit_code == 0, (words, ended.output, ended.exception)
            return ended.stdout

        def all_of_them() -> None:
            ask("devices")
            ask("task", "list")
            ask("artifact", "put", str(kept))
            assert "//[::1]:" in ask("console")

        await asyncio.to_thread(all_of_them)
        chat = await fork(
            "chat",
            "hello there",
            env=environment(given),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, said = await asyncio.wait_for(chat.communicate(), PATIENCE)
        assert (chat.returncode, b"hello there" in told) == (0, True), said
