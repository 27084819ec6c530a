"""An operator's day in a real browser, against the installed program."""

import json
import re

import aiohttp
import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.e2e.console.conftest import TOKEN, Ask, gateway, link_of, status_of
from tests.e2e.harness import Client, Program
from tests.support.engines import need

pytestmark = pytest.mark.asyncio(loop_scope="module")

WANTS_TO_WRITE = 'Noting it. [[tool:kv.set {"key": "greeting", "value": "hello"}]] Noted.'
VIEWS = {
    "": "Overview",
    "/runs": "Runs",
    "/approvals": "Approvals",
    "/chat": "Chat",
    "/devices": "Devices and pairing",
    "/capabilities": "Capabilities",
    "/targets": "Execution targets",
    "/policy": "Policy",
    "/audit": "Audit",
    "/evidence": "Evidence",
    "/tasks": "Browser tasks",
}
# What a screen reader would have no name for.
NAMELESS = """[...document.querySelectorAll('input,select,textarea,button,a,img')].filter((node) =>
  !(node.getAttribute('aria-label') || node.labels?.length || node.textContent.trim() ||
    node.hasAttribute('alt'))).map((node) => node.outerHTML)"""
# Boxes that are wider inside than outside, and so hide something at their right edge.
CUT_OFF = """[...document.querySelectorAll('.table-box,.card,.actions,.page-head,.filters')].filter(
  (node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.outerHTML.slice(0, 200))"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def test_the_printed_link_signs_in_once(program: Program, browser: Browser) -> None:
    link = await link_of(program)
    first = await browser.new_context()
    page = await first.new_page()
    await page.goto(link)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert "code=" not in page.url
    cookie = (await first.cookies())[0]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    second = await browser.new_context()
    page = await second.new_page()
    await page.goto(link)
    await expect(page.get_by_role("alert")).to_contain_text("used already")
    await page.get_by_label("The operator's token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    await first.close()
    await second.close()


async def test_a_call_that_asks_is_approved_by_one_key_press_and_seen_to_end(
    page: Page, program: Program, ask: Ask
) -> None:
    await page.goto(f"{program.urls['console']}/approvals")
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    client = await ask(WANTS_TO_WRITE)
    waiting = page.get_by_role("article")
    await expect(waiting).to_contain_text("kv.set")  # it came by itself
    await expect(waiting).to_contain_text('"value": "hello"')
    await expect(waiting).to_contain_text("agent:script")
    await expect(waiting).to_contain_text("writes-ask")
    await expect(waiting).to_contain_text("expires in")
    await waiting.get_by_role("link", name="the run").click()
    await expect(page.locator(".timeline .call")).to_contain_text("Waiting for approval")
    await page.keyboard.press("g")
    await page.keyboard.press("a")
    await expect(waiting).to_be_visible()
    await page.wait_for_timeout(500)  # a key pressed at once is not taken: it may be for another
    await page.keyboard.press("a")
    heard = await client.hear_until("done", "error")
    assert heard[-1]["type"] == "done"
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    await page.get_by_role("table", name="Decided lately").get_by_role("link").first.click()
    await expect(page.locator(".timeline .call")).to_contain_text("Succeeded")
    await expect(page.locator(".timeline .call")).to_contain_text("by operator")
    await expect(page.locator(".page-head")).to_contain_text("Done")


HIDDEN_TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


async def test_what_is_hidden_in_a_call_is_revealed_before_it_is_approved(
    page: Page, program: Program
) -> None:
    text = f"true authorization: x ; touch PWN {HIDDEN_TOKEN} \u202e" + "x" * 5_000 + "; its end"
    operator = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as http:
        url, wanted = program.urls["gateway"], {"name": "hides", "scope": {"tools": "write"}}
        async with http.post(f"{url}/tokens", json=wanted, headers=operator) as made:
            token = (await made.json())["data"]["token"]
        call = {"payload": {"name": "kv.set", "args": {"key": "k", "value": text}}}
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "hides"}
        assert (
            await status_of(http, "POST", f"{url}/command/tool", json=call, headers=headers) == 202
        )
    await page.goto(f"{program.urls['console']}/approvals")
    waiting = page.get_by_role("article")
    await expect(waiting).to_contain_text(
        "true authorization: x ; touch PWN [hidden: 40 characters]"
    )
    await expect(waiting).to_contain_text("<U+202E>xxx")
    await expect(waiting.locator("pre")).to_contain_text("; its end")
    await expect(waiting).to_contain_text("40 characters are hidden")
    approve = waiting.get_by_role("button", name="Approve")
    await expect(approve).to_be_disabled()
    await page.wait_for_timeout(500)  # then a key is taken, as in the test before
    await page.keyboard.press("a")
    await waiting.get_by_role("button", name="Reveal").click()
    await expect(waiting.locator("pre")).to_contain_text(f"touch PWN {HIDDEN_TOKEN} <U+202E>")
    await expect(approve).to_be_enabled()
    await approve.click()
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    await page.goto(f"{program.urls['console']}/audit")
    await expect(page.get_by_role("table").first).to_contain_text("approval.reveal")


async def test_a_rejection_carries_its_reason_to_the_client(
    page: Page, program: Program, ask: Ask
) -> None:
    await page.goto(f"{program.urls['console']}/approvals")
    client = await ask(WANTS_TO_WRITE)
    await page.get_by_role("textbox", name="Reason").fill("not today")
    await page.get_by_role("button", name="Reject").click()
    heard = await client.hear_until("done", "error")
    said = "".join(one.get("text", "") for one in heard)
    assert "not today" in said


async def test_the_chat_speaks_the_contract_and_comes_back_after_a_cut(
    page: Page, context: BrowserContext, program: Program
) -> None:
    sockets: list[object] = []
    page.on("websocket", lambda opened: sockets.append(opened))
    await page.goto(f"{program.urls['console']}/chat")
    await expect(page.get_by_text("Connected")).to_be_visible()
    box = page.get_by_role("textbox", name="Message")
    await box.fill('hello [[tool:math.add {"a": 2, "b": 40}]]')
    await box.press("Enter")
    await expect(page.locator(".bubble").last).to_contain_text("math.add: 42")
    await program.kill()
    await expect(page.get_by_text("Connecting…").first).to_be_visible()
    program.settings |= {
        name: program.urls[url].rpartition(":")[2].removesuffix("/ws")
        for name, url in {"WS_PORT": "ingress_ws", "GATEWAY_PORT": "gateway"}.items()
    }
    await program.start()
    await expect(page.get_by_text("Connected")).to_be_visible(timeout=15_000)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=15_000)
    await box.fill(WANTS_TO_WRITE)
    await box.press("Enter")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator(".bubble").last).to_contain_text("Noted.")
    assert len(sockets) >= 2


async def test_a_run_streams_into_its_page_and_can_be_cancelled(
    page: Page, program: Program, ask: Ask
) -> None:
    client = await ask(WANTS_TO_WRITE)
    heard = await client.hear_until("approval_required")
    await page.goto(f"{program.urls['console']}/runs/{heard[0]['run_id']}")
    await expect(page.locator(".timeline .call")).to_contain_text("A person is asked.")
    await page.get_by_role("button", name="Cancel the run").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    await expect(page.locator(".page-head")).to_contain_text("Cancelled")
    assert (await client.hear_until("done", "error"))[-2]["state"] == "CANCELLED"


async def test_what_a_hostile_agent_says_is_text_and_breaks_nothing(
    page: Page, program: Program, ask: Ask
) -> None:
    hostile = (
        "<img src=x onerror=window.broken=1><script>window.broken=1</script>"
        "\u001b[31mred\u001b[0m \u202egnp.exe\u202c " + "x" * 40_000
    )
    client = await ask(hostile + " [[tool:echo " + json.dumps({"text": hostile[:9_000]}) + "]]")
    heard = await client.hear_until("done", "error")
    await page.goto(f"{program.urls['console']}/runs/{heard[0]['run_id']}")
    await expect(page.locator(".page-head")).to_contain_text("Done")
    shown = await page.locator(".timeline").inner_text()
    assert "<script>window.broken=1</script>" in shown
    assert "red" in shown
    assert "\u001b" not in shown
    assert "\u202e" not in shown
    assert "U+202E" in shown
    assert await page.evaluate("window.broken === undefined")
    assert await page.locator(".timeline img, .timeline script").count() == 0
    assert await page.evaluate(OVERFLOW) <= 0
    await page.goto(f"{program.urls['console']}/runs")
    await expect(page.get_by_role("row").nth(1)).to_be_visible()
    assert await page.evaluate(OVERFLOW) <= 0


async def test_hostile_names_and_endless_lines_break_no_page_and_run_nowhere(
    page: Page, program: Program, session: aiohttp.ClientSession, ask: Ask
) -> None:
    hostile = "<img src=x onerror=window.broken=1>\u202egnp\u001b[2J" + "n" * 60
    headers = {"X-Device-Id": "device-" + "x" * 100, "User-Agent": "<script>broken=1</script>" * 9}
    async with aiohttp.ClientSession(headers=headers) as device:
        assert await status_of(device, "GET", f"{program.urls['gateway']}/status") == 401
    asking = await Client.connect(program.urls["ingress_ws"], user=hostile)
    call = {"key": hostile, "value": hostile * 20}
    await asking.invoke(f"[[tool:kv.set {json.dumps(call)}]]", agent="script")
    await asking.hear_until("approval_required")
    line = (
        "[[tool:shell " + json.dumps({"command": "head -c 1000000 /dev/zero | tr '\\0' x"}) + "]]"
    )
    await page.goto(f"{program.urls['console']}/chat")
    await expect(page.get_by_text("Connected")).to_be_visible()
    await page.get_by_role("textbox", name="Message").fill(line)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="The rest is in the run.")).to_be_visible()
    assert len(await page.locator(".bubble").last.inner_text()) < 25_000
    for path in ("/chat", *VIEWS):
        if path != "/chat":
            await page.goto(program.urls["console"] + path)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(OVERFLOW) <= 0, (path, width)
            assert await page.evaluate(CUT_OFF) == [], (path, width)
        assert await page.evaluate("window.broken === undefined")
        shown = await page.locator("main").inner_text()
        assert "\u001b" not in shown
        assert "\u202e" not in shown
    await asking.close()


async def test_a_line_without_end_is_cut_for_the_eye_and_kept_in_the_evidence(
    page: Page, program: Program, ask: Ask
) -> None:
    need("bwrap")
    flood = "head -c 1000000 /dev/zero | tr '\\0' x"
    client = await ask(f"[[tool:shell {json.dumps({'command': flood})}]]")
    heard = await client.hear_until("done", "error")
    await page.goto(f"{program.urls['console']}/runs/{heard[0]['run_id']}")
    output = page.get_by_label("Output", exact=True)
    await expect(output).to_contain_text("xxxx")
    assert len(await output.inner_text()) < 5_000
    assert await page.evaluate(OVERFLOW) <= 0
    await page.get_by_role("button", name=re.compile("Show all")).first.click()
    assert len(await output.inner_text()) > 50_000
    assert await page.evaluate(OVERFLOW) <= 0


async def test_a_device_knocks_and_is_paired_with_what_it_may_do(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    gateway = program.urls["gateway"]
    async with aiohttp.ClientSession() as device:
        who = {"X-Device-Id": "phone-1"}
        url = f"{gateway}/status"
        assert await status_of(device, "GET", url, headers=who) == 401
        await page.goto(f"{program.urls['console']}/devices")
        row = page.get_by_role("row").filter(has_text="phone-1")
        await row.get_by_role("button", name="Pair…").click()
        await page.get_by_label("Talk to agents").check()
        await page.get_by_role("dialog").get_by_role("button", name="Pair").click()
        token = (await page.get_by_role("dialog").locator("pre").inner_text()).strip()
        await page.get_by_role("button", name="Done").click()
        await expect(page.get_by_role("table", name="Paired devices")).to_contain_text("phone-1")
        who["X-Device-Token"] = token
        assert await status_of(device, "GET", url, headers=who) == 200


async def test_a_target_is_made_changed_and_removed_and_its_token_is_never_shown(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    await page.goto(f"{program.urls['console']}/targets")
    await page.get_by_role("button", name="New target…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("runner-1")
    address = dialog.get_by_label("Address")
    await expect(address).to_have_attribute("placeholder", re.compile("/execute$"))
    await address.fill("http://127.0.0.1:18081/execute")
    await dialog.get_by_label("Token").fill("a-secret-token-of-a-runner")
    await dialog.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="runner-1")
    await expect(row).to_contain_text("••••••")
    answer = await session.get(gateway(program, "/execution-targets"))
    assert "a-secret-token-of-a-runner" not in await answer.text()
    await row.get_by_role("button", name="Edit…").click()
    await dialog.get_by_label("Enabled").uncheck()
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("Disabled")
    await expect(row).to_contain_text("••••••")
    await row.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)


async def test_a_policy_is_checked_simulated_and_put_in_force(
    page: Page, program: Program, ask: Ask
) -> None:
    await (await ask('[[tool:math.add {"a": 1, "b": 2}]]')).hear_until("done")
    await page.goto(f"{program.urls['console']}/policy")
    text = page.get_by_role("textbox", name="The policy")
    before = await text.input_value()
    await text.fill(before.replace("default: deny", "default: allow"))
    await page.get_by_role("button", name="Check").click()
    await expect(page.get_by_role("alert")).to_contain_text("default")
    stricter = before.replace(
        "rules:\n",
        "rules:\n  - {id: no-sums, deny: math.add, match: any, reason: Count yourself}\n",
        1,
    ).replace("      - {call: math.add, args: {a: 1, b: 2}}\n", "")
    await text.fill(stricter)
    await page.get_by_role("button", name="Simulate").click()
    await expect(page.get_by_role("table", name="Changes")).to_contain_text("no-sums")
    await page.get_by_role("button", name="Activate…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Activate").click()
    await expect(page.get_by_role("table", name="Rules")).to_contain_text("no-sums")
    heard = await (await ask('[[tool:math.add {"a": 1, "b": 2}]]')).hear_until("done")
    assert "Count yourself" in "".join(one.get("text", "") for one in heard)


async def test_the_audit_pages_through_its_rows(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    for _ in range(60):
        url = gateway(program, "/execution-targets/target_local_default")
        assert await status_of(session, "PUT", url, json={"enabled": True}) == 200
    await page.goto(f"{program.urls['console']}/audit")
    first = page.get_by_role("row").nth(1).get_by_role("cell").first
    newest = int(await first.inner_text())
    await page.get_by_role("button", name="Older").click()
    await expect(first).to_have_text(str(newest - 50))
    await page.get_by_role("button", name="Newer").click()
    await expect(first).to_have_text(str(newest))
    await page.get_by_label("Decision").select_option("deny")
    await expect(page.get_by_role("row").nth(1)).to_contain_text("Deny")
    await expect(page.get_by_text("target.upserted")).to_have_count(0)


async def test_evidence_is_verified_by_the_server_and_by_the_browser_itself(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/evidence")
    await page.get_by_role("button", name="Verify everything").click()
    await expect(page.get_by_text("Verified:")).to_contain_text("exactly as they were recorded")
    await page.get_by_role("button", name="Verify", exact=True).nth(3).click()
    await expect(page.get_by_role("dialog")).to_contain_text("Checked in this browser")


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_every_page_fits_at_desktop_and_phone_width_in_both_languages(
    page: Page, program: Program, language: str
) -> None:
    await page.add_init_script(f"localStorage.setItem('toolgate.lang', '{language}')")
    for path, title in VIEWS.items():
        await page.goto(program.urls["console"] + path)
        heading = page.get_by_role("heading", level=1)
        chinese = re.compile(r"[\u4e00-\u9fff]")
        await expect(heading).to_have_text(title if language == "en" else chinese)
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(OVERFLOW) <= 0, (path, width)
            assert await page.evaluate(CUT_OFF) == [], (path, width)
        assert await page.evaluate(NAMELESS) == [], path
