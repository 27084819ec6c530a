"""The chat against an ingress that is cut off, interrupted or restored, as the contract lets it be."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, WebSocketRoute, expect

from tests.e2e.harness import PATIENCE, Program

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACK = {"type": "hello_ack", "ts": 1, "session_id": "sess_1", "epoch": "e1"}
STARTED = {"type": "run_started", "ts": 1, "run_id": "run_1", "agent_id": "script"}

LINKED = """async () => {
  const { live } = await import("/console/static/api.js");
  live.dispatchEvent(new CustomEvent("link", { detail: true }));
}"""


class Ingress:
    """One that the test plays: each connection, and what the page says over it."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[WebSocketRoute] = asyncio.Queue()
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.socket: WebSocketRoute

    def accept(self, socket: WebSocketRoute) -> None:
        socket.on_message(lambda text: self.said.put_nowait(json.loads(text)))
        self.opened.put_nowait(socket)

    async def hello(self, **ack: Any) -> dict[str, Any]:
        """The next connection, and its hello, which is answered so."""
        async with asyncio.timeout(PATIENCE):
            self.socket = await self.opened.get()
        hello = await self.hear("hello")
        self.say(ACK, **ack)
        return hello

    async def hear(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            said = await self.said.get()
        assert said["type"] == kind
        return said

    def say(self, what: dict[str, Any], /, **members: Any) -> None:
        self.socket.send(json.dumps(what | members))

    def tell(self, kind: str, seq: int, **members: Any) -> None:
        """An event of the run."""
        self.say({"type": kind, "ts": 1, "run_id": "run_1", "seq": seq}, **members)


async def talking(page: Page, program: Program) -> Ingress:
    ingress = Ingress()
    await page.route_web_socket("**/ws", ingress.accept)
    await page.goto(f"{program.urls['console']}/chat")
    await ingress.hello()
    await expect(page.locator(".chat .linked.on")).to_be_visible()
    return ingress


async def send(page: Page, ingress: Ingress, words: str) -> str:
    box = page.get_by_role("textbox", name="Message")
    await box.fill(words)
    await box.press("Enter")
    request: str = (await ingress.hear("agent_invoke"))["request_id"]
    return request


async def test_words_that_were_taken_back_are_gone(page: Page, program: Program) -> None:
    ingress = await talking(page, program)
    request = await send(page, ingress, "hello")
    ingress.say(STARTED, seq=1, request_id=request)
    ingress.tell("delta", 2, text="So it is ")
    ingress.tell("delta", 3, text="wrong 🙂")
    ingress.tell("state", 4, state="RUNNING", detail={"retracted_characters": len("wrong 🙂")})
    ingress.tell("delta", 5, text="right")
    await expect(page.locator(".bubble").last).to_have_text("So it is right")


async def test_a_message_that_is_sent_while_there_is_no_connection_is_said_over_the_next(
    page: Page, program: Program
) -> None:
    ingress, is_shut, refused = Ingress(), True, asyncio.Event()

    async def accept(socket: WebSocketRoute) -> None:
        if is_shut:
            await socket.close(code=1013)
            refused.set()
        else:
            ingress.accept(socket)

    await page.route_web_socket("**/ws", accept)
    await page.goto(f"{program.urls['console']}/chat")
    await asyncio.wait_for(refused.wait(), PATIENCE)
    box = page.get_by_role("textbox", name="Message")
    await box.fill("hello")
    await box.press("Enter")
    await expect(page.locator(".bubble.mine")).to_have_text("hello")
    is_shut = False
    await ingress.hello()
    assert (await ingress.hear("agent_invoke"))["message"]["content"] == "hello"


async def test_the_chat_is_back_as_soon_as_the_server_is_and_not_at_its_next_try(
    page: Page, program: Program
) -> None:
    await page.clock.install()
    ingress = await talking(page, program)
    await page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))  # no try of its own
    await ingress.socket.close(code=1012)
    await expect(page.locator(".chat .linked.on")).to_have_count(0)
    await page.evaluate(LINKED)
    await ingress.hello(resumed=True)
    await expect(page.locator(".chat .linked.on")).to_be_visible()


async def test_a_message_is_not_lost_with_the_connection_that_carried_it(
    page: Page, program: Program
) -> None:
    ingress = await talking(page, program)
    request = await send(page, ingress, "do not lose this")
    await ingress.socket.close(code=1011)
    await ingress.hello(resumed=True)
    assert (await ingress.hear("agent_invoke"))["request_id"] == request
    await page.reload()  # nor with the page
    await ingress.hello(resumed=True)
    again = await ingress.hear("agent_invoke")
    assert (again["request_id"], again["message"]["content"]) == (request, "do not lose this")
    ingress.say(STARTED, seq=1, request_id=request)
    ingress.tell("delta", 2, text="not lost")
    await expect(page.locator(".bubble")).to_have_text(["do not lose this", "not lost"])
    await ingress.socket.close(code=1011)
    assert (await ingress.hello(resumed=True))["last_seq"] == 2
    await send(page, ingress, "another")  # the first is heard: it is not said a third time


