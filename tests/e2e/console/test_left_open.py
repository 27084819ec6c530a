"""A console that stays open: what it hears while it loads, what it keeps, and where links lead."""

import asyncio

import aiohttp
import pytest
from playwright.async_api import Browser, BrowserContext, Page, Route, expect

from tests.e2e.console.conftest import MARK, TOKEN, Ask, api
from tests.e2e.harness import INTERNAL, PATIENCE, Program

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCKS = """async () => {
  const { ago } = await import("/console/static/ui.js");
  window.ticks = 0;
  for (let n = 0; n < 50; n += 1) {
    const node = ago(Date.now());
    document.body.append(node);
    node.remove();
    Object.defineProperty(node, "isConnected", { get: () => { window.ticks += 1; return false; } });
  }
}"""
NEXT_TOLD = """async () => {
  const { live } = await import("/console/static/api.js");
  window.told = new Promise((done) => live.addEventListener("told", (event) => {
    if (event.detail.runs?.some((run) => run.status === "DONE")) done();
  }));
}"""
TELL = """async (detail) => {
  const { live } = await import("/console/static/api.js");
  live.dispatchEvent(new CustomEvent("told", { detail }));
}"""


class Held:
    """Answers of the server that come to the page only when they are let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, route: Route) -> None:
        answer = await route.fetch()
        self.asked.set()
        await self.go.wait()
        await route.fulfill(response=answer)


async def test_clocks_that_were_drawn_over_within_a_second_stop_ticking(
    page: Page, program: Program
) -> None:
    await page.clock.install()
    await page.goto(f"{program.urls['console']}/policy")
    await expect(page.get_by_role("heading", name="Policy")).to_be_visible()
    await page.evaluate(CLOCKS)
    await page.clock.run_for(60_000)
    await page.evaluate("window.ticks = 0")
    await page.clock.run_for(5_000)
    assert await page.evaluate("window.ticks") == 0


async def test_a_name_is_put_into_a_sentence_as_it_is(page: Page, program: Program) -> None:
    await page.goto(f"{program.urls['console']}/policy")
    said = await page.evaluate(
        """async () => (await import("/console/static/lang.js")).t(
            "{size} of {n}", { size: "$& $' $$ {n}", n: 7 })"""
    )
    assert said == "$& $' $$ {n} of 7"


async def test_a_run_that_is_told_while_the_list_loads_is_in_it(
    page: Page, program: Program, ask: Ask
) -> None:
    await page.goto(program.urls["console"])
    await expect(page.locator(".linked.on")).to_be_visible()
    await (await ask("a run before")).hear_until("done")
    await page.evaluate(NEXT_TOLD)
    held = Held()
    await page.route("**/runs?*", held)
    await page.get_by_role("link", name="Runs", exact=True).click()
    await asyncio.wait_for(held.asked.wait(), PATIENCE)
    await (await ask("a run that comes late")).hear_until("done")
    await page.evaluate("window.told")
    held.go.set()
    await expect(page.get_by_role("table")).to_contain_text("a run before")
    await expect(page.get_by_role("table")).to_contain_text("a run that comes late")


async def test_words_that_come_while_a_run_is_loaded_again_stay(
    page: Page, program: Program, ask: Ask
) -> None:
    client = await ask("words to look at")
    run_id = (await client.hear_until("done"))[-1]["run_id"]
    await page.goto(f"{program.urls['console']}/runs/{run_id}")
    await expect(page.locator("ol.timeline")).to_contain_text("words to look at")
    held = Held()
    await page.route("**/runs/*/timeline", held)
    await page.evaluate(TELL, {"runs": [{"runId": run_id}]})
    await asyncio.wait_for(held.asked.wait(), PATIENCE)
    await page.evaluate(TELL, {"said": [{"position": 10**12, "text": "late words"}]})
    async with page.expect_response("**/runs/*/timeline"):
        held.go.set()
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    await expect(page.locator("ol.timeline")).to_contain_text("words to look at")
    assert "late words" in await page.locator("ol.timeline").inner_text()


async def test_a_sign_in_link_works_in_a_tab_that_shows_the_console_already(
    browser: Browser, program: Program
) -> None:
    bearer = {**MARK, "Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{api(program)}/links", headers=bearer) as answer,
    ):
        code = (await answer.json())["code"]
    page = await browser.new_page()
    try:
        await page.goto(program.urls["console"])
        await expect(page.get_by_role("button", name="Sign in")).to_be_visible()
        await page.goto(f"{program.urls['console']}#code={code}")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert code not in page.url
    finally:
        await page.close()


async def test_a_page_that_remembers_another_journal_hears_of_this_one(
    program: Program, session: aiohttp.ClientSession, ask: Ask
) -> None:
    async with session.get(f"{api(program)}/live?after=999999999999") as stream:
        await stream.content.readline()
        await ask("something happens")
        async with asyncio.timeout(5):
            while not (await stream.content.readline()).startswith(b"data: "):
                pass


async def test_an_address_that_is_no_text_is_said_to_be_no_page(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/policy")
    await expect(page.get_by_role("heading", name="Policy")).to_be_visible()
    await page.evaluate("history.pushState(null, '', '/console/runs/%E0%A4%A')")
    await page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    await expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()


async def test_words_typed_about_an_approval_that_goes_away_decide_no_other(
    page: Page, program: Program, ask: Ask, session: aiohttp.ClientSession
) -> None:
    await ask('first [[tool:kv.set {"key": "first", "value": "1"}]]')
    await page.goto(f"{program.urls['console']}/approvals")
    cards = page.get_by_role("article")
    await expect(cards).to_have_count(1)
    await ask('second [[tool:kv.set {"key": "second", "value": "2"}]]')
    await expect(cards).to_have_count(2)
    await cards.first.get_by_role("textbox").press_sequentially("looks ")
    async with session.get(f"{api(program)}/approvals") as answer:
        first, second = (one["id"] for one in (await answer.json())["pending"])
    word = {"approve": True}
    async with session.post(f"{api(program)}/approvals/{first}/decide", json=word) as answer:
        assert answer.status == 200
    await expect(cards).to_have_count(1)
    await page.wait_for_timeout(500)  # as long as a key is not taken anyway
    await page.keyboard.type("exactly as asked")
    await page.wait_for_timeout(100)
    async with session.get(f"{api(program)}/approvals/{second}") as answer:
        assert (await answer.json())["status"] == "PENDING"
    await page.keyboard.press("j")  # but whoever looks at it can
    await expect(page.locator(".approval.selected")).to_be_visible()
    await page.wait_for_timeout(500)
    await page.keyboard.press("x")
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()


async def test_who_signs_in_again_is_told_what_waits_by_now(
    browser: Browser, program: Program, ask: Ask, session: aiohttp.ClientSession
) -> None:
    context = await browser.new_context()
    page = await context.new_page()

    async def sign_in() -> None:
        await page.get_by_label("The operator's token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()

    await page.goto(program.urls["console"])
    await sign_in()
    await expect(page.locator(".linked.on")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("The operator's token")).to_be_visible()
    await ask('meanwhile [[tool:kv.set {"key": "meanwhile", "value": "1"}]]')
    async with asyncio.timeout(PATIENCE):
        while True:
            async with session.get(f"{api(program)}/approvals") as answer:
                if waiting := (await answer.json())["pending"]:
                    break
    await sign_in()
    await expect(page.locator("#waiting")).to_have_text("1")
    path = f"{api(program)}/approvals/{waiting[0]['id']}/decide"
    async with session.post(path, json={"approve": False}) as answer:
        assert answer.status == 200
    await context.close()


async def test_a_message_that_is_too_long_for_the_ingress_is_said_to_be(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/chat")
    await expect(page.locator(".chat .linked.on")).to_be_visible()
    words = "too long " * 8_000
    await page.get_by_role("textbox", name="Message").fill(words)
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("log")).to_contain_text("longer than the ingress takes")
    await expect(page.get_by_role("textbox", name="Message")).to_have_value(words)
    await expect(page.locator(".bubble.mine")).to_have_count(0)


async def test_a_button_that_is_pressed_while_news_come_does_what_it_says(
    page: Page, program: Program, ask: Ask
) -> None:
    await (await ask('a sum [[tool:math.add {"a": 2, "b": 40}]]')).hear_until("done")
    await page.goto(f"{program.urls['console']}/evidence")
    verify = page.get_by_role("button", name="Verify", exact=True).first
    await verify.hover()
    await page.mouse.down()
    async with page.expect_response("**/evidence?*"):
        await page.evaluate(TELL, {"touched": ["evidence"]})
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    await page.mouse.up()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def test_runs_that_come_to_match_a_filter_appear_under_it(
    page: Page, program: Program, ask: Ask
) -> None:
    await page.goto(f"{program.urls['console']}/runs?status=waiting")
    await expect(page.get_by_text("No runs match.")).to_be_visible()
    clients = [await ask('the first [[tool:kv.set {"key": "k", "value": "1"}]]')]
    await expect(page.get_by_role("table")).to_contain_text("the first")
    clients.append(await ask('the second [[tool:kv.set {"key": "k", "value": "2"}]]'))
    await expect(page.get_by_role("table")).to_contain_text("the second")
    await (await ask("one that never waits")).hear_until("done")
    clients.append(await ask('the third [[tool:kv.set {"key": "k", "value": "3"}]]'))
    await expect(page.get_by_role("row").nth(1)).to_contain_text("the third")
    await expect(page.get_by_role("table")).not_to_contain_text("one that never waits")
    for client in clients:
        asked = (await client.hear_until("approval_required"))[-1]
        await client.say("cancel_run", run_id=asked["run_id"])
        await client.hear_until("done", "error")


@pytest.mark.parametrize(
    ("view", "slow", "first", "second"),
    [
        ("runs", "**/runs?*status=failed*", ("State", "failed"), ("State", "done")),
        ("audit", "**/audit/query?*decision=deny*", ("Decision", "deny"), ("Decision", "")),
    ],
)
async def test_an_answer_that_comes_late_does_not_replace_that_of_the_filter_in_force(
    page: Page,
    program: Program,
    ask: Ask,
    view: str,
    slow: str,
    first: tuple[str, str],
    second: tuple[str, str],
) -> None:
    await (await ask('found [[tool:math.add {"a": 2, "b": 40}]]')).hear_until("done")
    await page.goto(f"{program.urls['console']}/{view}")
    await expect(page.get_by_role("table")).to_be_visible()
    held = Held()
    await page.route(slow, held)
    await page.get_by_label(first[0]).select_option(first[1])
    await asyncio.wait_for(held.asked.wait(), PATIENCE)
    async with page.expect_response(slow.partition("?")[0] + "?*"):
        await page.get_by_label(second[0]).select_option(second[1])
    async with page.expect_response(slow):
        held.go.set()
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    await expect(page.get_by_role("table")).to_be_visible()


async def test_a_hostile_agents_name_is_text_where_agents_are_chosen(
    page: Page, program: Program
) -> None:
    agent = {"agent_id": "agent\u202e\u001b[2J", "endpoint": "http://127.0.0.1:9"}
    async with aiohttp.ClientSession(headers=INTERNAL) as http:
        url = f"{program.urls['orchestrator']}/internal/agents"
        async with http.post(url, json=agent) as answer:
            assert answer.status in {200, 201}
    for view in ("chat", "runs"):
        await page.goto(f"{program.urls['console']}/{view}")
        choice = page.get_by_role("combobox", name="Agent")
        await expect(choice).to_contain_text("agent")
        assert not {"\u202e", "\u001b"} & set(await choice.text_content() or "")
        await choice.select_option(agent["agent_id"])


async def test_tabs_that_nobody_sees_leave_the_connections_to_the_one_that_is_seen(
    context: BrowserContext, program: Program, ask: Ask
) -> None:
    await (await ask("something to list")).hear_until("done")
    await context.add_init_script(
        'Object.defineProperty(document, "hidden", { get: () => !window.isSeen });'
    )
    tabs = [await context.new_page() for _ in range(7)]  # a browser opens six connections to a host
    for tab in tabs[:-1]:
        await tab.goto(f"{program.urls['console']}/runs", wait_until="commit")
    await tabs[-1].add_init_script("window.isSeen = true")
    await tabs[-1].goto(f"{program.urls['console']}/runs")
    await expect(tabs[-1].get_by_role("table")).to_contain_text("something to list")
    await expect(tabs[-1].locator(".linked.on")).to_be_visible()
    await tabs[0].evaluate(
        'window.isSeen = true; document.dispatchEvent(new Event("visibilitychange"))'
    )
    await expect(tabs[0].locator(".linked.on")).to_be_visible()
    await tabs[0].evaluate(
        'window.isSeen = false; document.dispatchEvent(new Event("visibilitychange"))'
    )
    await expect(tabs[0].locator(".linked.on")).to_have_count(0)
