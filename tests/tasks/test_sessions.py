"""Browser sessions by name, on a browser without pages."""

import asyncio

import pytest

from tests.support.browser import FakeBrowser
from tests.tasks.runtimes import until
from toolgate.core.enums import TaskCode, TrustLevel
from toolgate.tasks.sessions import MAX_KEPT, Sessions
from toolgate.tasks.state import TaskFailed
from toolgate.testing.clock import FakeClock


class Opened:
    def __init__(self) -> None:
        self.browser = FakeBrowser()
        self.sessions = Sessions(browser=self.browser, clock=FakeClock())

    async def reopening(self) -> "asyncio.Task[object]":
        """The session's browser has died, and a new one is being opened for it."""
        await self.sessions.open("s", trust=TrustLevel.LOCAL, client="c")
        self.browser.sessions[0].is_alive = False
        self.browser.gate.clear()
        task: asyncio.Task[object] = asyncio.create_task(self.sessions.reopen("s"))
        await until(lambda: len(self.browser.sessions) == 2)
        return task


async def test_a_run_that_is_cancelled_while_its_session_reopens_leaves_none_behind() -> None:
    opened = Opened()
    reopening = await opened.reopening()
    reopening.cancel()
    await asyncio.wait([reopening])
    opened.browser.gate.set()
    await opened.sessions.leave("s")
    await until(lambda: opened.browser.sessions[1].closes == 1)


async def test_a_session_that_is_closed_while_it_reopens_stays_closed() -> None:
    opened = Opened()
    reopening = await opened.reopening()
    await opened.sessions.close("s")
    opened.browser.gate.set()
    with pytest.raises(TaskFailed):
        await reopening
    assert opened.browser.sessions[1].closes == 1


async def test_a_session_that_is_kept_can_be_kept_again_when_there_is_room_for_no_other() -> None:
    sessions = Opened().sessions
    for number in range(MAX_KEPT + 1):
        await sessions.open(f"s{number}", trust=TrustLevel.LOCAL, client="c")
    for number in range(MAX_KEPT):
        sessions.keep(f"s{number}")
    with pytest.raises(TaskFailed):
        sessions.keep(f"s{MAX_KEPT}")
    sessions.keep("s0")


async def test_a_session_that_was_closed_meanwhile_cannot_be_kept() -> None:
    sessions = Opened().sessions
    await sessions.open("s", trust=TrustLevel.LOCAL, client="c")
    await sessions.close("s")
    with pytest.raises(TaskFailed) as failed:
        sessions.keep("s")
    assert failed.value.code is TaskCode.SESSION_NOT_FOUND
