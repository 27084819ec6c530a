"""Reading many pages at once, in input order, with one retry where a retry may help."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from toolgate.browser.browser import (
    Extract,
    ExtractOptions,
    NavigationTimedOut,
    PageCrashed,
    PageError,
)
from toolgate.secrets.addresses import without_password
from toolgate.tasks.items import Asked, failed_item_of, item_of
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import Work, options_of

RETRIED: Final = (NavigationTimedOut, PageCrashed)  # browser spec: once

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRead:
    """One page of many: its item, and what it gave if it was read."""

    url: str  # as it may be shown
    item: dict[str, Any]
    extract: Extract | None = None


async def read_pages(
    urls: Sequence[str],
    work: Work,
    *,
    extract: Asked,
    concurrency: int,
    keep: Callable[[PageRead], T],
) -> list[T]:
    """What `keep` makes of each page, or of its error, in the order of the URLs."""
    kept: dict[int, T] = {}
    positions = iter(range(len(urls)))

    async def walk() -> None:
        for position in positions:
            kept[position] = keep(await _read(urls[position], work, extract))
            work.report(len(kept), len(urls))

    async with asyncio.TaskGroup() as walkers:
        for _ in range(min(concurrency, len(urls))):
            walkers.create_task(walk())
    return [kept[position] for position in range(len(urls))]


async def _read(url: str, work: Work, extract: Asked) -> PageRead:
    shown, options = without_password(url), options_of(extract)
    try:
        work.check(url)
        try:
            looked = await _read_once(url, work, options)
        except RETRIED:
            looked = await _read_once(url, work, options)
        item = await item_of(shown, looked, work, extract)
    except (PageError, TaskFailed) as failed:
        return PageRead(shown, failed_item_of(shown, failed))
    # A thousand documents, kept until the run's end, would be too many.
    return PageRead(shown, item, replace(looked, html="", download=None))


async def _read_once(url: str, work: Work, options: ExtractOptions) -> Extract:
    async with work.reader() as reader:
        return await reader.read(url, options)
