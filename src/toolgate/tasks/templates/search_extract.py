"""Search on a site with its own search field, then read the results or the first that is opened."""

from typing import Any

import msgspec

from toolgate.contracts import tasks_v1 as wire
from toolgate.contracts.wire import CamelWire
from toolgate.core.enums import Level
from toolgate.secrets.addresses import without_password
from toolgate.tasks.items import failure_of, item_of
from toolgate.tasks.template import (
    NOTICE,
    STEP_TIMEOUT_MS,
    TaskOutcome,
    Template,
    Work,
    locator_of,
    options_of,
    require,
)


async def run(inputs: wire.SearchExtract, work: Work) -> TaskOutcome:
    work.check(inputs.start_url)
    async with work.page() as tab:
        work.step = "open the start page"
        await tab.visit(inputs.start_url)
        work.report(1, 4)
        work.step = "fill in the search field"
        field = locator_of(inputs.search_field)
        await tab.fill(field, inputs.query, timeout_ms=STEP_TIMEOUT_MS)
        work.step = "submit the search"
        if isinstance(inputs.submit, msgspec.UnsetType):
            await tab.press(field, "Enter", timeout_ms=STEP_TIMEOUT_MS)
        else:
            await tab.click(locator_of(inputs.submit), timeout_ms=STEP_TIMEOUT_MS)
        work.report(2, 4)
        work.step = "wait for the results"
        await require(tab, inputs.wait_for_results)
        result: dict[str, Any] = {"success": True, "query": inputs.query, "resultsUrl": tab.url}
        work.report(3, 4)
        if not isinstance(inputs.open_result, msgspec.UnsetType):
            work.step = "open a result"
            await tab.click(locator_of(inputs.open_result), timeout_ms=STEP_TIMEOUT_MS)
            await tab.wait_stable(timeout_ms=STEP_TIMEOUT_MS)
            result["openedUrl"] = tab.url
        work.step = "read the page"
        looked = await tab.extract(options_of(inputs.extract))
        item = await item_of(without_password(looked.url), looked, work, inputs.extract)
        result |= {"page": item, "success": item["success"]}
    return TaskOutcome(
        msgspec.json.encode({**result, "notice": NOTICE}),
        success=item["success"],
        failures=[] if item["success"] else [failure_of(item)],
        message="" if item["success"] else item["error"]["message"],
    )


class SearchResult(CamelWire):
    success: bool
    query: str
    results_url: str
    page: wire.PageItem
    opened_url: str | msgspec.UnsetType = msgspec.UNSET


TEMPLATE = Template(
    id="search_extract",
    description="Use a site's search field and read the results, or the result that is opened.",
    inputs=wire.SearchExtract,
    output=SearchResult,
    run=run,
    level=Level.READ,
    steps=lambda _: 4,
)
