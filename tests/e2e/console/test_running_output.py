"""A run's page shows what a tool prints while it runs, as text and without secrets."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.e2e.console.conftest import MARK, TOKEN, Ask, gateway
from tests.e2e.harness import Program, running
from tests.support.streaming_runner import StreamingRunner

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "sk-proj-a8Kd02mXq71LzR5vWc93TnYb64HsJu"
HOSTILE = "<img src=x onerror=document.title='broken'>\x1b[31mred\x1b[0m\n"
POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the test}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner() -> AsyncIterator[StreamingRunner]:
    made = StreamingRunner()
    async with made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(
    tmp_path_factory: pytest.TempPathFactory, runner: StreamingRunner
) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("console") / "home"
    policy = home.with_name("policy.yaml")
    policy.write_text(POLICY)
    async with running(home, OPERATOR_TOKEN=TOKEN, POLICY_FILE=str(policy)) as started:
        yield started


@pytest.mark.requirement("000/updates/every-surface")
async def test_a_running_call_s_output_is_shown_as_it_comes(
    page: Page, ask: Ask, program: Program, runner: StreamingRunner
) -> None:
    target = {
        "tenantId": "t_default",
        "kind": "docker-runner",
        "endpoint": runner.url,
        "isDefault": True,
    }
    url = f"{program.urls['gateway']}/execution-targets/foreign"
    put = await page.request.put(url, data=target, headers={"Authorization": f"Bearer {TOKEN}"})
    assert put.ok, await put.text()
    client = await ask('[[tool:bash.exec {"cmd": "make"}]]')
    run_id = (await client.hear_until("run_started"))[-1]["run_id"]
    runner.update("before the page was opened\n")
    await client.hear_until("state")
    await page.goto(f"{program.urls['console']}/runs/{run_id}")
    area = page.locator("li[data-call] .so-far")
    await expect(area).to_contain_text("before the page was opened")
    runner.update(HOSTILE)
    await expect(area).to_contain_text("<img src=x onerror=document.title='broken'>red")
    runner.update(f"token: {SECRET[:14]}")
    runner.update(f"{SECRET[14:]} and on\n")
    await expect(area).to_contain_text("and on")
    shown = await area.text_content() or ""
    assert SECRET[8:14] not in shown
    assert SECRET[14:] not in shown
    assert shown.count("before the page was opened") == 1
    assert await page.title() != "broken"
    await page.reload()
    await expect(area).to_contain_text("and on")
    async with asyncio.timeout(20):
        stored = await page.request.get(gateway(program, f"/runs/{run_id}/timeline"), headers=MARK)
        assert SECRET[14:] not in await stored.text()
    runner.result("built")
    await expect(page.locator("li[data-call]")).to_contain_text("built")
    await expect(area).to_have_count(0)
