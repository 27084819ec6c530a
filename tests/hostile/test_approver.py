"""What an approver is shown of hostile calls, at every surface of a running Toolgate.

One agent asks for all calls of `calls.py` at once, so that one run has an approval for each.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from click.testing import CliRunner

from tests.e2e.harness import Client, Program, running
from tests.e2e.test_no_token_is_kept import MARK
from tests.hostile.calls import (
    KNOWN,
    RUN,
    Piece,
    cases,
    hidden,
    secrets_of,
    seen,
    written,
)
from toolgate.cli import chat
from toolgate.cli.main import main
from toolgate.contracts import ingress_v1 as wire
from toolgate.evidence.check import ClosedHome
from toolgate.evidence.records import artifacts_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
CASES = cases()
ASKS = """\
version: 1
name: test
default: deny
rules:
  - {id: ask, ask: "shell", match: any, reason: For the test}
"""


@dataclass
class House:
    """A running Toolgate with an approval for each case, by its number."""

    program: Program
    client: Client
    http: aiohttp.ClientSession
    asked: dict[int, dict[str, Any]]  # as the WebSocket told of them

    async def get(self, path: str) -> Any:
        async with self.http.get(self.program.urls["gateway"] + path) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["data"]

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.http.post(self.program.urls["gateway"] + path, json=body) as answer:
            return answer.status, await answer.json()

    def name(self, number: int) -> str:
        return str(self.asked[number]["approval_id"])

    def number(self, approval_id: str) -> int:
        return next(n for n, one in self.asked.items() if one["approval_id"] == approval_id)

    def cli(self, *words: str, code: int = 0) -> str:
        at = ("--home", str(self.program.home), "--url", self.program.urls["gateway"])
        ended = CliRunner().invoke(
            main, [*words, *at, "-s", f"OPERATOR_TOKEN={KNOWN['OPERATOR_TOKEN']}"]
        )
        assert ended.exit_code == code, (ended.output, ended.exception)
        return ended.stdout if code == 0 else ended.stderr


@contextlib.asynccontextmanager
async def agent_that_asks(commands: Sequence[str]) -> AsyncIterator[str]:
    """A model's server whose first answer is a shell call for each command."""

    async def handle(request: web.Request) -> web.StreamResponse:
        said = (await request.json())["messages"]
        is_first = all(one["role"] != "tool" for one in said)
        calls = [
            {
                "index": at,
                "id": f"c{at}",
                "type": "function",
                "function": {
                    "name": "shell",
                    "arguments": json.dumps({"command": command, "case": f"n{at}"}),
                },
            }
            for at, command in enumerate(commands)
        ]
        delta: dict[str, Any] = {"tool_calls": calls} if is_first else {"content": "done"}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choice in (
            {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": "tool_calls" if is_first else "stop"},
        ):
            await response.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1#m"
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("approver")
    policy = folder / "policy.yaml"
    policy.write_text(ASKS)
    headers = {"Authorization": f"Bearer {KNOWN['OPERATOR_TOKEN']}"}
    async with (
        agent_that_asks([written(pieces) for pieces in CASES]) as model,
        running(
            folder / "home",
            TOOLGATE_MODEL=model,
            POLICY_FILE=str(policy),
            LOG_LEVEL="debug",
            **KNOWN,
        ) as program,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        client = await Client.connect(program.urls["ingress_ws"], api_key=KNOWN["API_KEY"])
        await client.invoke("go on", agent="assistant")
        asked: dict[int, dict[str, Any]] = {}
        while len(asked) < len(CASES):
            event = (await client.hear_until("approval_required", "error", "done"))[-1]
            assert event["type"] == "approval_required", event
            asked[int(event["args"]["case"][1:])] = event
        yield House(program, client, http, asked)


Show = Callable[[House], Awaitable[dict[int, Any]]]


def with_args(shown: Any, summary: str) -> Any:
    return shown["args"], shown.get("hidden", 0), shown[summary]


async def over_websocket(house: House) -> dict[int, Any]:
    return {n: with_args(one, "args_summary") for n, one in house.asked.items()}


async def in_a_snapshot(house: House) -> dict[int, Any]:
    """As a device sees them that comes to the session later."""
    late = await Client.connect(
        house.program.urls["ingress_ws"],
        api_key=KNOWN["API_KEY"],
        session_id=house.client.session_id,
        last_seq=2**53 - 1,
    )
    found: dict[int, Any] = {}
    while len(found) < len(CASES):
        one = (await late.hear_until("approval_required"))[-1]
        found[int(one["args"]["case"][1:])] = with_args(one, "args_summary")
    return found


async def listed(house: House) -> dict[int, Any]:
    page = await house.get("/approvals?status=PENDING&limit=500")
    assert "nextCursor" not in page
    return {house.number(one["approvalId"]): with_args(one, "argsSummary") for one in page["items"]}


async def one_by_one(house: House) -> dict[int, Any]:
    names = {number: house.name(number) for number in house.asked}
    shown = {number: await house.get(f"/approvals/{name}") for number, name in names.items()}
    return {number: with_args(one, "argsSummary") for number, one in shown.items()}


async def in_the_terminal(house: House) -> dict[int, Any]:
    """`toolgate approvals list --json`, and `show` for some, which prints the arguments as JSON."""
    printed = await asyncio.to_thread(house.cli, "approvals", "list", "--limit=500", "--json")
    items = [json.loads(line) for line in printed.splitlines()]
    for number in range(0, len(CASES), 9):
        text = await asyncio.to_thread(house.cli, "approvals", "show", house.name(number))
        block = text[text.index("{") : text.index("\nplace")]
        assert json.loads(block)["command"] == seen(CASES[number]), number
    return {house.number(one["approvalId"]): with_args(one, "argsSummary") for one in items}


async def in_the_console(house: House) -> dict[int, Any]:
    api = f"{house.program.urls['console']}/api"
    async with aiohttp.ClientSession(
        headers=MARK, cookie_jar=aiohttp.CookieJar(unsafe=True)
    ) as http:
        token = {"token": KNOWN["OPERATOR_TOKEN"]}
        async with http.post(f"{api}/sign-in", json=token) as signed:
            assert signed.status == 200, await signed.text()
        async with http.get(f"{api}/approvals") as answer:
            data = await answer.json()
    return {house.number(one["id"]): with_args(one, "summary") for one in data["pending"]}


SURFACES: dict[str, Show] = {
    show.__name__: show
    for show in (
        over_websocket, in_a_snapshot, listed, one_by_one, in_the_terminal, in_the_console,
    )
}  # fmt: skip


@pytest.mark.requirement("001/approvals/seen-whole")
@pytest.mark.parametrize("surface", SURFACES)
async def test_an_approver_sees_what_will_run_and_no_planted_secret(
    house: House, surface: str, record_property: Callable[[str, object], None]
) -> None:
    shown = await SURFACES[surface](house)
    wrong = {
        number: shown.get(number)
        for number, pieces in enumerate(CASES)
        if shown.get(number) != _expected(number, pieces)
    }
    record_property("rounds", len(CASES))
    record_property(
        "class",
        [
            f"hidden from an approver ({surface.replace('_', ' ')})",
            len(CASES),
            len(CASES) - len(wrong),
        ],
    )
    assert wrong == {}


def _expected(number: int, pieces: Sequence[Piece]) -> Any:
    args = {"command": seen(pieces), "case": f"n{number}"}
    return args, hidden(pieces), f"shell {json.dumps(args, ensure_ascii=False)}"


async def test_chat_prints_the_whole_call(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def no(_: str) -> str:
        return "n"

    monkeypatch.setattr(chat, "_line", no)
    for number, event in house.asked.items():
        asked = wire.decode_server(json.dumps(event))
        assert isinstance(asked, wire.ApprovalRequired)
        await chat._decide(asked)
        said = capsys.readouterr().out
        assert _expected(number, CASES[number])[2] in said, number
        assert ("--reveal" in said) == bool(hidden(CASES[number]))


@pytest.mark.requirement("001/approvals/seen-whole")
async def test_the_evidence_has_what_was_shown_and_no_file_a_planted_secret(house: House) -> None:
    with ClosedHome(house.program.home) as closed:
        for number, pieces in enumerate(CASES):
            call_id = house.asked[number]["tool_call_id"]
            ref = f"requests/{call_id}/approval_request.json"
            refs = [artifacts_of(record) for _, record in closed.about(call_id)]
            (digest,) = [one[ref] for one in refs if ref in one]
            artifact = json.loads(closed.artifact(ref, digest))
            assert artifact["hidden"] == hidden(pieces)
            stored = artifact["args"]["command"]
            assert stored.count(RUN) == written(pieces).count(RUN), number
    files = [path for path in house.program.home.rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in [*files, house.program.log])
    planted = {secret for pieces in CASES for secret in secrets_of(pieces)}
    assert [secret for secret in planted if secret.encode() in content] == []


@pytest.mark.requirement("001/approvals/hidden-arguments")
async def test_hidden_characters_are_revealed_by_the_operator_before_anyone_approves(
    house: House,
) -> None:
    numbers = [n for n, pieces in enumerate(CASES) if hidden(pieces)]
    number, at_gateway = numbers[0], numbers[1]
    asked = house.asked[number]
    decision = {"approval_id": asked["approval_id"], "run_id": asked["run_id"]}
    await house.client.say("approval_decision", decision="approve", request_id="d1", **decision)
    error = (await house.client.hear_until("error"))[-1]
    assert error["code"] == "orchestrator_error"
    assert error["detail"]["reason"] == "hidden_arguments"
    status, refused = await house.post(
        f"/approvals/{house.name(at_gateway)}/decide", {"decision": "approve"}
    )
    assert (status, refused["data"]) == (403, {"reason": "hidden_arguments"})
    assert "--reveal" in refused["error"]["message"]
    said = await asyncio.to_thread(
        house.cli, "approvals", "approve", house.name(at_gateway), code=1
    )
    assert "hidden" in said
    for one in (number, at_gateway):
        assert (await house.get(f"/approvals/{house.name(one)}"))["status"] == "PENDING"

    status, revealed = await house.post(f"/approvals/{house.name(number)}/reveal", {})
    assert status == 200
    assert revealed["data"]["args"]["command"] == seen(CASES[number], revealed=True)
    printed = await asyncio.to_thread(
        house.cli, "approvals", "show", "--reveal", house.name(at_gateway)
    )
    assert (
        seen(CASES[at_gateway], revealed=True)
        in json.loads(printed[printed.index("{") : printed.index("\nplace")])["command"]
    )
    rows = (await house.get("/audit/query?action=approval.reveal"))["items"]
    assert {(row["actor"], row["resourceId"]) for row in rows} == {
        ("operator", house.name(number)),
        ("operator", house.name(at_gateway)),
    }
    again = await house.get(f"/approvals/{house.name(number)}")
    assert (again["revealed"], again["args"]["command"]) == (True, seen(CASES[number]))
    await house.client.say("approval_decision", decision="approve", request_id="d2", **decision)
    status, _ = await house.post(
        f"/approvals/{house.name(at_gateway)}/decide", {"decision": "approve"}
    )
    assert status == 200
    for one in (number, at_gateway):
        await _until(house, one, "APPROVED")


async def test_what_is_hidden_can_be_rejected_unseen_and_closed_calls_are_shown_as_stored(
    house: House,
) -> None:
    number = [n for n, pieces in enumerate(CASES) if hidden(pieces)][2]
    status, _ = await house.post(f"/approvals/{house.name(number)}/decide", {"decision": "reject"})
    assert status == 200
    closed = await house.get(f"/approvals/{house.name(number)}")
    assert closed["status"] == "REJECTED"
    assert not [one for one in secrets_of(CASES[number]) if one in json.dumps(closed)]
    status, _ = await house.post(f"/approvals/{house.name(number)}/reveal", {})
    assert status == 400


async def _until(house: House, number: int, status: str) -> None:
    for _ in range(200):
        if (await house.get(f"/approvals/{house.name(number)}"))["status"] == status:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"case {number} did not become {status}")
