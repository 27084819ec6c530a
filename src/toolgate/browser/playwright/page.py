"""A page as Playwright has it, and how it is asked: in time, and with the port's errors.

It remembers what the page did meanwhile: that it crashed, went elsewhere, asked something.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolgate.browser.browser import PageCrashed, PageError
from toolgate.browser.documents import TabDocuments
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright.errors import is_timeout, translated

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Frame, Page

T = TypeVar("T")

LONGEST_QUESTION: Final = 200


class PlaywrightPage:
    """A tab's page; where the tab gets another, this is that one from then on."""

    def __init__(
        self, page: "Page", cdp: "CDPSession", *, options: BrowserOptions, documents: TabDocuments
    ) -> None:
        self.options = options
        self.documents = documents
        self.crashed = False
        self.question = ""  # the last that it asked
        self.committed = asyncio.Event()
        self.attach(page, cdp)

    def attach(self, page: "Page", cdp: "CDPSession") -> None:
        self.raw = page
        self.cdp = cdp
        page.on("crash", self._on_crash)
        page.on("framenavigated", self._on_navigated)
        cdp.on("Page.javascriptDialogOpening", self._on_dialog)
        cdp.on(
            "Page.frameRequestedNavigation",
            lambda wanted: self.documents.requested(reason=wanted["reason"], url=wanted["url"]),
        )

    async def comes(self, waiting: Awaitable[Any]) -> bool:
        try:
            await waiting
        except Exception as failed:
            if is_timeout(failed):
                return False
            raise self.noted(failed) from failed
        return True

    async def ask(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except Exception as failed:
            raise self.noted(failed) from failed

    async def answered(self, asking: Awaitable[T]) -> T:
        """What a page that lives says at once; one that hangs would not say it before the run's end."""
        try:
            async with asyncio.timeout(self.options.navigation_ms / 1000):
                return await self.ask(asking)
        except TimeoutError:
            raise self.hung() from None

    def hung(self) -> PageCrashed:
        self.crashed = True  # nothing will come of this tab any more
        return PageCrashed("the page no longer answers")

    def noted(self, failed: Exception) -> PageError:
        ours = translated(failed)
        if isinstance(ours, PageCrashed):
            self.crashed = True
        return ours

    def _on_crash(self, page: "Page") -> None:
        if page is self.raw:
            self.crashed = True

    def _on_dialog(self, opening: dict[str, Any]) -> None:
        """Playwright says no to it; an alert asks nothing."""
        if opening["type"] in {"confirm", "prompt"}:
            self.question = opening["message"][:LONGEST_QUESTION]

    def _on_navigated(self, frame: "Frame") -> None:
        if frame.parent_frame is None and frame.page is self.raw:
            self.committed.set()
            self.documents.arrive()
