"""A page as it would be printed."""

from typing import Annotated, Any

import msgspec

from toolgate.contracts.wire import CamelWire
from toolgate.core.enums import Level
from toolgate.secrets.addresses import without_password
from toolgate.tasks.template import TaskOutcome, Template, Work


class PdfPage(CamelWire):
    url: Annotated[str, msgspec.Meta(min_length=1)]


class PdfResult(CamelWire):
    url: str
    final_url: str
    title: str
    artifact_id: str
    mime_type: str
    size: int
    http_status: int | msgspec.UnsetType = msgspec.UNSET


async def run(inputs: PdfPage, work: Work) -> TaskOutcome:
    work.check(inputs.url)
    async with work.page() as tab:
        work.step = "open the page"
        await tab.visit(inputs.url)
        await tab.wait_stable(timeout_ms=3_000)
        work.step = "print the page"
        document = await tab.pdf()
        result: dict[str, Any] = {
            "url": without_password(inputs.url),
            "finalUrl": without_password(tab.url),
            "title": await tab.title(),
        }
        if tab.status:
            result["httpStatus"] = tab.status
    artifact_id = await work.keep(document, name="page.pdf", mime_type="application/pdf")
    result |= {"artifactId": artifact_id, "mimeType": "application/pdf", "size": len(document)}
    return TaskOutcome(msgspec.json.encode(result))


TEMPLATE = Template(
    id="pdf_page",
    description="Print a page to PDF.",
    inputs=PdfPage,
    output=PdfResult,
    run=run,
    level=Level.READ,
    media=True,
)
