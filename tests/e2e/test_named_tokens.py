"""Named tokens of users, agents and services, at every door, and who decides approvals."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import websockets
from click.testing import CliRunner

from tests.e2e.harness import (
    API_KEY,
    INTERNAL_TOKEN,
    PATIENCE,
    Client,
    Program,
    bearer_of,
    running,
)
from tests.e2e.ways import eventually
from tests.support.batteries import chosen
from toolgate.cli.main import main
from toolgate.contracts.ingress_v1 import CloseCode

pytestmark = pytest.mark.asyncio(loop_scope="module")

requirement = pytest.mark.requirement
OPERATOR = "operator-of-the-named-tokens"
EXECUTOR = "executor-of-the-named-tokens"
POLICY = """
version: 1
name: named
rules:
  - {id: shells-ask, ask: shell, reason: A person must see it.}
  - {id: bots, allow: math.add, match: any, for: {role: agent}, reason: Agents may add.}
  - {id: anna, allow: text.upper, match: any, for: {user: anna}, reason: She may.}
  - {id: keeps-ask, ask: kv.set, reason: A person must see it.}
"""
SHELL = '[[tool:shell {"command": "id"}]]'
HELLO_MCP = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
_numbers = itertools.count()


@dataclass
class House:
    program: Program
    http: aiohttp.ClientSession
    urls: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.urls = self.program.urls

    async def ask(
        self, method: str, path: str, body: Any = None, *, at: str = "gateway", **headers: str
    ) -> tuple[int, Any]:
        url = self.urls[at] + path
        async with self.http.request(method, url, json=body, headers=headers) as answer:
            kind = answer.content_type
            return answer.status, await answer.json() if "json" in kind else await answer.text()

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        status, told = await self.ask(method, path, body, **headers)
        assert status == 200, told
        return told["data"]

    async def token(self, name: str, kind: str = "agent", **more: Any) -> str:
        scope = more.pop("scope", {})
        body = {"name": name, "kind": kind, "scope": scope, **more}
        return str((await self.operator("POST", "/tokens", body))["token"])

    async def device(self, name: str, **scope: Any) -> dict[str, str]:
        await self.ask("GET", "/status", **{"X-Device-Id": name})
        made = await self.operator("POST", "/pairing/approve", {"deviceId": name, "scope": scope})
        return {"X-Device-Id": name, "X-Device-Token": made["deviceToken"]}

    async def client(self, key: str, *, user: str = "u1", **hello: Any) -> Client:
        return await Client.connect(self.urls["ingress_ws"], user=user, api_key=key, **hello)

    async def hello(self, key: str, *, user: str = "u1") -> str:
        """The answer to a hello: its type, or the code of the error."""
        async with websockets.connect(self.urls["ingress_ws"]) as socket:
            hello = {"type": "hello", "ts": 1, "user_id": user, "api_key": key}
            await socket.send(json.dumps(hello))
            answer = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
            return str(answer.get("code", answer["type"]))

    async def decided(self, approval_id: str) -> tuple[str, str]:
        found = await self.operator("GET", f"/approvals/{approval_id}")
        return found["status"], found.get("decidedBy", "")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    at = tmp_path_factory.mktemp("named")
    (at / "policy.yaml").write_text(POLICY)
    given = {
        "POLICY_FILE": str(at / "policy.yaml"),
        "OPERATOR_TOKEN": OPERATOR,
        "EXECUTOR_TOKEN": EXECUTOR,
        "GATEWAY_RATE": "100000",
    }
    async with (
        running(at / "home", **given) as program,
        aiohttp.ClientSession() as http,
        asyncio.timeout(10 * PATIENCE),
    ):
        yield House(program, http)


async def asks(client: Client) -> dict[str, Any]:
    """The approval that the client's agent waits for."""
    await client.invoke(SHELL, agent="script", request_id=f"r{next(_numbers)}")
    return (await client.hear_until("approval_required"))[-1]


