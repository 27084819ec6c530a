"""Playwright's failures as the port's: the only place that reads its sentences."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterator
from typing import Final, TypeVar

from toolgate.browser.browser import (
    BrowserGone,
    ElementAbsent,
    NavigationFailed,
    NavigationTimedOut,
    PageCrashed,
    PageError,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST: Final = 500  # of an error's text


class IsDownload(NavigationFailed):
    pass


class ElementReplaced(ElementAbsent):
    """A script, or the next page, took its place before anything was done with it."""


async def within(seconds: float, work: Awaitable[T]) -> T | None:
    """The outcome, or None where it failed or took too long: for what must not hold us up."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except Exception as failed:  # noqa: BLE001 - what is being shut down may fail in any way
        log.debug("browser_step_failed error=%s", type(failed).__name__)
        return None


@contextlib.contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except Exception as failed:
        raise translated(failed) from failed


def is_timeout(failed: Exception) -> bool:
    return type(failed).__name__ == "TimeoutError"


def is_interrupted(failed: Exception) -> bool:
    return "interrupted by another navigation" in str(failed)


def is_aborted(failed: Exception) -> bool:
    return "ERR_ABORTED" in str(failed)


def is_gone_elsewhere(failed: Exception) -> bool:
    text = str(failed)
    return (
        "Execution context was destroyed" in text
        or "Cannot find context" in text
        or "Unable to adopt" in text
    )


def translated(failed: Exception) -> PageError:
    """Playwright's error as one of the port's: the only place that reads its sentences."""
    if isinstance(failed, PageError):
        return failed
    text = str(failed)
    if is_timeout(failed):
        return NavigationTimedOut("the page did not get there in time")
    if "crashed" in text:
        return PageCrashed("the page crashed")
    if "has been closed" in text or "Connection closed" in text or "Target closed" in text:
        return BrowserGone("the page's browser or session is gone")
    if "not attached to the DOM" in text:
        return ElementReplaced("the element was replaced before it could be used")
    if "Download is starting" in text:
        return IsDownload("the address is a download")
    if reason := text.partition("net::")[2].split():
        return NavigationFailed(_said(reason[0]))
    return PageError(_said(text) if text else type(failed).__name__)


def _said(text: str) -> str:
    """Its first line, as far as it can be written down: a page may have put it together."""
    return text.splitlines()[0][:LONGEST].encode(errors="replace").decode()
