"""A browser without pages, for tests of what goes on around them."""

import asyncio
from contextlib import AbstractAsyncContextManager

from toolgate.browser.browser import Reader, Tab
from toolgate.core.enums import TrustLevel


class FakeSession:
    def __init__(self) -> None:
        self.closes = 0
        self.is_alive = True

    def tab(self, *, run_id: str, submits: bool = False) -> AbstractAsyncContextManager[Tab]:
        raise NotImplementedError("there are no pages here")

    def reader(self, *, run_id: str) -> AbstractAsyncContextManager[Reader]:
        raise NotImplementedError("there are no pages here")

    async def close(self) -> None:
        self.closes += 1
        self.is_alive = False


class FakeBrowser:
    """Remembers every session it opened; says so once `gate` is open."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(
        self, *, trust: TrustLevel, media: bool = False, only_reads: bool = False
    ) -> FakeSession:
        session = FakeSession()
        self.sessions.append(session)
        await self.gate.wait()
        return session

    async def close(self) -> None:
        for session in self.sessions:
            session.is_alive = False
