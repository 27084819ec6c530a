"""Read a list page by page, until there is no next page, it repeats, or enough were read."""

from dataclasses import replace
from typing import Any

import msgspec

from toolgate.browser.browser import Extract
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import Level
from toolgate.secrets.addresses import without_password
from toolgate.tasks.items import failure_of, item_of
from toolgate.tasks.state import Summary
from toolgate.tasks.template import (
    NOTICE,
    STEP_TIMEOUT_MS,
    TaskOutcome,
    Template,
    Work,
    locator_of,
    options_of,
    require,
    summary_of,
)


async def run(inputs: wire.PaginatedExtract, work: Work) -> TaskOutcome:
    work.check(inputs.start_url)
    pagination = inputs.pagination
    following = locator_of(pagination.next)
    options = replace(options_of(inputs.extract), digest=True)
    pages: list[dict[str, Any]] = []
    seen: set[tuple[str, ...]] = set()
    stopped = "max_pages"
    async with work.page() as tab:
        work.step = "open the first page"
        await tab.visit(inputs.start_url)
        while True:
            work.step = f"read page {len(pages) + 1}"
            looked = await tab.extract(options)
            if (fingerprint := _fingerprint(looked)) in seen:
                stopped = "repeated_page"
                break
            seen.add(fingerprint)
            item = await item_of(without_password(looked.url), looked, work, inputs.extract)
            pages.append(item)
            work.report(len(pages), pagination.max_pages)
            if not item["success"]:
                stopped = "next_unavailable"
                break
            if len(pages) >= pagination.max_pages:
                break
            if not await tab.has(following):
                stopped = "next_unavailable"
                break
            work.step = f"go to page {len(pages) + 1}"
            await tab.click(following, timeout_ms=STEP_TIMEOUT_MS)
            await require(tab, pagination.wait_for)
    failures = [failure_of(page) for page in pages if not page["success"]]
    summary = Summary(len(pages), len(pages) - len(failures))
    result = {
        "summary": summary_of(summary),
        "pages": pages,
        "stoppedReason": stopped,
        "notice": NOTICE,
    }
    return TaskOutcome(msgspec.json.encode(result), summary=summary, failures=failures)


def _fingerprint(looked: Extract) -> tuple[str, ...]:
    """The same text is the same page, whatever its address says, and however much of it is kept."""
    return (looked.title, looked.digest)


TEMPLATE = Template(
    id="paginated_extract",
    description="Read a list page by page by its link or button to the next.",
    inputs=wire.PaginatedExtract,
    output=wire.PaginatedResult,
    run=run,
    level=Level.READ,
    steps=lambda inputs: inputs.pagination.max_pages,
)
