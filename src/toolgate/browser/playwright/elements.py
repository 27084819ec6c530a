"""What is done with the elements of a page: found by a locator, filled in, clicked, waited for."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolgate.browser.browser import ElementAbsent, Locator, NavigationTimedOut, PageError
from toolgate.browser.page_scripts import CHOICE, FINDER, HERE, KIND
from toolgate.browser.playwright.errors import ElementReplaced, is_gone_elsewhere
from toolgate.browser.playwright.page import PlaywrightPage
from toolgate.core.enums import LocatorMode

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame, Request

T = TypeVar("T")

LEAVE_S: Final = 0.15  # a click that leads elsewhere asks for it within this time


class PlaywrightElements:
    def __init__(self, page: PlaywrightPage) -> None:
        self._page = page

    async def fill(self, locator: Locator, value: str, *, timeout_ms: int) -> None:
        async def fill(element: "ElementHandle") -> None:
            kind = await self._told(element.evaluate(KIND))
            if kind == "select":
                await self._use(locator, element.select_option(value, timeout=timeout_ms))
            elif kind in {"checkbox", "radio"}:
                await self._choose(locator, element, value, timeout_ms)
            else:
                await self._use(locator, element.fill(value, timeout=timeout_ms))

        await self._work(locator, "field", timeout_ms, fill)

    async def _choose(
        self, locator: Locator, element: "ElementHandle", value: str, timeout_ms: int
    ) -> None:
        choice = await self._told(element.evaluate_handle(CHOICE, value))
        parts = await self._told(choice.get_properties())
        target = parts["target"].as_element()
        if target is None:
            raise ElementAbsent(
                f"what {locator.mode} {locator.value!r} finds to tick cannot be {value!r}"
            )
        ticked = bool(await self._told(parts["ticked"].json_value()))
        await self._use(locator, target.set_checked(ticked, timeout=timeout_ms))

    async def click(self, locator: Locator, *, timeout_ms: int) -> None:
        async def click(element: "ElementHandle") -> None:
            await self._told(element.evaluate(HERE))
            await self._act(locator, element.click(timeout=timeout_ms, no_wait_after=True))

        await self._work(locator, "target", timeout_ms, click)

    async def press(self, locator: Locator, key: str, *, timeout_ms: int) -> None:
        async def press(element: "ElementHandle") -> None:
            await self._told(element.evaluate(HERE))
            await self._act(locator, element.press(key, timeout=timeout_ms, no_wait_after=True))

        await self._work(locator, "any", timeout_ms, press)

    async def _work(
        self,
        locator: Locator,
        kind: str,
        timeout_ms: int,
        do: Callable[["ElementHandle"], Awaitable[None]],
    ) -> None:
        """Find it and do something with it; again where another took its place meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            left_ms = max(0, int((end - loop.time()) * 1000))
            element = await self._find(locator, kind, left_ms)
            try:
                return await do(element)
            except ElementReplaced:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(0.05)

    async def _use(self, locator: Locator, action: Awaitable[Any]) -> None:
        try:
            await self._page.ask(action)
        except NavigationTimedOut as late:
            told = f"the element for {locator.mode} {locator.value!r} cannot be used so"
            raise ElementAbsent(told) from late

    async def _act(self, locator: Locator, action: Awaitable[None]) -> None:
        """Do it; where it sends the page elsewhere, wait until it is there."""
        leaving, over = asyncio.Event(), asyncio.Event()
        page = self._page.raw
        self._page.question = ""

        def marking(event: asyncio.Event) -> Callable[["Request"], None]:
            def mark(request: "Request") -> None:
                if request.is_navigation_request() and request.frame == page.main_frame:
                    event.set()

            return mark

        def on_navigated(frame: "Frame") -> None:
            if frame == page.main_frame:
                over.set()

        heard: dict[Any, Callable[[Any], None]] = {
            "request": marking(leaving),
            "requestfailed": marking(over),
            "framenavigated": on_navigated,
        }
        self._page.committed.clear()
        for event, listener in heard.items():
            page.on(event, listener)
        try:
            await self._use(locator, action)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await leaving.wait()
                async with asyncio.timeout(self._page.options.navigation_ms / 1000):
                    await over.wait()
        finally:
            for event, listener in heard.items():
                page.remove_listener(event, listener)
        self._page.documents.check()

    async def has(self, locator: Locator) -> bool:
        element = await self._look_for(locator, "any")
        try:
            return (
                element is not None
                and await self._told(element.is_visible())
                and await self._told(element.is_enabled())
            )
        except ElementReplaced:
            return False

    async def wait_any(self, locators: Sequence[Locator], *, timeout_ms: int) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            for locator in locators:
                if await self.has(locator):
                    return True
            if loop.time() >= end:
                return False
            await asyncio.sleep(0.1)

    async def _told(self, asking: Awaitable[T]) -> T:
        """What an element answers, which may be gone with its page."""
        try:
            return await self._page.answered(asking)
        except PageError as failed:
            if is_gone_elsewhere(failed):
                raise ElementReplaced("the page went elsewhere before it could be used") from failed
            raise

    async def _find(self, locator: Locator, kind: str, timeout_ms: int) -> "ElementHandle":
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            element = await self._look_for(locator, kind)
            if element is not None:
                return element
            if loop.time() >= end:
                raise ElementAbsent(f"there is no element for {locator.mode} {locator.value!r}")
            await asyncio.sleep(0.1)

    async def _look_for(self, locator: Locator, kind: str) -> "ElementHandle | None":
        try:
            async with asyncio.timeout(self._page.options.navigation_ms / 1000):
                if locator.mode is LocatorMode.SELECTOR:
                    return await self._page.raw.query_selector(locator.value)
                handle = await self._page.raw.evaluate_handle(
                    FINDER, {"query": locator.value, "kind": kind}
                )
                return handle.as_element()
        except TimeoutError:
            raise self._page.hung() from None
        except Exception as failed:
            if is_gone_elsewhere(failed):
                return None
            raise self._page.noted(failed) from failed
