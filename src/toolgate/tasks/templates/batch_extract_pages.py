"""Read up to 1,000 pages; a page that fails is an item that failed."""

from typing import Any

import msgspec

from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import Level
from toolgate.tasks.items import failure_of
from toolgate.tasks.page_batches import PageRead, read_pages
from toolgate.tasks.state import Summary
from toolgate.tasks.template import NOTICE, TaskOutcome, Template, Work, summary_of


async def run(inputs: wire.BatchExtractPages, work: Work) -> TaskOutcome:
    failures: list[dict[str, Any]] = []

    def encode(page: PageRead) -> msgspec.Raw:
        """Items are kept as JSON: a thousand of them as objects would weigh ten times as much."""
        item = page.item
        if not item["success"]:
            failures.append(failure_of(item))
        return msgspec.Raw(msgspec.json.encode(item))

    work.step = "read pages"
    items = await read_pages(
        inputs.urls,
        work,
        extract=inputs.extract,
        concurrency=inputs.concurrency,
        keep=encode,
    )
    summary = Summary(len(items), len(items) - len(failures))
    result = {"summary": summary_of(summary), "items": items, "notice": NOTICE}
    return TaskOutcome(msgspec.json.encode(result), summary=summary, failures=failures)


TEMPLATE = Template(
    id="batch_extract_pages",
    description="Read many pages and return each one's title, elements and text, in input order.",
    inputs=wire.BatchExtractPages,
    output=wire.BatchResult,
    run=run,
    level=Level.READ,
    only_reads=True,
    steps=lambda inputs: len(inputs.urls),
)
