"""Tasks that have an owner, and waits that something else may end."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The wait was ended before its result was there."""


class Background:
    """Tasks that run beside their owner: held until they end, so that none is collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancel them all, and wait for their ends."""
        await end(*self._tasks)

    async def wait(self) -> None:
        """Wait until none is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended, whatever they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def unless(stop: Awaitable[object], work: Awaitable[T]) -> T:
    """The result of `work`; raises Stopped if `stop` is done before. Neither goes on after it."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Stopped
        return working.result()
    finally:
        await end(working, stopping)
