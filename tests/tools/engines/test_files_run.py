"""An approval's place changes with the files that the command runs."""

from collections.abc import AsyncIterator

import pytest

from tests.support.engines import need
from tests.support.policies import PARSE
from toolgate.core.enums import Level
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolRequest
from toolgate.policy.policies import Policies
from toolgate.sandbox.bwrap import BwrapSandbox
from toolgate.sandbox.sandbox import Command
from toolgate.sandbox.sessions import Sessions
from toolgate.tools.engines.files_run import FilesRun
from toolgate.tools.routing import as_named

POLICIES = Policies(lambda _: None, PARSE, lambda _: Level.WRITE)


def call(command: str) -> ToolRequest:
    return ToolRequest("r", "shell", {"command": command}, Caller(session="s"))


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    need("bwrap")
    opened = Sessions(BwrapSandbox(), clock=SystemClock())
    yield opened
    await opened.close()


async def test_the_place_changes_with_a_file_that_is_run_and_with_no_other(
    sessions: Sessions,
) -> None:
    place = FilesRun(POLICIES, sessions).added_to(as_named)
    session = await sessions.open_for(call("true"))
    await session.exec(Command("mkdir d; echo 'echo one' > d/s.sh; echo x > data; cd d"))
    for command in ("sh s.sh", "bash ./s.sh a", "cat s.sh | sh", "sh < s.sh", "sh -c './s.sh'"):
        before = await place(call(command))
        assert before.strip().startswith("files:"), command
        await session.exec(Command("echo y > ../data"))
        assert await place(call(command)) == before, command
        await session.exec(Command("echo 'touch /tmp/x' >> s.sh"))
        assert await place(call(command)) != before, command


async def test_a_command_that_runs_no_file_has_the_place_that_it_had(sessions: Sessions) -> None:
    place = FilesRun(POLICIES, sessions).added_to(as_named)
    session = await sessions.open_for(call("true"))
    await session.exec(Command("echo x > a"))
    for command in ("cp a b", "sh missing.sh", "rm a"):
        assert await place(call(command)) == "", command


async def test_no_session_is_opened_to_look_for_files(sessions: Sessions) -> None:
    assert await FilesRun(POLICIES, sessions).digest(call("sh s.sh")) == ""
    assert len(sessions) == 0
