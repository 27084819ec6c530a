"""A console that an operator lives in all day, on a busy server and wherever they sit."""

import re
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.console.conftest import Ask, gateway
from tests.e2e.console.test_left_open import TELL
from tests.e2e.harness import Program

pytestmark = pytest.mark.asyncio(loop_scope="module")


def run_line(number: int) -> dict[str, Any]:
    """A run that is younger than any real one."""
    return {
        "runId": f"run_z{number:025}",
        "status": "DONE",
        "agentId": "script",
        "userId": "amara",
        "sessionId": "sess_1",
        "preview": f"run {number}",
        "code": "",
        "message": "",
        "createdAt": 1,
        "endedAt": 2,
    }


async def test_runs_that_newer_ones_push_off_the_page_are_on_the_next(
    page: Page, program: Program, ask: Ask
) -> None:
    await (await ask("the first of all")).hear_until("done")
    await page.goto(f"{program.urls['console']}/runs")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.evaluate(TELL, {"runs": [run_line(number) for number in range(120)]})
    await expect(page.locator("tbody tr")).to_have_count(100)
    async with page.expect_request("**/runs?*cursor=*") as asked:
        await page.get_by_role("button", name="Older").click()
    assert f"cursor={run_line(20)['runId']}" in (await asked.value).url
    await expect(page.get_by_text("the first of all")).to_be_visible()


async def test_what_waits_is_counted_unread_and_the_newest_count_is_shown(
    page: Page, program: Program
) -> None:
    read: list[str] = []
    page.on("request", lambda sent: read.append(sent.url) if "/approvals" in sent.url else None)
    await page.goto(f"{program.urls['console']}/runs")
    await expect(page.locator(".top .linked.on")).to_be_visible()
    held: list[Route] = []

    async def answer(route: Route) -> None:
        if held:
            await route.fulfill(json={"total": 3})
        else:
            held.append(route)

    await page.route("**/console/api/waiting", answer)
    async with page.expect_request("**/console/api/waiting"):
        await page.evaluate(TELL, {"approvals": [{}]})
    await page.evaluate(TELL, {"approvals": [{}]})
    await expect(page.locator("#waiting")).to_have_text("3")
    async with page.expect_response("**/console/api/waiting"):
        await held[0].fulfill(json={"total": 7})
    await page.evaluate("new Promise((drawn) => setTimeout(drawn, 50))")
    await expect(page.locator("#waiting")).to_have_text("3")
    await expect(page).to_have_title(re.compile(r"^\(3\) "))
    assert read == []


# As a browser is on a page that came over plain HTTP from another machine.
INSECURE = """
delete Crypto.prototype.randomUUID;
Object.defineProperty(Crypto.prototype, "subtle", { get: () => undefined });
Object.defineProperty(Navigator.prototype, "clipboard", { get: () => undefined });
"""


async def test_chat_and_evidence_work_on_a_page_from_another_machine_without_tls(
    page: Page, program: Program
) -> None:
    await page.add_init_script(INSECURE)
    await page.goto(f"{program.urls['console']}/chat")
    await expect(page.locator(".chat .linked.on")).to_be_visible()
    box = page.get_by_role("textbox", name="Message")
    await box.fill('[[tool:math.add {"a": 2, "b": 40}]]')
    await box.press("Enter")
    await expect(page.locator(".bubble").last).to_contain_text("math.add: 42")
    await page.goto(f"{program.urls['console']}/evidence")
    await page.get_by_role("button", name="Verify", exact=True).first.click()
    verdict = page.get_by_role("dialog").get_by_role("status")
    await expect(verdict).to_contain_text("toolgate evidence verify")
    await expect(verdict).not_to_contain_text("does not fit")


