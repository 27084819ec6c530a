"""What an operator sets up in the console: servers, tokens, browser tasks; in a real browser."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, expect

from tests.e2e.console.conftest import TOKEN, Ask, gateway, status_of
from tests.e2e.harness import Program

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = Path(__file__).parents[2] / "tools" / "upstream" / "servers" / "server.py"
SECRET = "a-secret-of-the-mcp-server"
SAMPLE = "http://pages.toolgate.example/"


def text_of(heard: list[dict[str, Any]]) -> str:
    return "".join(one.get("text", "") for one in heard)


async def test_an_mcp_server_is_registered_called_and_removed_and_its_secret_is_never_shown(
    page: Page, program: Program, session: aiohttp.ClientSession, ask: Ask
) -> None:
    await page.goto(f"{program.urls['console']}/capabilities")
    await page.get_by_role("button", name="Register a capability…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label(re.compile("^Name")).fill("mcp.docs")
    await dialog.get_by_label("Level").select_option("read")
    await dialog.get_by_label("Calls a minute").fill("30")
    await dialog.get_by_label("Server").select_option("command")
    await dialog.get_by_label("Program", exact=True).fill(sys.executable)
    await dialog.get_by_label("Arguments").fill(f"{SERVER}\nstdio")
    await dialog.get_by_label("Environment").fill("no equals sign")
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.locator("#toasts")).to_contain_text("NAME=VALUE")
    await dialog.get_by_label("Environment").fill(f"DOCS_TOKEN={SECRET}")
    await dialog.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="mcp.docs")
    await expect(row).to_contain_text("30 a minute")
    async with session.get(gateway(program, "/capabilities")) as answer:
        assert SECRET not in await answer.text()
    call = f"[[tool:mcp.docs.write {json.dumps({'text': 'over there'})}]]"
    client = await ask(call)
    await client.hear_until("approval_required")
    await page.goto(f"{program.urls['console']}/approvals")
    await page.get_by_role("button", name="Approve").click()
    heard = await client.hear_until("done", "error")
    assert "mcp.docs.write: wrote over there" in text_of(heard)
    await page.goto(f"{program.urls['console']}/capabilities")
    await row.get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove").click()
    await expect(row).to_have_count(0)
    client = await ask(call)
    await client.hear_until("approval_required")
    await page.goto(f"{program.urls['console']}/approvals")
    await page.get_by_role("button", name="Approve").click()
    assert "over there" not in text_of(await client.hear_until("done", "error"))


async def test_a_script_gets_a_token_in_the_console_and_loses_it_there(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/devices")
    await expect(page.get_by_text("No script has a token.")).to_be_visible()
    await page.get_by_role("button", name="New token for a script…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Make it").click()
    await expect(dialog.get_by_label("Name")).to_be_focused()  # it needs a name
    await dialog.get_by_label("Name").fill("ci")
    await dialog.get_by_label("Tools up to").select_option("write")
    await dialog.get_by_label("MCP servers").check()
    await dialog.get_by_role("button", name="Make it").click()
    token = (await dialog.locator("pre").inner_text()).strip()
    await dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("table", name="Scripts with a token").get_by_role("row").nth(1)
    await expect(row).to_contain_text("MCP servers")
    url, bearer = f"{program.urls['gateway']}/capabilities", {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=bearer) as script:
        assert await status_of(script, "GET", url) == 200
        await row.get_by_role("button", name="End").click()
        await dialog.get_by_role("button", name="End").click()
        await expect(page.get_by_text("No script has a token.")).to_be_visible()
        assert await status_of(script, "GET", url) == 401
    await page.goto(f"{program.urls['console']}/audit")
    await expect(page.get_by_role("table")).to_contain_text("token.ended")


async def test_a_browser_task_is_started_watched_seen_and_its_artifact_downloaded(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/tasks")
    await expect(page.get_by_text("No browser task has run.")).to_be_visible()
    await page.get_by_role("button", name="New browser task…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Template").select_option("screenshot_page")
    assert SAMPLE in await dialog.get_by_label("Inputs").input_value()
    await dialog.get_by_role("button", name="Start").click()
    head = page.locator(".page-head")
    await expect(head).to_contain_text("Succeeded", timeout=30_000)
    shot = page.locator("figure img")
    await expect(shot).to_be_visible()
    assert await shot.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 300
    await expect(page.get_by_label("Result")).to_contain_text("The gate")
    async with page.expect_download() as coming:
        await page.get_by_role("button", name="screenshot.png").click()
    content = (await (await coming.value).path()).read_bytes()
    assert content.startswith(b"\x89PNG")
    await page.goto(f"{program.urls['console']}/tasks")
    row = page.get_by_role("row").filter(has_text="screenshot_page")
    await expect(row).to_contain_text("Succeeded")
    await row.get_by_role("link").click()
    await expect(head).to_contain_text("Browser task")


async def test_a_task_that_may_not_go_there_says_so_and_what_to_do(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/tasks")
    await page.get_by_role("button", name="New browser task…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Template").select_option("screenshot_page")
    await dialog.get_by_label("Inputs").fill('{"url": "http://127.0.0.1:9/"}')
    await dialog.get_by_role("button", name="Start").click()
    await expect(page.locator(".page-head")).to_contain_text("Failed", timeout=30_000)
    await expect(page.locator(".notice.bad")).to_contain_text("TRUST_LEVEL_NOT_ALLOWED")


@pytest.mark.parametrize("path", ["/runs/run_that_never_was", "/tasks/run_that_never_was"])
async def test_a_page_about_what_is_not_there_says_so(
    page: Page, program: Program, path: str
) -> None:
    await page.goto(program.urls["console"] + path)
    await expect(page.get_by_role("heading", level=1)).to_have_text("This cannot be shown")
    await expect(page.get_by_role("alert")).to_contain_text("run_that_never_was")


async def test_what_waits_survives_a_lost_connection_and_is_decided_on_a_phone_in_chinese(
    page: Page, program: Program, ask: Ask
) -> None:
    await page.add_init_script("localStorage.setItem('toolgate.lang', 'zh')")
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{program.urls['console']}/approvals")
    await expect(page.get_by_text("实时")).to_be_visible()
    client = await ask('Noting it. [[tool:kv.set {"key": "k", "value": "v"}]] Noted.')
    await client.hear_until("approval_required")
    waiting = page.get_by_role("article").filter(has_text="kv.set")
    await expect(waiting).to_be_visible()
    await program.kill()
    await expect(page.get_by_text("正在连接…")).to_be_visible()
    program.settings |= {
        name: program.urls[url].rpartition(":")[2].removesuffix("/ws")
        for name, url in {"WS_PORT": "ingress_ws", "GATEWAY_PORT": "gateway"}.items()
    } | {"ON_DISCONNECT": "keep"}
    await program.start()
    await expect(page.get_by_text("实时")).to_be_visible(timeout=15_000)
    await expect(waiting).to_contain_text("kv.set")
    await waiting.get_by_role("button", name="批准").click()
    await expect(page.get_by_role("table", name="最近的决定")).to_contain_text("已批准")
    await page.get_by_role("button", name="菜单").click()
    await page.get_by_role("link", name="运行", exact=True).click()
    await expect(page.get_by_role("row").nth(1)).to_contain_text(re.compile("完成|正在运行"))


async def test_every_word_of_every_page_is_translated(page: Page, program: Program) -> None:
    await page.add_init_script("localStorage.setItem('toolgate.lang', 'zh')")
    await page.goto(f"{program.urls['console']}/runs")
    await page.get_by_role("row").nth(1).get_by_role("link").first.click()
    await expect(page.locator(".timeline")).to_be_visible()
    for path in ("", "runs", "approvals", "chat", "devices", "capabilities", "targets"):
        await page.locator(f"nav a[href='/console{'/' * bool(path)}{path}']").click()
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
    for path in ("policy", "audit", "evidence", "tasks"):
        await page.locator(f"nav a[href='/console/{path}']").click()
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
    missing = "import('/console/static/lang.js').then((lang) => [...lang.missing])"
    assert await page.evaluate(missing) == []


@pytest.mark.parametrize("name", ["lap/top", "..", "a?b#c", "%2e%2E"])
async def test_a_device_is_let_in_and_shut_out_whatever_it_calls_itself(
    page: Page, program: Program, name: str
) -> None:
    url = f"{program.urls['gateway']}/status"
    async with aiohttp.ClientSession(headers={"X-Device-Id": name}) as device:
        assert await status_of(device, "GET", url) == 401
        await page.goto(f"{program.urls['console']}/devices")
        row = page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))
        await row.get_by_role("button", name="Pair…").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Pair").click()
        token = (await dialog.locator("pre").inner_text()).strip()
        await dialog.get_by_role("button", name="Done").click()
        assert await status_of(device, "GET", url, headers={"X-Device-Token": token}) == 200
        await row.get_by_role("button", name="Revoke").click()
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(dialog).to_have_count(0)
        assert await status_of(device, "GET", url, headers={"X-Device-Token": token}) == 401


async def test_turning_a_stranger_away_leaves_the_paired_device_whose_name_it_used(
    page: Page, program: Program
) -> None:
    url = f"{program.urls['gateway']}/status"
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers={"X-Device-Id": "tablet-7"}) as device:
        assert await status_of(device, "GET", url) == 401
        approve = f"{program.urls['gateway']}/pairing/approve"
        async with device.post(approve, headers=bearer, json={"deviceId": "tablet-7"}) as answer:
            token = (await answer.json())["data"]["deviceToken"]
        assert await status_of(device, "GET", url) == 401  # whoever knocks now, without the token
        await page.goto(f"{program.urls['console']}/devices")
        rows = page.get_by_role("row").filter(has=page.get_by_text("tablet-7", exact=True))
        dialog = page.get_by_role("dialog")
        await rows.get_by_role("button", name="Turn away").click()
        await dialog.get_by_role("button", name="Turn away").click()
        await expect(rows).to_have_count(1)
        assert await status_of(device, "GET", url, headers={"X-Device-Token": token}) == 200


async def test_a_capability_with_a_name_like_a_path_is_changed_and_removed(
    page: Page, program: Program
) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    wanted = {"capabilityId": "tools/docs search", "scope": "docs", "level": "read"}
    async with aiohttp.ClientSession(headers=bearer) as operator:
        url = f"{program.urls['gateway']}/capabilities/register"
        assert await status_of(operator, "POST", url, json=wanted) == 200
    await page.goto(f"{program.urls['console']}/capabilities")
    row = page.get_by_role("row").filter(has_text="tools/docs search")
    await row.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Calls a minute").fill("7")
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("7 a minute")
    await row.get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove").click()
    await expect(row).to_have_count(0)


async def test_a_call_of_the_executor_links_to_no_run_for_it_has_none(
    page: Page, program: Program, ask: Ask
) -> None:
    client = await ask('[[tool:math.add {"a": 1, "b": 2}]]')
    await client.hear_until("done", "error")
    bearer = {"Authorization": f"Bearer {(program.home / 'executor.token').read_text().strip()}"}
    call = {"request_id": "by-a-service", "tool_id": "kv.set", "args": {"key": "k", "value": "v"}}
    async with aiohttp.ClientSession(headers=bearer) as service:
        await status_of(service, "POST", f"{program.urls['gateway']}/tool/run", json=call)
        call |= {"request_id": "reads", "tool_id": "math.add", "args": {"a": 1, "b": 2}}
        await status_of(service, "POST", f"{program.urls['gateway']}/tool/run", json=call)
    await page.goto(f"{program.urls['console']}/approvals")
    waiting = page.get_by_role("article").filter(has_text="kv.set")
    await expect(waiting).to_be_visible()
    await expect(waiting.get_by_role("link")).to_have_count(0)
    await waiting.get_by_role("button", name="Reject").click()
    lately = page.get_by_role("table", name="Decided lately").get_by_role("row").nth(1)
    await expect(lately).to_contain_text("Rejected")
    await expect(lately.get_by_role("link")).to_have_count(0)
    await page.goto(f"{program.urls['console']}/audit?action=tool.run")
    calls = page.get_by_role("row").filter(has_text="math.add")
    await expect(calls.nth(0).get_by_role("link")).to_have_count(0)
    await calls.nth(1).get_by_role("link").click()
    await expect(page.locator(".timeline")).to_be_visible()