async def decides(client: Client, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to the client's own decision of that approval."""
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await client.say("approval_decision", **ids, decision="reject")
    while (told := await client.receive())["type"] != "error":
        detail = told.get("detail") or {}
        if detail.get("approval_id") == asked["approval_id"] and "decision" in detail:
            return told
    return told


MAY_NOT = {"reason": "may_not_approve", "retry": False}


async def opens(house: House, token: str) -> set[str]:
    """The doors that a token opens, each sent as that door takes one."""
    bearer = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}

    async def ok(path: str, body: Any = None, *, at: str = "gateway") -> bool:
        method = "GET" if body is None else "POST"
        status, told = await house.ask(method, path, body, at=at, **bearer)
        assert status in (200, 401, 403), (path, status, told)
        return status == 200 or "policy_check" in told  # no rule allows the tool

    run = {"request_id": f"q{next(_numbers)}", "tool_id": "echo", "args": {}}
    payload = {"name": "no.such", "args": {}}
    _, command = await house.ask("POST", "/command/tool", {"payload": payload}, **bearer)
    found = {
        "status": await ok("/status"),
        "approvals": await ok("/approvals"),
        "command": command["error"]["code"] == "ERR_PERMISSION_DENIED",  # no such tool
        "tool": await ok("/tool/run", run),
        "artifact": await ok("/episode/search", {}),
        "mcp": await ok("/mcp", HELLO_MCP),
        "8081": await ok("/internal/agents", at="orchestrator"),
        "8091": await ok("/internal/sessions/s/status", at="ingress_internal"),
        "hello": await house.hello(token) == "hello_ack",
    }
    return {door for door, is_open in found.items() if is_open}


DOORS = 9
NAMED = {"status", "command", "tool"}
OPENED = {  # by each kind of credential
    "wrong": set[str](),
    "operator": {"status", "approvals"},
    "executor": {"tool", "artifact"},
    "internal": {"8081", "8091"},
    "api key": {"hello"},
    "device": set[str](),
    "revoked": set[str](),
    "expired": set[str](),
    "without scopes": NAMED,
    "agent": {*NAMED, "mcp", "hello"},
    "service": {*NAMED, "mcp", "hello"},
    "user": {*NAMED, "mcp", "hello", "approvals"},
}
MISSES: dict[str, Callable[[str], str]] = {
    "cut": lambda token: token[:-1],
    "longer": lambda token: f"{token}0",
    "twice": lambda token: token + token,
    "other case": str.swapcase,
    "reversed": lambda token: token[::-1],
    "hash": lambda token: sha256(token.encode()).hexdigest(),
    "look-alike": lambda token: token[:-1] + chr(0xFEE0 + ord(token[-1])),
    "two words": lambda token: f"{token} {token}",
    "quoted": lambda token: f'"{token}"',
}


