"""The built-in tools that run commands and touch files, in a real sandbox; each once in a container too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import ISOLATING, sandbox_of
from tests.support.web import FakeWeb
from toolgate.core.enums import Outcome
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.journal.local_bus import LocalBus
from toolgate.sandbox.sessions import Sessions
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engines.builtin.engine import BuiltInEngine

SECRET = "known-secret"
BOUND = 15.0
IN_BOTH = pytest.mark.parametrize("tools", ISOLATING, indirect=True)


class Tools:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.pieces: list[str] = []
        self._engine = BuiltInEngine(
            journal=MemoryJournal(clock=FakeClock(), bus=LocalBus()),
            web=FakeWeb({}),
            session=sessions.open_for,
            isolation=sessions.isolation,
            permits=lambda _request, _url: True,
            version="1",
            holds_secret=lambda text: SECRET in text,
        )

    async def run(self, tool: str, session: str = "s_1", **args: Any) -> ToolOutput:
        request = ToolRequest("r", tool, args, Caller(session=session))
        return await self._engine.run(request, update=self.pieces.append)


@pytest.fixture
async def tools(request: pytest.FixtureRequest) -> AsyncIterator[Tools]:
    async with sandbox_of(getattr(request, "param", "bwrap"), request) as sandbox:
        sessions = Sessions(sandbox, clock=SystemClock())
        yield Tools(sessions)
        await sessions.close()


@pytest.mark.requirement("003/tools/shell")
@IN_BOTH
async def test_shell_gives_both_streams_the_exit_code_and_what_came_meanwhile(
    tools: Tools,
) -> None:
    done = await tools.run("shell", command="printf é; echo why >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "é", "why\n")
    assert (done.outcome, done.isolation) == (Outcome.EXECUTED, tools.sessions.isolation)
    assert "".join(tools.pieces).replace("why\n", "") == "é"


async def test_a_session_keeps_its_files_and_its_place_and_another_has_its_own(
    tools: Tools,
) -> None:
    await tools.run("shell", command="mkdir d; cd d; echo one > f; export X=1")
    assert (await tools.run("shell", command="cat f; echo $X")).stdout == "one\n1\n"
    assert (await tools.run("file.read", path="d/f")).stdout == "one\n"
    assert (await tools.run("shell", session="s_2", command="ls; echo $X")).stdout == "\n"


async def test_a_command_past_its_time_is_killed_and_says_so(tools: Tools) -> None:
    done = await tools.run("shell", command="echo begun; sleep 60", timeout_ms=300)
    assert (done.ok, done.stdout) == (False, "begun\n")
    assert "[killed: timed out]" in done.stderr
    assert (await tools.run("shell", command="echo on")).stdout == "on\n"


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("shell", {"command": "echo on"}),
        ("exec", {"command": "echo", "params": ["on"]}),
        ("file.list", {"path": "."}),
    ],
)
async def test_a_call_whose_turn_comes_when_its_session_has_ended_gets_a_new_one(
    tools: Tools, tool: str, args: dict[str, Any]
) -> None:
    first = asyncio.create_task(tools.run("shell", command="echo begun; sleep 60"))
    async with asyncio.timeout(BOUND):
        while not tools.pieces:
            await asyncio.sleep(0.01)
    waiting = asyncio.create_task(tools.run(tool, **args))
    await asyncio.sleep(0)  # it has the session, and waits for its turn
    session = await tools.sessions.open_for(ToolRequest("r", tool, args, Caller(session="s_1")))
    await session.close()
    assert (await first).outcome is Outcome.MAY_HAVE_EXECUTED
    done = await waiting
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == ("" if tool == "file.list" else "on\n")


async def test_output_without_end_is_cut_and_the_command_killed(tools: Tools) -> None:
    done = await tools.run("shell", command="yes")
    assert "[killed: too much output]" in done.stderr
    assert done.truncated
    assert len(done.stdout) < 300_000


async def test_a_command_of_more_than_an_argument_holds_runs(tools: Tools) -> None:
    done = await tools.run("shell", command=f"x={'y' * 127_000}; echo ${{#x}}")
    assert done.stdout == "127000\n", done.stderr


@IN_BOTH
async def test_exec_takes_its_words_as_they_are(tools: Tools) -> None:
    words = ["$HOME", "`id`", "a b", "*", "'", '"', "\\", "-n", "; ls", "é"]
    done = await tools.run("exec", command="printf", params=["%s\\n", *words])
    assert done.stdout == "".join(f"{word}\n" for word in words)


async def test_exec_takes_its_first_word_for_a_program_whatever_a_shell_would(
    tools: Tools,
) -> None:
    for program in ("A=b", "PATH=/tmp", "a+=b", "!", "if"):
        done = await tools.run("exec", command=program, params=["echo", "ran"])
        assert (done.exit_code, done.stdout) == (127, ""), program


async def test_exec_has_a_directory_in_the_workspace_and_a_small_environment(
    tools: Tools,
) -> None:
    await tools.run("shell", command="mkdir d")
    given = {"LANG": "C", "PATH": "/nowhere", "LD_PRELOAD": "x", "TZ": SECRET, "API_TOKEN": "t"}
    done = await tools.run("exec", command="env", cwd="d", environment=given)
    assert "LANG=C\n" in done.stdout
    for name in ("/nowhere", "LD_PRELOAD", SECRET, "API_TOKEN"):
        assert name not in done.stdout
    assert "/workspace/d\n" in (await tools.run("exec", command="pwd", cwd="d")).stdout
    for outside in ("../..", "/etc", "missing"):
        refused = await tools.run("exec", command="pwd", cwd=outside)
        assert (refused.ok, refused.stdout) == (False, ""), outside


async def test_exec_tells_a_signal_by_its_name(tools: Tools) -> None:
    done = await tools.run("exec", command="bash", params=["-c", "kill -SEGV $$"])
    assert isinstance(done.data, dict)
    assert done.data["signal"] == "SIGSEGV"


@pytest.mark.requirement("003/tools/file-read")
@pytest.mark.requirement("003/tools/file-list")
@IN_BOTH
async def test_files_are_read_from_their_beginning_and_listed(tools: Tools) -> None:
    await tools.run(
        "shell", command="mkdir d; head -c 5000 /dev/zero | tr '\\0' x > d/f; ln -s f d/l"
    )
    read = await tools.run("file.read", path="d/f")
    assert (read.stdout, read.truncated) == ("x" * 4096, True)
    assert (await tools.run("file.read", path="d/l", max_bytes=5000)).stdout == "x" * 5000
    listed = await tools.run("file.list", path="d")
    assert listed.stdout == "d/f\nd/l\n"
    assert (await tools.run("file.list", path=".")).stdout == "d/\n"


async def test_no_path_of_a_tool_leads_out(tools: Tools) -> None:
    await tools.run("shell", command="ln -s /etc/passwd link; ln -s /etc dir")
    for path in ("../../etc/passwd", "/etc/passwd", "link", "dir/passwd", "missing"):
        for tool in ("file.read", "file.list"):
            refused = await tools.run(tool, path=path)
            assert not refused.ok, (tool, path)
            assert "root:" not in refused.stdout, (tool, path)
    assert Path("/etc/passwd").exists()
