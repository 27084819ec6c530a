"""A browser task that waits for a person, on the console's pages."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.e2e.console.conftest import MARK, TOKEN, gateway
from tests.e2e.harness import Program, running
from toolgate.policy.model import Effect
from toolgate.policy.refusal_texts import refusal_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: shots, ask: browser.screenshot_page, match: any, reason: A person must see it}
  - {id: reads, allow: ["browser.get_*", "browser.list_*"], match: any, reason: They read}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("console") / "home"
    policy = home.with_name("policy.yaml")
    policy.write_text(POLICY)
    settings = {"OPERATOR_TOKEN": TOKEN, "POLICY_FILE": str(policy), "CHROMIUM": "/bin/false"}
    async with running(home, **settings) as started:
        yield started


async def test_a_task_s_page_says_what_it_waits_for_and_its_operator_may_approve_it(
    page: Page, program: Program
) -> None:
    url = program.urls["console"]
    task = {"templateId": "screenshot_page", "inputs": {"url": "http://pages.toolgate.example/"}}
    headers = {**MARK, "Origin": program.urls["gateway"]}
    started = await page.request.post(gateway(program, "/tasks"), data=task, headers=headers)
    run_id = (await started.json())["data"]["runId"]
    await page.goto(f"{url}/tasks/{run_id}")
    text = refusal_text(
        tool="browser.screenshot_page",
        rule_id="shots",
        reason="A person must see it",
        effect=Effect.ASK,
        approval_id=f"apr_{run_id}",
    )
    await expect(page.get_by_text(text)).to_be_visible()
    await page.locator(".notice").get_by_role("link", name="Approvals").click()
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("cell", name="operator (console) (own call)")).to_be_visible()
    await page.goto(f"{url}/tasks/{run_id}")
    await expect(page.get_by_text("EXECUTION_ERROR")).to_be_visible()
    await expect(page.get_by_text(text)).to_have_count(0)