async def test_a_decision_is_said_again_until_the_run_goes_on(page: Page, program: Program) -> None:
    ingress = await talking(page, program)
    request = await send(page, ingress, "may I?")
    ingress.say(STARTED, seq=1, request_id=request)
    asked = {"approval_id": "ap_1", "tool_name": "kv.set", "args_summary": "kv.set a"}
    ingress.tell("approval_required", 2, **asked)
    await page.get_by_role("button", name="Approve").click()
    await ingress.hear("approval_decision")
    await ingress.socket.close(code=1011)
    await ingress.hello(resumed=True)
    again = await ingress.hear("approval_decision")
    assert (again["approval_id"], again["decision"]) == ("ap_1", "approve")
    ingress.tell("delta", 3, text="thanks")
    await expect(page.locator(".bubble").last).to_have_text("thanks")
    await ingress.socket.close(code=1011)
    await ingress.hello(resumed=True)
    await send(page, ingress, "go on")


async def test_a_run_that_only_a_snapshot_tells_of_is_shown_and_goes_on(
    page: Page, program: Program
) -> None:
    ingress = await talking(page, program)
    request = await send(page, ingress, "hello")
    ingress.say(STARTED, seq=500, request_id=request)
    await expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    await ingress.socket.close(code=1011)
    await ingress.hello(resumed=False, seq=300, epoch="e2")  # restored from an older copy
    await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    ingress.say({"type": "state", "ts": 1, "run_id": "run_2", "state": "RUNNING"})
    ingress.say({"type": "delta", "ts": 1, "run_id": "run_2", "seq": 301, "text": "I go on"})
    await expect(page.locator(".bubble").last).to_have_text("I go on")
    await page.get_by_role("button", name="Cancel").click()
    assert (await ingress.hear("cancel_run"))["run_id"] == "run_2"
    ingress.say({"type": "done", "ts": 1, "run_id": "run_2", "seq": 302})
    await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


async def test_a_refusal_of_what_was_said_does_not_look_like_the_end_of_the_run(
    page: Page, program: Program
) -> None:
    ingress = await talking(page, program)
    request = await send(page, ingress, "hello")
    ingress.say(STARTED, seq=1, request_id=request)
    ingress.say({"type": "error", "ts": 1, "run_id": "run_1", "code": "busy", "message": "later"})
    await expect(page.get_by_role("log")).to_contain_text("busy: later")
    await expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    ingress.tell("error", 2, code="orchestrator_error", message="it is over")
    await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


async def test_a_message_is_sent_though_the_browser_can_keep_no_more(
    page: Page, program: Program
) -> None:
    ingress = await talking(page, program)
    await page.evaluate(
        """() => {
        const kept = JSON.parse(sessionStorage.getItem("toolgate.chat"));
        for (let n = 0; n < 81; n += 1) (kept.said ||= {})[`c_${n}`] = "x".repeat(64_000);
        sessionStorage.setItem("toolgate.chat", JSON.stringify(kept));
    }"""
    )
    await page.reload()
    await ingress.hello(resumed=True)
    await expect(page.locator(".chat .linked.on")).to_be_visible()
    await send(page, ingress, "y" * 64_000)


async def test_a_refusal_at_each_try_to_connect_is_said_once(page: Page, program: Program) -> None:
    ingress = Ingress()
    await page.route_web_socket("**/ws", ingress.accept)
    await page.goto(f"{program.urls['console']}/chat")
    for _ in range(3):
        async with asyncio.timeout(PATIENCE):
            ingress.socket = await ingress.opened.get()
        await ingress.hear("hello")
        ingress.say({"type": "error", "ts": 1, "code": "auth_failed", "message": "wrong key"})
        await ingress.socket.close(code=1008)
    await ingress.hello()
    await expect(page.get_by_text("auth_failed: wrong key")).to_have_count(1)


async def test_the_chat_follows_what_is_said_until_someone_scrolls_up(
    page: Page, program: Program
) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    ingress = await talking(page, program)
    ingress.say(STARTED, request_id="c_1", seq=1)
    ingress.tell("delta", 2, text="a long answer\n" * 100)
    approval = {"approval_id": "ap_1", "args_summary": "kv.set {}", "reason": "It writes"}
    ingress.tell("approval_required", 3, **approval)
    await expect(page.get_by_role("button", name="Approve")).to_be_in_viewport()
    log = page.get_by_role("log")
    await log.evaluate(
        "(log) => new Promise((done) => { log.onscroll = done; log.scrollTop = 0; })"
    )
    ingress.tell("delta", 4, text="more\n" * 20)
    await expect(log).to_contain_text("more")
    assert await log.evaluate("(log) => log.scrollTop") == 0


async def test_what_is_approved_in_the_chat_is_shown_to_its_end(
    page: Page, program: Program
) -> None:
    await page.goto(f"{program.urls['console']}/chat")
    box = page.get_by_role("textbox", name="Message")
    call = json.dumps({"key": "k", "value": "x" * 1000 + " and then the end"})
    await box.fill(f"Noting it. [[tool:kv.set {call}]]")
    await box.press("Enter")
    asked = page.locator(".bubble").filter(has_text="The policy asks a person")
    await expect(asked).to_contain_text("and then the end")
    await asked.get_by_role("button", name="Reject").click()
    await expect(asked.get_by_role("button")).to_have_count(0)
