"""Seed 000 §9, as a person does it: console, gateway, mock runner, audit.query, in a real browser."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.e2e.console.conftest import TOKEN
from tests.e2e.forked import fork
from tests.e2e.harness import ANY_PORT, PATIENCE, Program, environment, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNNER_TOKEN = "token-of-the-runner"
POLICY = """\
version: 1
name: check
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    place = tmp_path_factory.mktemp("seed")
    (place / "policy.yaml").write_text(POLICY)
    policy = str(place / "policy.yaml")
    async with running(place / "home", OPERATOR_TOKEN=TOKEN, POLICY_FILE=policy) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    home = tmp_path_factory.mktemp("runner")
    settings = {**ANY_PORT, "RUNNER_AUTH_TOKEN": RUNNER_TOKEN, "TOOLGATE_HOME": str(home)}
    process = await fork(
        "runner", "--mock", env=environment(settings), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield json.loads(line)["urls"]["runner"]
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)


@pytest.mark.requirement("000/e2e/console-up", "000/e2e/mock-runner-hit")
@pytest.mark.requirement("000/e2e/audit-page-one", "000/e2e/audit-page-two")
async def test_calls_reach_the_mock_runner_and_the_console_and_audit_query_tell_the_same(
    page: Page, program: Program, runner: str
) -> None:
    await page.goto(f"{program.urls['console']}/targets")
    await page.get_by_role("button", name="New target…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("target_remote_runner")
    await dialog.get_by_label("Kind").select_option("docker-runner")
    await dialog.get_by_label("Address").fill(runner)
    await dialog.get_by_label("Token").fill(RUNNER_TOKEN)
    await dialog.get_by_label("Default").check()
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("row").filter(has_text="target_remote_runner")).to_contain_text(
        "default"
    )
    await page.goto(f"{program.urls['console']}/chat")
    await expect(page.get_by_text("Connected")).to_be_visible()
    box = page.get_by_role("textbox", name="Message")
    for number in range(1, 4):
        await box.fill('[[tool:bash.exec {"cmd": "printf hello"}]]')
        await box.press("Enter")
        answers = page.locator(".bubble").filter(has_text="mock-runner:bash.exec")
        await expect(answers).to_have_count(number)
    await page.get_by_role("link", name="the run").last.click()
    await expect(page.locator(".timeline .call")).to_contain_text("For the check")
    await expect(page.locator(".timeline .call")).to_contain_text("mock-runner:bash.exec")
    await page.goto(f"{program.urls['console']}/audit")
    await page.get_by_role("combobox", name="Action").fill("tool.run")
    await page.get_by_role("combobox", name="Action").press("Enter")
    await expect(page.get_by_role("cell", name="tool.run")).to_have_count(3)
    shown = await page.get_by_role("row").nth(1).get_by_role("cell").first.inner_text()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{program.urls['gateway']}/audit/query"
    async with aiohttp.ClientSession(headers=bearer) as http:
        one = {"action": "tool.run", "limit": "1"}
        async with http.get(url, params=one) as answer:
            first = (await answer.json())["data"]
        assert str(first["items"][0]["id"]) == shown
        following = {**one, "cursor": str(first["nextCursor"])}
        async with http.get(url, params=following) as answer:
            second = (await answer.json())["data"]
    assert second["items"][0]["id"] < first["items"][0]["id"]
