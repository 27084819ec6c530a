"""Reading many pages at once, in input order, with one retry where a retry may help."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from toolgate.browser.browser import (
    Extract,
    ExtractOptions,
    NavigationTimedOut,
    PageCrashed,
    PageError,
)
from toolgate.core.errors import ToolgateError
from toolgate.secrets.addresses import without_password
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import Work, failed_item_of, item_of

RETRIED: Final = (NavigationTimedOut, PageCrashed)  # browser spec: once

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRead:
    """One page of many: what it gave, or why not."""

    url: str  # as it may be shown
    extract: Extract | None = None
    download_id: str = ""
    failed: ToolgateError | None = None

    @property
    def item(self) -> dict[str, Any]:
        if self.extract is not None:
            return item_of(self.url, self.extract, download_id=self.download_id)
        assert self.failed is not None
        return failed_item_of(self.url, self.failed)


async def read_pages(
    urls: Sequence[str],
    work: Work,
    *,
    options: ExtractOptions,
    concurrency: int,
    keep: Callable[[PageRead], T],
) -> list[T]:
    """What `keep` makes of each page, or of its error, in the order of the URLs."""
    kept: dict[int, T] = {}
    positions = iter(range(len(urls)))

    async def walk() -> None:
        for position in positions:
            kept[position] = keep(await _read(urls[position], work, options))
            work.report(len(kept), len(urls))

    async with asyncio.TaskGroup() as walkers:
        for _ in range(min(concurrency, len(urls))):
            walkers.create_task(walk())
    return [kept[position] for position in range(len(urls))]


async def _read(url: str, work: Work, options: ExtractOptions) -> PageRead:
    shown = without_password(url)
    try:
        work.check(url)
        try:
            looked = await _read_once(url, work, options)
        except RETRIED:
            looked = await _read_once(url, work, options)
    except (PageError, TaskFailed) as failed:
        return PageRead(shown, failed=failed)
    if looked.download is None:
        return PageRead(shown, looked)
    file = looked.download
    kept = await work.keep(file.content, name=file.name, mime_type=file.mime_type)
    return PageRead(shown, looked, kept)


async def _read_once(url: str, work: Work, options: ExtractOptions) -> Extract:
    async with work.reader() as reader:
        return await reader.read(url, options)
