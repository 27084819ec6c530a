"""Read up to 1,000 pages; a page that fails is an item that failed."""

from typing import Any

import msgspec

from toolgate.contracts import tasks_v1 as wire
from toolgate.domain.errors import ToolgateError
from toolgate.domain.task_runs import Summary
from toolgate.ports.browser import Extract
from toolgate.tasks.page_batches import read_pages
from toolgate.tasks.template import (
    NOTICE,
    Outcome,
    Template,
    Work,
    failed_item_of,
    item_of,
    options_of,
    summary_of,
)


async def run(inputs: wire.BatchExtractPages, work: Work) -> Outcome:
    failures: list[dict[str, Any]] = []

    def encode(url: str, looked: Extract | None, failed: ToolgateError | None) -> msgspec.Raw:
        """Items are kept as JSON: a thousand of them as objects would weigh ten times as much."""
        if looked is not None:
            return msgspec.Raw(msgspec.json.encode(item_of(url, looked)))
        assert failed is not None
        item = failed_item_of(url, failed)
        failures.append({"url": url, **item["error"]})
        return msgspec.Raw(msgspec.json.encode(item))

    work.step = "read pages"
    items = await read_pages(
        inputs.urls,
        work,
        options=options_of(inputs.extract),
        concurrency=inputs.concurrency,
        keep=encode,
    )
    summary = Summary(len(items), len(items) - len(failures))
    result = {"summary": summary_of(summary), "items": items, "notice": NOTICE}
    return Outcome(msgspec.json.encode(result), summary=summary, failures=failures)


TEMPLATE = Template(
    id="batch_extract_pages",
    description="Read many pages and return each one's title, elements and text, in input order.",
    inputs=wire.BatchExtractPages,
    output=wire.BatchResult,
    run=run,
    repeatable=True,
    steps=lambda inputs: len(inputs.urls),
)
