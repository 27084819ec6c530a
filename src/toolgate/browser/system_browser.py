"""The system's Chromium as one browser: pages are read by CDP, and worked by Playwright.

A run has one driver, by what its template does. The two share the turns of their tabs; neither
starts before it is needed.
"""

from collections.abc import Callable

from toolgate.browser.browser import BrowserSession, PageError
from toolgate.browser.cdp.browser import CdpBrowser
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright.browser import PlaywrightBrowser
from toolgate.browser.proxy_verdicts import no_complaint
from toolgate.browser.tab_slots import TabSlots
from toolgate.core.enums import TrustLevel


class SystemBrowser:
    def __init__(
        self,
        options: BrowserOptions | None = None,
        *,
        complaint: Callable[[str], PageError | None] = no_complaint,
    ) -> None:
        """`complaint` says why the guarded proxy lately let nothing come from a URL."""
        options = options or BrowserOptions()
        slots = TabSlots(options.slots)
        self.reading = CdpBrowser(options, complaint=complaint, slots=slots)
        self.working = PlaywrightBrowser(options, complaint=complaint, slots=slots)

    async def open(
        self, *, trust: TrustLevel, media: bool = False, only_reads: bool = False
    ) -> BrowserSession:
        if only_reads and not media:
            return await self.reading.open(trust=trust)
        return await self.working.open(trust=trust, media=media)

    async def close(self) -> None:
        await self.reading.close()
        await self.working.close()