@requirement("002/tokens/doors")
async def test_each_door_takes_its_own_credentials_and_no_other(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    device = await house.device("d1", tools="write", mcp=True)
    whole = {"tools": "write", "mcp": True, "agent": True}
    tokens = {
        "wrong": "tg_svc_0",
        "operator": OPERATOR,
        "executor": EXECUTOR,
        "internal": INTERNAL_TOKEN,
        "api key": API_KEY,
        "device": device["X-Device-Token"],
        "revoked": await house.token("gone", scope=whole),
        "expired": await house.token("late", scope=whole, expiresInMs=1),
        "without scopes": await house.token("bare"),
        "agent": await house.token("bot", scope=whole),
        "service": await house.token("ci", "service", scope=whole),
        "user": await house.token("u1", "user", scope={**whole, "approve": True}),
    }
    await house.operator("DELETE", "/tokens/gone")
    opened = {name: await opens(house, token) for name, token in tokens.items()}
    shut = sum(DOORS - len(doors) for doors in OPENED.values())
    past = sum(len(doors - OPENED[name]) for name, doors in opened.items())
    record_property("class", ["credential of another door", shut, shut - past])
    assert opened == OPENED
    assert await house.hello(tokens["user"], user="u2") == "auth_failed"
    log = house.program.log.read_text()
    assert [name for name, token in tokens.items() if len(token) > 1 and token in log] == []


@requirement("002/tokens/doors")
async def test_what_is_nearly_a_credential_opens_nothing(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    real = {
        "operator": OPERATOR,
        "executor": EXECUTOR,
        "internal": INTERNAL_TOKEN,
        "agent": await house.token("bot", scope={"tools": "write", "mcp": True, "agent": True}),
    }
    tried = list(itertools.product(real, MISSES))
    for_now = chosen(tried, [each for each in tried if each[0] == "agent"])
    past = {each for each in for_now if await opens(house, MISSES[each[1]](real[each[0]]))}
    number = DOORS * len(for_now)
    record_property("class", ["nearly a credential", number, number - len(past)])
    assert past == set()


@requirement("002/tokens/operator-not-for-mcp")
async def test_mcp_refuses_the_operators_token_and_names_the_command(house: House) -> None:
    headers = {
        "Authorization": f"Bearer {OPERATOR}",
        "Accept": "application/json, text/event-stream",
    }
    for path in ("/mcp", "/mcp/message?sessionId=x"):
        status, told = await house.ask("POST", path, HELLO_MCP, **headers)
        assert (status, told["error"]["code"]) == (403, "ERR_PERMISSION_DENIED"), path
        assert "`toolgate token make" in told["error"]["message"]


@requirement("002/tokens/named")
async def test_the_policy_the_audit_and_the_evidence_name_the_token(house: House) -> None:
    bot = await house.token("adder", scope={"tools": "write"})
    anna = await house.token("anna", "user")
    ci = await house.token("ci", "service")
    for token, tool, args, decision in (
        (bot, "math.add", {"a": 1, "b": 2}, "allow"),
        (anna, "math.add", {"a": 1, "b": 2}, "deny"),
        (anna, "text.upper", {"text": "x"}, "allow"),
        (ci, "text.upper", {"text": "x"}, "deny"),
        (ci, "kv.set", {"key": "a", "value": 1}, "deny"),  # above its level
    ):
        body = {"request_id": f"n{next(_numbers)}", "tool_id": tool, "args": args}
        _, told = await house.ask("POST", "/tool/run", body, Authorization=f"Bearer {token}")
        assert told["policy_check"]["decision"] == decision, (tool, told)
    rows = (await house.operator("GET", "/audit/query?action=tool.run&limit=10"))["items"]
    assert {"device:agent:adder", "device:user:anna", "device:service:ci"} <= {
        row["actor"] for row in rows
    }


@requirement("002/tokens/expire", "002/tokens/revoked-at-once")
async def test_a_token_that_ends_closes_what_is_open(house: House) -> None:
    scope = {"agent": True}
    leaving = await house.client(await house.token("leaving", scope=scope))
    ending = await house.client(await house.token("ending", scope=scope, expiresInMs=1500))
    await house.operator("DELETE", "/tokens/leaving")
    for client in (leaving, ending):
        await asyncio.wait_for(client.socket.wait_closed(), PATIENCE)
        assert client.socket.close_code == CloseCode.UNAUTHENTICATED


@requirement("002/tokens/cli")
async def test_tokens_are_made_listed_revoked_and_shown_in_the_terminal(house: House) -> None:
    at = ("--home", str(house.program.home), "--url", house.urls["gateway"])
    env = {"OPERATOR_TOKEN": OPERATOR, "API_KEY": API_KEY}

    def run(*words: str) -> str:
        ended = CliRunner(env=env).invoke(main, ["token", *words])
        assert ended.exit_code == 0, ended.output
        return ended.output

    def story() -> str:
        token = run("make", "eve", "--kind", "user", "--tools", "read", "--expires", "90d", *at)
        listed = json.loads(run("list", "--json", *at))
        (eve,) = [one for one in listed if one["name"] == "eve"]
        assert eve["kind"] == "user"
        lasts_ms = eve["expiresAt"] - eve["madeAt"]
        assert abs(lasts_ms - 90 * 24 * 3_600_000) < 60_000
        assert eve["scope"]["agent"] is True
        assert token.strip() not in json.dumps(listed)
        assert run("show", "api-key", *at[:2]).strip() == API_KEY
        wrong = CliRunner(env=env).invoke(main, ["token", "make", "x", "--expires", "soon", *at])
        assert (wrong.exit_code, "90d" in wrong.output) == (2, True)
        return token.strip()

    token = await asyncio.to_thread(story)
    assert await house.hello(token, user="eve") == "hello_ack"
    await asyncio.to_thread(run, "revoke", "eve", *at)
    assert await house.hello(token, user="eve") == "auth_failed"


@requirement("001/approvals/who-may")
async def test_who_may_decide_over_the_websocket_and_what_the_record_says(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    both = {"agent": True, "approve": True, "tools": "write"}
    keys = {
        "shared": API_KEY,
        "user": await house.token("olga", "user"),
        "agent": await house.token("worker", scope={"agent": True}),
        "service": await house.token("backend", "service", scope={"agent": True}),
        "approver": await house.token("approver", "service", scope=both),
    }
    clients = {
        name: await house.client(key, user="olga" if name == "user" else "u7")
        for name, key in keys.items()
    }
    records = {"shared": "user u7 (claimed)", "user": "user olga"}
    for name, client in clients.items():
        asked = await asks(client)
        told = await decides(client, asked)
        if name in records:
            assert told["detail"]["decision"] == "reject", told
            assert await house.decided(asked["approval_id"]) == ("REJECTED", records[name])
        else:  # an approver too: it started the run
            assert (told["code"], told["detail"]) == ("orchestrator_error", MAY_NOT), name
            assert (await house.decided(asked["approval_id"]))[0] == "PENDING"
    record_property("class", ["approval of an own run", 3, 3])  # or the assertions had failed
    shared = clients["shared"]
    asked = await asks(shared)
    beside = await house.client(keys["approver"], user="u7", session_id=shared.session_id)
    assert (await decides(beside, asked))["detail"]["decision"] == "reject"
    decided = await house.decided(asked["approval_id"])
    assert decided == ("REJECTED", "service approver")


@requirement("001/approvals/who-may")
async def test_a_key_without_the_agent_scope_starts_no_run(house: House) -> None:
    key = await house.token("only-approves", "service", scope={"approve": True})
    client = await house.client(key)
    await client.invoke("hi")
    told = (await client.hear_until("error", "run_started"))[-1]
    assert (told["code"], told["detail"]["reason"]) == ("orchestrator_error", "outside_scope")


@requirement("001/credentials/any-key-loopback-only")
async def test_a_client_without_a_key_does_not_approve_its_own_call(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    at = tmp_path_factory.mktemp("keyless")
    (at / "policy.yaml").write_text(POLICY)
    given = {"API_KEY": "none", "POLICY_FILE": str(at / "policy.yaml")}
    async with running(at / "home", **given) as program:
        client = await Client.connect(program.urls["ingress_ws"], api_key="whatever")
        told = await decides(client, await asks(client))
        assert (told["code"], told["detail"]) == ("orchestrator_error", MAY_NOT)


@requirement("002/tokens/own-command")
async def test_a_device_does_not_approve_what_its_agent_asks_for(house: House) -> None:
    for name, scope in (
        ("reader", {"tools": "read", "agent": True}),
        ("approver", {"tools": "write", "agent": True, "approve": True}),
    ):
        device = await house.device(name, **scope)
        payload = {"agentId": "script", "message": SHELL, "mode": "async", "sessionId": "s"}
        key = {"Idempotency-Key": f"k{next(_numbers)}"}
        _, told = await house.ask("POST", "/command/agent", {"payload": payload}, **device, **key)
        run_id = told["data"]["runId"]

        async def waits(run_id: str = run_id) -> bool:
            waiting = (await house.operator("GET", "/approvals?status=PENDING"))["items"]
            return any(one.get("runId") == run_id for one in waiting)

        await eventually(waits)
        listed = (await house.operator("GET", "/approvals?status=PENDING"))["items"]
        (approval,) = [one for one in listed if one.get("runId") == run_id]
        approve = {"decision": "approve"}
        path = f"/approvals/{approval['approvalId']}/decide"
        assert (await house.ask("POST", path, approve, **device))[0] == 403
        for key_of_it in (device["X-Device-Token"], ""):
            assert await house.hello(key_of_it, user=name) == "auth_failed"
        bearer = {"Authorization": f"Bearer {INTERNAL_TOKEN}"}
        status, told = await house.ask(
            "POST", f"/internal{path}", {**approve, "decided_by": name}, at="orchestrator", **bearer
        )
        assert (await house.decided(approval["approvalId"]))[0] == "PENDING", (status, told)
        status, _ = await house.ask(
            "POST", f"/internal{path}", {"decision": "reject", "decided_by": "u9"},
            at="orchestrator", **bearer,
        )  # fmt: skip
        decided = await house.decided(approval["approvalId"])
        assert decided == ("REJECTED", "ingress 127.0.0.1 for user u9")


@requirement("002/tokens/own-command")
async def test_a_service_does_not_approve_its_own_command(house: House) -> None:
    scope = {"tools": "write", "approve": True}
    own = {"Authorization": f"Bearer {await house.token('both', 'service', scope=scope)}"}
    other = await bearer_of(house.program, "other", scope=scope)
    key = {"Idempotency-Key": f"k{next(_numbers)}"}
    payload = {"name": "kv.set", "args": {"key": "a", "value": 1}}
    status, told = await house.ask("POST", "/command/tool", {"payload": payload}, **own, **key)
    assert status == 202, told
    path = f"/approvals/{told['data']['approvalId']}/decide"
    assert (await house.ask("POST", path, {"decision": "approve"}, **own))[0] == 403
    status, decided = await house.ask("POST", path, {"decision": "approve"}, **other)
    assert (status, decided["data"]["decidedBy"]) == (200, "agent other")