async def test_whoever_uses_the_keyboard_stays_where_they_are_when_news_come(
    page: Page, program: Program, ask: Ask
) -> None:
    await (await ask('a sum [[tool:math.add {"a": 2, "b": 40}]]')).hear_until("done")
    await page.goto(f"{program.urls['console']}/audit")
    row = page.locator("tbody tr").nth(1)
    number = await row.locator("td").first.text_content()
    await row.get_by_role("button", name="Details").focus()
    before = await page.locator("tbody tr").count()
    await (await ask('another [[tool:math.add {"a": 3, "b": 4}]]')).hear_until("done")
    await expect(page.locator("tbody tr")).not_to_have_count(before)
    focused = page.locator("tr", has=page.locator("button:focus"))
    await expect(focused.locator("td").first).to_have_text(number or "")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text(f"#{number}")


async def test_an_opened_checkpoint_stays_open_when_records_come(
    page: Page, program: Program, ask: Ask
) -> None:
    await page.goto(f"{program.urls['console']}/evidence")
    await page.get_by_text("The signed checkpoint").click()
    checkpoint = page.locator("details pre")
    await expect(checkpoint).to_be_visible()
    async with page.expect_response("**/evidence?*"):
        await page.evaluate(TELL, {"touched": ["evidence"]})
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    await expect(checkpoint).to_be_visible()


async def test_words_are_timed_by_the_servers_clock(page: Page, program: Program, ask: Ask) -> None:
    await (await ask("hello")).hear_until("done")
    await page.add_init_script("const then = Date.now; Date.now = () => then() + 86_400_000;")
    await page.goto(f"{program.urls['console']}/runs")
    await page.locator("tbody a").first.click()
    await expect(page.locator(".timeline li").first).to_be_visible()
    await page.evaluate(TELL, {"said": [{"position": 10**9, "text": "streaming"}]})
    step = page.locator(".timeline li", has_text="streaming")
    await expect(step).to_be_visible()
    assert " h " not in (await step.locator("time").text_content() or "")


