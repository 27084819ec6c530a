"""A picture of a page."""

from typing import Annotated, Any

import msgspec

from toolgate.contracts.wire import CamelWire
from toolgate.core.enums import Level
from toolgate.secrets.addresses import without_password
from toolgate.tasks.template import TaskOutcome, Template, Work


class ScreenshotPage(CamelWire):
    url: Annotated[str, msgspec.Meta(min_length=1)]
    full_page: bool = False


class ScreenshotResult(CamelWire):
    url: str
    final_url: str
    title: str
    artifact_id: str
    mime_type: str
    size: int
    http_status: int | msgspec.UnsetType = msgspec.UNSET
    truncated: bool | msgspec.UnsetType = msgspec.UNSET  # where the page is too tall for one


async def run(inputs: ScreenshotPage, work: Work) -> TaskOutcome:
    work.check(inputs.url)
    async with work.page() as tab:
        work.step = "open the page"
        await tab.visit(inputs.url)
        await tab.wait_stable(timeout_ms=3_000)
        work.step = "take the picture"
        picture = await tab.screenshot(full_page=inputs.full_page)
        result: dict[str, Any] = {
            "url": without_password(inputs.url),
            "finalUrl": without_password(tab.url),
            "title": await tab.title(),
        }
        if tab.status:
            result["httpStatus"] = tab.status
    image = picture.content
    artifact_id = await work.keep(image, name="screenshot.png", mime_type="image/png")
    result |= {"artifactId": artifact_id, "mimeType": "image/png", "size": len(image)}
    if picture.truncated:
        result["truncated"] = True
    return TaskOutcome(msgspec.json.encode(result))


TEMPLATE = Template(
    id="screenshot_page",
    description="Take a PNG of a page, of the window or its full height.",
    inputs=ScreenshotPage,
    output=ScreenshotResult,
    run=run,
    level=Level.READ,
    media=True,
)
