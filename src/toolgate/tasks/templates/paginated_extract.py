"""Read a list page by page, until there is no next page, it repeats, or enough were read."""

from dataclasses import replace
from typing import Any

import msgspec

from toolgate.browser.browser import Extract
from toolgate.contracts import tasks_v1 as wire
from toolgate.secrets.addresses import without_password
from toolgate.tasks.state import Summary
from toolgate.tasks.template import (
    NOTICE,
    STEP_TIMEOUT_MS,
    TaskOutcome,
    Template,
    Work,
    item_of,
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
            pages.append(item_of(without_password(looked.url), looked))
            work.report(len(pages), pagination.max_pages)
            if len(pages) >= pagination.max_pages:
                break
            if not await tab.has(following):
                stopped = "next_unavailable"
                break
            work.step = f"go to page {len(pages) + 1}"
            await tab.click(following, timeout_ms=STEP_TIMEOUT_MS)
            await require(tab, pagination.wait_for)
    summary = Summary(len(pages), len(pages))
    result = {
        "summary": summary_of(summary),
        "pages": pages,
        "stoppedReason": stopped,
        "notice": NOTICE,
    }
    return TaskOutcome(msgspec.json.encode(result), summary=summary)


def _fingerprint(looked: Extract) -> tuple[str, ...]:
    """The same text is the same page, whatever its address says, and however much of it is kept."""
    return (looked.title, looked.digest)


TEMPLATE = Template(
    id="paginated_extract",
    description="Read a list page by page by its link or button to the next.",
    inputs=wire.PaginatedExtract,
    output=wire.PaginatedResult,
    run=run,
    repeatable=True,
    steps=lambda inputs: inputs.pagination.max_pages,
)
