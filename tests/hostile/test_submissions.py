"""Reading tasks under the shipped policy: none of them sends a form, whatever the page does."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.hostile.submissions import ALLOWED, ATTACKS, Attack
from tests.tasks.conftest import QUICK
from tests.tasks.runtimes import a_toolset, get, run
from tests.tasks.site import Site
from toolgate.browser.chromium import KNOWN
from toolgate.browser.system_browser import SystemBrowser
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="module")
START = frozenset({"search_extract", "paginated_extract"})


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    if not any(shutil.which(name) for name in KNOWN):
        pytest.skip("there is no Chromium on this machine")
    browser = SystemBrowser(QUICK)
    place: Path = tmp_path_factory.mktemp("submissions")
    async with a_toolset(place, browser=browser, catalog=load_templates()) as toolset:
        yield toolset
    await browser.close()


async def attempt(toolset: Toolset, attack: Attack, site: Site) -> tuple[int, list[str]]:
    """POSTs that reached the site, and the codes of the items or of the run."""
    base, other = site.url(""), f"http://localhost:{site.port}"
    site.own = {path: text.replace("{other}", other) for path, text in attack.pages.items()}
    site.posts.clear()
    before = site.posted
    urls = [base + path for path in attack.urls]
    inputs = dict(attack.inputs)
    if attack.template in START:
        inputs["startUrl"] = urls[0]
    elif attack.template in {"screenshot_page", "pdf_page"}:
        inputs["url"] = urls[0]
    else:
        inputs |= {"urls": urls, "concurrency": 1}
    begun = await run(toolset, attack.template, inputs, mode="async")
    await toolset.runtime.wait(begun["runId"], timeout_s=60)
    answer = await get(toolset, begun["runId"])
    error = answer["error"] or {}
    result, details = answer["result"] or {}, error.get("details") or {}
    items = result.get("items") or details.get("items") or []
    codes = [each.get("error", each).get("errorCode", "") for each in items]
    return site.posted - before, [*codes, error.get("errorCode", "")]


@pytest.mark.requirement("004/gate/no-forms")
async def test_no_reading_task_sends_a_form(
    toolset: Toolset, site: Site, record_property: Any
) -> None:
    sent, untold = [], []
    for attack in ATTACKS:
        posts, codes = await attempt(toolset, attack, site)
        if posts:
            sent.append(attack.name)
        elif "TRUST_LEVEL_NOT_ALLOWED" not in codes and attack.name not in UNSEEN:
            untold.append((attack.name, codes))
    record_property("rounds", len(ATTACKS))
    record_property(
        "class", ("forms sent by reading tasks", len(ATTACKS), len(ATTACKS) - len(sent))
    )
    assert not sent, f"{len(sent)} of {len(ATTACKS)} got past: {sent}"
    assert "\n".join(map(str, untold)) == ""


# The page that would send may have been read by then: it is refused, and nobody is there to be told.
UNSEEN = {
    "as the page is left",
    "submitted later",
    "after a refresh",
    "in a window that a script opened",
    "a next that opens a window",
    "by a frame",
    "by a frame of another site",
    "by a frame in a frame of another site",
    "at the top by a frame",
    "by a frame without a page",
    "through a service worker of a frame's site",
}


@pytest.mark.requirement("004/gate/no-forms")
async def test_what_scripts_request_and_a_search_by_get_work(toolset: Toolset, site: Site) -> None:
    for attack in ALLOWED:
        _, codes = await attempt(toolset, attack, site)
        assert not any(codes), attack.name
