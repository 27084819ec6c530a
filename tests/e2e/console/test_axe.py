"""axe-core (npm) on every page, with something on it, in both themes, languages and widths."""

from typing import Literal

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.console.conftest import Ask, gateway, status_of
from tests.e2e.console.test_story import VIEWS, WANTS_TO_WRITE
from tests.e2e.harness import Program
from tests.support.npm import npm_file

pytestmark = pytest.mark.asyncio(loop_scope="module")

READS_A_PAGE = {
    "templateId": "batch_extract_pages",
    "inputs": {"urls": ["http://nowhere.invalid/"]},
}
RUN = "axe.run({resultTypes: ['violations']}).then((result) => result.violations)"


async def violations(page: Page) -> list[tuple[str, ...]]:
    """What is serious or worse on this page: where, what, in what."""
    await page.evaluate(npm_file("axe-core/axe.min.js").read_text(encoding="utf-8"))
    return [
        (page.url, one["id"], *(node["html"] for node in one["nodes"][:3]))
        for one in await page.evaluate(RUN)
        if one["impact"] in {"serious", "critical"}
    ]


# Every two of them meet: each theme, language and width with each of the others.
@pytest.mark.parametrize(
    ("theme", "language", "width"),
    [("light", "en", 1280), ("light", "zh", 390), ("dark", "en", 390), ("dark", "zh", 1280)],
)
async def test_axe_finds_no_serious_violation(
    page: Page,
    program: Program,
    session: aiohttp.ClientSession,
    ask: Ask,
    theme: str,
    language: str,
    width: int,
) -> None:
    assert await status_of(session, "POST", gateway(program, "/tasks"), json=READS_A_PAGE) == 200
    await ask(WANTS_TO_WRITE)
    console = program.urls["console"]
    await page.add_init_script(
        f"localStorage.setItem('toolgate.theme', '{theme}');"
        f"localStorage.setItem('toolgate.lang', '{language}')"
    )
    await page.set_viewport_size({"width": width, "height": 800})
    await page.goto(f"{console}/approvals")
    run = await page.get_by_role("article").get_by_role("link").first.get_attribute("href")
    await page.goto(f"{console}/tasks")
    task = await page.get_by_role("table").get_by_role("link").first.get_attribute("href")
    assert run
    assert task
    wrong = []
    for path in [*VIEWS, *(one.removeprefix("/console") for one in (run, task)), "/nowhere"]:
        await page.goto(console + path)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        wrong += await violations(page)
    assert not wrong


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_serious_violation_where_one_signs_in(
    browser: Browser, program: Program, theme: Literal["light", "dark"]
) -> None:
    stranger = await browser.new_context(color_scheme=theme, reduced_motion="reduce")
    page = await stranger.new_page()
    await page.goto(program.urls["console"])
    await expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert await violations(page) == []
    await stranger.close()


DIALOGS = {
    "/capabilities": "Register a capability…",
    "/devices": "New token for a script…",
    "/targets": "New target…",
    "/tasks": "New browser task…",
    "/runs": "Keys",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_serious_violation_in_a_dialog(
    page: Page, program: Program, theme: str
) -> None:
    await page.add_init_script(f"localStorage.setItem('toolgate.theme', '{theme}')")
    wrong = []
    for path, opens in DIALOGS.items():
        await page.goto(program.urls["console"] + path)
        await page.get_by_role("button", name=opens, exact=True).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        wrong += await violations(page)
    assert not wrong
