"""Browser sessions by name: who may use one, and when it is closed."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from toolgate.browser.browser import Browser, BrowserSession
from toolgate.core.clock import Clock
from toolgate.core.enums import TaskCode, TrustLevel
from toolgate.tasks.state import OPERATOR, TaskFailed, may_see

log = logging.getLogger(__name__)

MAX_KEPT: Final = 20  # contexts cost memory
IDLE_S: Final = 30 * 60  # as long as a run is kept
GRACE_S: Final = 60.0  # a client that reconnects finds its sessions again


@dataclass(eq=False, slots=True)
class _Open:
    session: BrowserSession
    trust: TrustLevel
    client: str
    used_at: float
    owner: str = OPERATOR
    media: bool = False
    only_reads: bool = False
    kept: bool = False


class Sessions:
    def __init__(self, *, browser: Browser, clock: Clock, grace_s: float = GRACE_S) -> None:
        self._browser = browser
        self._clock = clock
        self._grace_s = grace_s
        self._open: dict[str, _Open] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def open(
        self,
        session_id: str,
        *,
        trust: TrustLevel,
        client: str,
        owner: str = OPERATOR,
        media: bool = False,
        only_reads: bool = False,
    ) -> BrowserSession:
        session = await self._new(trust=trust, media=media, only_reads=only_reads)
        now = self._clock.monotonic()
        self._open[session_id] = _Open(session, trust, client, now, owner, media, only_reads)
        return session

    async def reopen(self, session_id: str) -> BrowserSession:
        """The same session in a new browser, empty, after the old one died."""
        known = self._open.get(session_id)
        if known is None:
            raise TaskFailed(TaskCode.SESSION_NOT_FOUND, f"session {session_id} was closed")
        await known.session.close()
        session = await self._new(trust=known.trust, media=known.media, only_reads=known.only_reads)
        if self._open.get(session_id) is not known:
            await session.close()
            raise TaskFailed(TaskCode.SESSION_NOT_FOUND, f"session {session_id} was closed")
        known.session = session
        return session

    def get(
        self, session_id: str, *, trust: TrustLevel, client: str = "", viewer: str = OPERATOR
    ) -> BrowserSession:
        """A kept session of the viewer's, opened with this trust; a run's own is nobody else's."""
        known = self._open.get(session_id)
        usable = known is not None and known.kept and known.session.is_alive
        if known is None or not usable or known.trust is not trust:
            raise TaskFailed(TaskCode.SESSION_NOT_FOUND, f"there is no session {session_id}")
        if not may_see(viewer, known.owner):
            raise TaskFailed(TaskCode.SESSION_NOT_FOUND, f"there is no session {session_id}")
        known.used_at = self._clock.monotonic()
        self._client_back(client)
        if client and known.client in self._leaving:  # it has come back under another name
            known.client = client
        return known.session

    def keep(self, session_id: str) -> None:
        """Leave the session open when its run ends."""
        known = self._open.get(session_id)
        if known is None:
            raise TaskFailed(TaskCode.SESSION_NOT_FOUND, f"session {session_id} was closed")
        others = sum(each.kept for each in self._open.values() if each is not known)
        if others >= MAX_KEPT:
            raise TaskFailed(
                TaskCode.EXECUTION_ERROR,
                f"{MAX_KEPT} sessions are kept already: use one of them, or wait until one has been"
                f" idle for {IDLE_S // 60} minutes",
            )
        known.kept = True

    async def leave(self, session_id: str) -> None:
        """A run that owns the session is over."""
        known = self._open.get(session_id)
        if known is not None and not known.kept:
            await self.close(session_id)

    async def close(self, session_id: str) -> None:
        known = self._open.pop(session_id, None)
        if known is not None:
            await known.session.close()
            log.info("session_closed session_id=%s", session_id)

    def client_gone(self, client: str) -> None:
        """Close what was kept for the client unless it comes back within the grace.

        A session that belongs to a run ends with its run.
        """
        if self._kept_for(client):
            self._leaving[client] = asyncio.ensure_future(self._close_all_of(client))

    def _client_back(self, client: str) -> None:
        task = self._leaving.pop(client, None)
        if task is not None:
            task.cancel()

    async def sweep(self) -> None:
        """Close kept sessions that nobody has used for long, or whose browser is gone."""
        now = self._clock.monotonic()
        for session_id, known in list(self._open.items()):
            idle = known.kept and now - known.used_at > IDLE_S
            if idle or (known.kept and not known.session.is_alive):
                await self.close(session_id)

    async def shut(self) -> None:
        for task in self._leaving.values():
            task.cancel()
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        for session_id in list(self._open):
            await self.close(session_id)

    @property
    def count(self) -> int:
        return len(self._open)

    async def _close_all_of(self, client: str) -> None:
        await asyncio.sleep(self._grace_s)
        self._leaving.pop(client, None)
        for session_id in self._kept_for(client):
            await self.close(session_id)

    def _kept_for(self, client: str) -> list[str]:
        return [
            session_id
            for session_id, known in self._open.items()
            if known.client == client and known.kept
        ]

    async def _new(self, *, trust: TrustLevel, media: bool, only_reads: bool) -> BrowserSession:
        opening = asyncio.ensure_future(
            self._browser.open(trust=trust, media=media, only_reads=only_reads)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unwanted)
            raise

    def _close_unwanted(self, opening: asyncio.Future[BrowserSession]) -> None:
        """The run was canceled while its session was being opened."""
        if not opening.cancelled() and opening.exception() is None:
            closing = asyncio.ensure_future(opening.result().close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
