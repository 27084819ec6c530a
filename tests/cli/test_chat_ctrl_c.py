"""What `toolgate chat` reads at its prompt: Ctrl-C, and bytes that are no text."""

import asyncio
import os
import pty
import signal
from pathlib import Path

from tests.e2e.harness import PROGRAM, environment, running

PATIENCE = 20


async def test_ctrl_c_at_the_prompt_ends_the_chat_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program:
        ours, theirs = pty.openpty()
        try:
            chat = await asyncio.create_subprocess_exec(
                PROGRAM,
                "chat",
                f"--url={program.urls['ingress_ws']}",
                env=environment({}),
                stdin=theirs,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert chat.stdout is not None
            assert chat.stderr is not None
            assert await asyncio.wait_for(chat.stdout.readexactly(2), PATIENCE) == b"> "
            chat.send_signal(signal.SIGINT)
            try:
                assert await asyncio.wait_for(chat.wait(), PATIENCE) == 130
            finally:
                if chat.returncode is None:
                    chat.kill()
            assert b"Traceback" not in await chat.stderr.read()
        finally:
            os.close(ours)
            os.close(theirs)


async def test_bytes_that_are_no_text_are_told_in_one_line(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program:
        chat = await asyncio.create_subprocess_exec(
            PROGRAM,
            "chat",
            f"--url={program.urls['ingress_ws']}",
            env=environment({"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(chat.communicate(b"caf\xe9\n"), PATIENCE)
        assert chat.returncode == 1
        assert b"stdin cannot be read" in said
        assert b"Traceback" not in said
