"""The file that a visit leads to instead of a page: one per visit, bounded in size and time."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.browser.browser import DocumentAnswer, Download, DownloadTooLarge, Extract
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright.errors import within

if TYPE_CHECKING:
    from playwright.async_api import Download as PageDownload


class PlaywrightDownloads:
    """Those of one tab; it is told of each new visit, and of what the browser says of files."""

    def __init__(
        self,
        place: Path,
        *,
        options: BrowserOptions,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._place = place
        self._options = options
        self._spawn = spawn
        self._download: asyncio.Future[PageDownload] = _future()
        self._file_names: dict[str, str] = {}  # on disk, by the URL they come from

    def expect(self) -> None:
        """A new visit begins: what came before is not its file."""
        self._download = _future()
        self._file_names.clear()

    def began(self, begun: dict[str, Any]) -> None:
        self._file_names[begun["url"]] = begun["guid"]

    def came(self, download: "PageDownload") -> None:
        if self._download.done():
            self._spawn(_cancel(download))  # one file per visit
        else:
            self._download.set_result(download)
            self._spawn(self._bound(download))

    async def taken(self, answers: tuple[DocumentAnswer, ...]) -> Extract:
        """The file that came instead of a page, unless it is too large or too slow."""
        limit, content = self._options.download_limit, None
        with contextlib.suppress(Exception):  # it was canceled, by us or by the server's end
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                download = await self._download
                path = await download.path()
            if _size_of(path) <= limit:  # it may have come before anybody looked
                content = await asyncio.to_thread(path.read_bytes)
            await within(1, download.delete())
        if content is None:
            raise DownloadTooLarge(f"the file is larger than {limit} bytes, or incomplete")
        download = self._download.result()
        kind = answers[-1].mime_type if answers else ""
        file = Download(download.suggested_filename, kind or "application/octet-stream", content)
        return Extract(
            download.url, file.name, "download", 0, (), None, None, download=file, answers=answers
        )

    async def _bound(self, download: "PageDownload") -> None:
        """Stop a download that grows beyond the limit or takes too long, wanted or not."""
        end = asyncio.get_running_loop().time() + self._options.navigation_ms / 1000
        finished = asyncio.ensure_future(download.failure())
        try:
            while asyncio.get_running_loop().time() < end:
                await asyncio.wait([finished], timeout=0.05)
                name = self._file_names.get(download.url, "")
                # A name of its own; while it comes, with an ending.
                files = self._place.glob(f"{name}*")
                if any(_size_of(file) > self._options.download_limit for file in files):
                    break
                if finished.done():
                    return
            await within(2, download.cancel())
        finally:
            finished.cancel()


def _future() -> "asyncio.Future[PageDownload]":
    return asyncio.get_running_loop().create_future()


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


async def _cancel(download: "PageDownload") -> None:
    await within(2, download.cancel())