async def test_a_policy_that_is_being_written_outlives_a_session_that_ends(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/policy")
    text = page.get_by_role("textbox", name="The policy")
    inside = await text.input_value()
    await text.press_sequentially("# mine ")
    written = await text.input_value()
    await page.get_by_role("button", name="Keys").click()  # a dialog that would cover the way in
    cookies = await page.context.cookies()
    await page.context.clear_cookies()
    await page.evaluate(
        "import('/console/static/api.js').then(({ get }) => get('~/me').catch(() => {}))"
    )
    await expect(page.get_by_label("The operator's token")).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.context.add_cookies(
        [
            {"name": one["name"], "value": one["value"], "url": program.urls["console"]}
            for one in cookies
        ]
    )
    await page.reload()
    await expect(text).to_have_value(written)
    await page.get_by_role("button", name="Discard it").click()
    await expect(text).to_have_value(inside)
    await page.reload()
    await expect(text).to_have_value(inside)


async def test_a_runner_without_an_address_is_not_said_to_be_this_machine(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    wanted = {"tenantId": "t_default", "kind": "docker-runner"}
    async with session.put(gateway(program, "/execution-targets/lab"), json=wanted) as answer:
        assert answer.status == 200
    await page.goto(f"{program.urls['console']}/targets")
    row = page.get_by_role("row").filter(has_text="docker-runner")
    await expect(row).to_be_visible()
    await expect(row).not_to_contain_text("this machine")


async def test_what_ticks_is_not_read_out_at_every_second(
    page: Page, program: Program, ask: Ask
) -> None:
    client = await ask('[[tool:kv.set {"key": "a", "value": "b"}]]')
    await client.hear_until("approval_required")
    await page.goto(f"{program.urls['console']}/approvals")
    await expect(page.get_by_text("expires in")).to_be_visible()
    live = """(node) => {
        const region = node.closest("[aria-live],[role=timer],[role=status],[role=log],[role=alert]");
        return !region || region.role === "timer";
    }"""
    assert await page.get_by_text("expires in").evaluate(live)
    await page.get_by_role("button", name="Reject").click()
    await client.hear_until("done", "error")


async def test_the_keyboard_goes_on_with_the_next_approval(
    page: Page, program: Program, ask: Ask
) -> None:
    clients = []
    for key in ("one", "two"):
        clients.append(await ask(f'[[tool:kv.set {{"key": "{key}", "value": "b"}}]]'))
        await clients[-1].hear_until("approval_required")
    await page.goto(f"{program.urls['console']}/approvals")
    await expect(page.get_by_role("article")).to_have_count(2)
    reject = page.get_by_role("button", name="Reject")
    await reject.first.press("Enter")
    await expect(page.get_by_role("article")).to_have_count(1)
    await expect(page.get_by_role("article")).to_be_focused()
    await reject.press("Enter")
    await expect(page.get_by_role("heading", name="Approvals")).to_be_focused()
    for client in clients:
        await client.hear_until("done", "error")


async def test_a_button_that_was_pressed_by_the_keyboard_can_be_pressed_again(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/policy")
    check = page.get_by_role("button", name="Check")
    await check.press("Enter")
    await expect(page.get_by_text("Well formed")).to_be_visible()
    await expect(check).to_be_focused()


async def test_a_draft_does_not_undo_what_another_has_put_in_force_since(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    await page.goto(f"{program.urls['console']}/policy")
    text = page.get_by_role("textbox", name="The policy")
    await text.press_sequentially("# mine\n")
    async with session.get(gateway(program, "/policy")) as answer:
        found = (await answer.json())["data"]
    rule = "rules:\n  - {id: theirs, deny: theirs.tool, match: any, reason: Theirs}\n"
    theirs = {"text": found["text"].replace("rules:\n", rule, 1), "over": found["version"]}
    async with session.put(gateway(program, "/policy"), json=theirs) as answer:
        assert answer.status == 200
    await page.reload()
    await expect(page.get_by_text("This is your draft")).to_be_visible()
    await page.get_by_role("button", name="Activate…").click()
    async with page.expect_response(gateway(program, "/policy")) as put:
        await page.get_by_role("button", name="Activate", exact=True).click()
    assert (await put.value).status == 400
    await page.get_by_role("button", name="Keep it").click()
    await page.get_by_role("button", name="Discard it").click()
    await expect(text).to_have_value(theirs["text"])


async def test_a_draft_over_a_changed_policy_is_put_in_force_once_they_were_compared(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    await page.goto(f"{program.urls['console']}/policy")
    text = page.get_by_role("textbox", name="The policy")
    await text.press_sequentially("# kept\n")
    mine = await text.input_value()
    async with session.get(gateway(program, "/policy")) as answer:
        found = (await answer.json())["data"]
    rule = "rules:\n  - {id: meanwhile, deny: their.tool, match: any, reason: Theirs}\n"
    theirs = {"text": found["text"].replace("rules:\n", rule, 1), "over": found["version"]}
    async with session.put(gateway(program, "/policy"), json=theirs) as answer:
        assert answer.status == 200
    await page.get_by_role("button", name="Activate…").click()
    await page.get_by_role("button", name="Activate", exact=True).click()
    await expect(page.get_by_label("Rules in force")).to_contain_text("meanwhile")
    await page.get_by_role("button", name="Keep it").click()
    await page.get_by_role("button", name="I have compared them").click()
    await expect(text).to_have_value(mine)
    await page.get_by_role("button", name="Activate…").click()
    await page.get_by_role("button", name="Activate", exact=True).click()
    await expect(page.locator("#toasts")).to_contain_text("in force")
    async with session.get(gateway(program, "/policy")) as answer:
        assert (await answer.json())["data"]["text"] == mine


async def test_an_hour_that_was_too_busy_to_be_counted_does_not_look_counted(
    page: Page, program: Program
) -> None:
    async def busy(route: Route) -> None:
        told = await (await route.fetch()).json()
        await route.fulfill(json={**told, "hour": {**told["hour"], "runs": 5000, "partial": True}})

    await page.route("**/console/api/overview", busy)
    await page.goto(program.urls["console"])
    await expect(page.get_by_role("link", name="runs in the last hour")).to_contain_text("5,000+")


async def test_a_target_that_is_set_elsewhere_comes_by_itself(
    page: Page, program: Program, session: aiohttp.ClientSession
) -> None:
    await page.goto(f"{program.urls['console']}/targets")
    await expect(page.locator(".top .linked.on")).to_be_visible()
    wanted = {"tenantId": "t_default", "kind": "docker-runner"}
    async with session.put(
        gateway(program, "/execution-targets/set-elsewhere"), json=wanted
    ) as answer:
        assert answer.status == 200
    await expect(page.get_by_role("table")).to_contain_text("set-elsewhere")


# Playwright takes the network away, and leaves open what is open: the page must hear of it.
LINKED = """async () => {
  const { live } = await import("/console/static/api.js");
  live.dispatchEvent(new CustomEvent("link", { detail: true }));
}"""


async def test_a_page_that_could_not_be_fetched_says_why_and_comes_by_itself(
    page: Page, program: Program
) -> None:
    await page.goto(program.urls["console"])
    await expect(page.locator(".top .linked.on")).to_be_visible()
    await page.context.set_offline(True)
    await page.get_by_role("link", name="Evidence").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    await page.context.set_offline(False)
    await page.evaluate(LINKED)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Evidence")


@pytest.mark.parametrize("view", ["runs", "evidence", "audit"])
async def test_a_filter_that_cannot_be_asked_for_does_not_leave_other_rows_there(
    page: Page, program: Program, ask: Ask, view: str
) -> None:
    await (await ask('[[tool:math.add {"a": 1, "b": 2}]]')).hear_until("done")
    await page.goto(f"{program.urls['console']}/{view}")
    await expect(page.locator("tbody tr").first).to_be_visible()
    await page.context.set_offline(True)
    await page.locator("main input[type=search]").fill("something else")
    await page.keyboard.press("Enter")
    await expect(page.locator(".notice.bad")).to_contain_text("The server does not answer.")
    await expect(page.locator("tbody tr")).to_have_count(0)
    await page.context.set_offline(False)
    await page.evaluate(LINKED)
    await expect(page.locator(".empty")).to_be_visible()


async def test_skipping_to_the_content_leaves_what_was_written_there(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/chat")
    box = page.get_by_role("textbox", name="Message")
    await box.fill("half a sentence")
    await page.locator(".skip").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Chat")).to_be_focused()
    await expect(box).to_have_value("half a sentence")


# Whether it is what one sees at its place.
IS_IN_FRONT = """(node) => {
  const { x, y, width, height } = node.getBoundingClientRect();
  return document.elementFromPoint(x + width / 2, y + height / 2) === node;
}"""


async def test_enter_saves_what_a_dialog_asks_for_and_a_refusal_is_in_front_of_it(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/capabilities")
    await page.get_by_role("button", name="Register a capability…").click()
    dialog = page.get_by_role("dialog")
    name = dialog.get_by_label(re.compile("^Name"))
    await name.fill("by-enter")
    await dialog.get_by_label("Server").select_option("command")
    await dialog.get_by_label(re.compile("^Mounts")).fill("nowhere")
    await name.press("Enter")
    toast = page.locator(".toast")
    await expect(toast).to_contain_text("a command or a URL")
    assert await toast.evaluate(IS_IN_FRONT)
    await dialog.get_by_label("Server").select_option("")
    await name.press("Enter")
    await expect(page.get_by_role("table")).to_contain_text("by-enter")
    await expect(dialog).to_have_count(0)
    await expect(page.locator("#toasts")).to_contain_text("Saved")
