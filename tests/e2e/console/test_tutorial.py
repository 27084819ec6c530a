"""docs/tutorial.md, followed word for word in a real browser."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.e2e.forked import toolgate
from tests.e2e.harness import Program, environment
from tests.support.engines import need

pytestmark = pytest.mark.asyncio(loop_scope="module")

TUTORIAL = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text(encoding="utf-8")
# What it says to an agent, in its order; the last stands in a sentence.
LOOK, WRITE, BROWSE = re.findall(r"```text\n(.*\[\[tool:.*\]\])\n```", TUTORIAL)
(DESTROY,) = re.findall(r"`(\[\[tool:shell [^`]*rm -rf[^`]*\]\])`", TUTORIAL)


async def verify(program: Program) -> tuple[int, str]:
    words = ("evidence", "verify", str(program.home))
    ended = await asyncio.to_thread(toolgate, *words, env=environment({}))
    return ended.returncode, ended.stdout + ended.stderr


async def test_the_tutorial_does_what_it_says(page: Page, program: Program) -> None:
    need("bwrap")
    await page.goto(program.urls["console"])
    nav = page.get_by_role("navigation")
    await nav.get_by_role("link", name="Chat").click()
    await expect(page.get_by_text("Connected")).to_be_visible()
    box, last = page.get_by_role("textbox", name="Message"), page.locator(".bubble").last
    for message, answer in ((LOOK, "Linux"), (WRITE, "The policy asks a person")):
        await box.fill(message)
        await box.press("Enter")
        await expect(last).to_contain_text(answer)
    await nav.get_by_role("link", name="Approvals").click()
    await expect(page.get_by_role("article")).to_contain_text("writes-ask")
    await expect(page.get_by_role("article")).to_contain_text("2026.11")
    await page.wait_for_timeout(500)  # a key pressed at once is not taken: it may be for another
    await page.keyboard.press("a")
    await page.get_by_role("table", name="Decided lately").get_by_role("link").first.click()
    await expect(page.locator(".timeline .call")).to_contain_text("by operator")
    await nav.get_by_role("link", name="Chat").click()
    for message, answer in ((DESTROY, "It cannot be undone"), (BROWSE, "The gate")):
        await box.fill(message)
        await box.press("Enter")
        await expect(last).to_contain_text(answer, timeout=30_000)
    await nav.get_by_role("link", name="Browser tasks").click()
    await expect(page.get_by_role("table")).to_contain_text("Succeeded")
    await nav.get_by_role("link", name="Evidence").click()
    await page.get_by_role("button", name="Verify everything").click()
    await expect(page.get_by_text("exactly as they were recorded")).to_be_visible()
    await page.get_by_role("button", name="Verify", exact=True).first.click()
    await expect(page.get_by_role("dialog")).to_contain_text("Checked in this browser")
    assert await program.stop() == 0
    code, said = await verify(program)
    assert (code, said.split(":")[0]) == (0, "verified")
    tile = next(path for path in sorted((program.home / "evidence").rglob("*")) if path.is_file())
    changed = bytearray(tile.read_bytes())
    changed[len(changed) // 2] ^= 1
    tile.write_bytes(changed)
    code, said = await verify(program)
    assert code == 1
    assert tile.name in said
