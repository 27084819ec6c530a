"""Reading many pages at once, in input order, with one retry where a retry may help."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from toolgate.domain.errors import ToolgateError
from toolgate.domain.task_runs import TaskFailed, without_password
from toolgate.ports.browser import (
    Extract,
    ExtractOptions,
    NavigationTimedOut,
    PageCrashed,
    PageError,
)
from toolgate.tasks.template import Work

RETRIED: Final = (NavigationTimedOut, PageCrashed)  # browser spec: once

T = TypeVar("T")
KeepPage = Callable[[str, Extract | None, ToolgateError | None], T]


async def read_pages(
    urls: Sequence[str],
    work: Work,
    *,
    options: ExtractOptions,
    concurrency: int,
    keep: KeepPage[T],
) -> list[T]:
    """What `keep` makes of each page, or of its error, in the order of the URLs."""
    kept: dict[int, T] = {}
    positions = iter(range(len(urls)))

    async def walk() -> None:
        for position in positions:
            url = urls[position]
            shown = without_password(url)
            try:
                looked = await _read_one(url, work, options)
            except (PageError, TaskFailed) as failed:
                kept[position] = keep(shown, None, failed)
            else:
                kept[position] = keep(shown, looked, None)
            work.report(len(kept), len(urls))

    async with asyncio.TaskGroup() as walkers:
        for _ in range(min(concurrency, len(urls))):
            walkers.create_task(walk())
    return [kept[position] for position in range(len(urls))]


async def _read_one(url: str, work: Work, options: ExtractOptions) -> Extract:
    work.check(url)
    try:
        return await _read_once(url, work, options)
    except RETRIED:
        return await _read_once(url, work, options)


async def _read_once(url: str, work: Work, options: ExtractOptions) -> Extract:
    async with work.tab() as tab:
        return await tab.read(url, options)
