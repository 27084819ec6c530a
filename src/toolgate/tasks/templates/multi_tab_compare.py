"""Read up to ten pages and say where they differ."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from toolgate.browser.browser import Extract
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import Level
from toolgate.tasks.items import failure_of
from toolgate.tasks.page_batches import read_pages
from toolgate.tasks.state import Summary
from toolgate.tasks.template import NOTICE, TaskOutcome, Template, Work, summary_of


async def run(inputs: wire.MultiTabCompare, work: Work) -> TaskOutcome:
    work.step = "read pages"
    pages = await read_pages(
        inputs.urls,
        work,
        extract=inputs.extract,
        concurrency=inputs.concurrency,
        keep=lambda page: page,
    )
    read = [
        (page.url, page.extract)
        for page in pages
        if page.extract is not None and page.item["success"]
    ]
    snapshots = [page.item for page in pages]
    failures = [failure_of(item) for item in snapshots if not item["success"]]
    summary = Summary(len(pages), len(read))
    result = {
        "summary": summary_of(summary),
        "snapshots": snapshots,
        "diffs": compare(read, inputs.compare),
        "notice": NOTICE,
    }
    return TaskOutcome(msgspec.json.encode(result), summary=summary, failures=failures)


def compare(pages: Sequence[tuple[str, Extract]], how: wire.Compare) -> list[dict[str, Any]]:
    """A difference for each field in which the pages are not all alike."""
    differences = {
        wire.CompareField.TITLE: _titles,
        wire.CompareField.ELEMENT_COUNT: _element_counts,
        wire.CompareField.TOP_SECTIONS: _top_sections,
    }
    numbered = _numbered(pages)
    found = [differences[name](numbered, how) for name in dict.fromkeys(how.fields)]
    return [difference for difference in found if difference is not None]


def _numbered(pages: Sequence[tuple[str, Extract]]) -> list[tuple[str, Extract]]:
    """Values go by the URL: the second look at one has a number after it."""
    times: Counter[str] = Counter()
    named: list[tuple[str, Extract]] = []
    for url, looked in pages:
        times[url] += 1
        named.append((f"{url} ({times[url]})" if times[url] > 1 else url, looked))
    return named


def _titles(pages: Sequence[tuple[str, Extract]], _: wire.Compare) -> dict[str, Any] | None:
    values = {url: looked.title for url, looked in pages}
    if len(set(values.values())) < 2:
        return None
    return {"field": wire.CompareField.TITLE.value, "values": values}


def _element_counts(
    pages: Sequence[tuple[str, Extract]], how: wire.Compare
) -> dict[str, Any] | None:
    values = {url: looked.element_count for url, looked in pages}
    if not values:
        return None
    delta = max(values.values()) - min(values.values())
    if delta <= how.numeric_tolerance:
        return None
    return {"field": wire.CompareField.ELEMENT_COUNT.value, "values": values, "delta": delta}


def _top_sections(pages: Sequence[tuple[str, Extract]], how: wire.Compare) -> dict[str, Any] | None:
    values = {url: list(looked.top_sections[: how.top_sections]) for url, looked in pages}
    changed = [
        position
        for position in range(max(map(len, values.values()), default=0))
        if len({tuple(texts[position : position + 1]) for texts in values.values()}) > 1
    ]
    if not changed:
        return None
    return {
        "field": wire.CompareField.TOP_SECTIONS.value,
        "values": values,
        "changedPositions": changed,
    }


TEMPLATE = Template(
    id="multi_tab_compare",
    description="Read up to ten pages and list the differences in title, elements and sections.",
    inputs=wire.MultiTabCompare,
    output=wire.CompareResult,
    run=run,
    level=Level.READ,
    only_reads=True,
    steps=lambda inputs: len(inputs.urls),
)
