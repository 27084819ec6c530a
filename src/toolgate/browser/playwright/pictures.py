"""A picture of a page: of what its window shows, or of all of it, as far as that is drawn in time."""

import base64
from typing import TYPE_CHECKING, Any, Final

from toolgate.browser.browser import Picture

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

# What is drawn of a page at most: a picture of more takes longer than anybody waits for it.
WIDEST: Final = 4_096
TALLEST: Final = 16_384
MOST_PIXELS: Final = 1_280 * TALLEST


async def drawn(cdp: "CDPSession", *, full_page: bool) -> Picture:
    how: dict[str, Any] = {"format": "png"}
    truncated = False
    if full_page:
        whole = (await cdp.send("Page.getLayoutMetrics"))["cssContentSize"]
        width = max(1, min(whole["width"], WIDEST))
        height = max(1, min(whole["height"], TALLEST, MOST_PIXELS // width))
        truncated = width < whole["width"] or height < whole["height"]
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        how |= {"captureBeyondViewport": True, "clip": clip}
    answer = await cdp.send("Page.captureScreenshot", how)
    return Picture(base64.b64decode(answer["data"]), truncated)
