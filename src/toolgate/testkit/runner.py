"""Seed 000: a gateway, for whoever builds a runner."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from toolgate.testkit.checks import (
    DoesNotHold,
    HttpAnswer,
    Kit,
    NotChecked,
    ask,
    member,
    need,
    quoted,
)

ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@dataclass(slots=True)
class GatewayPeer:
    """Calls a runner at its endpoint, as seed 000 has it."""

    url: str
    http: aiohttp.ClientSession
    token: str = ""
    tool: str = "bash.exec"

    async def execute(
        self, name: str, args: Any, *, session: str = "s_testkit", token: str | None = None
    ) -> HttpAnswer:
        body = {
            "call": {"name": name, "args": args},
            "ctx": {
                "runId": "run_testkit",
                "sessionId": session,
                "runtimeMode": "local",
                "toolCallId": "tool_testkit",
            },
            "target": {
                "targetId": "target_testkit",
                "kind": "docker-runner",
                "tenantId": "t_testkit",
                "workspaceId": "w_testkit",
            },
        }
        return await self.post(body, token=token)

    async def post(self, body: Any, *, token: str | None = None) -> HttpAnswer:
        token = self.token if token is None else token
        bearer = f"Bearer {token}" if token else ""
        return await ask(self.http, "POST", self.url, body, authorization=bearer)

    async def run(self, cmd: str, *, session: str = "s_testkit") -> dict[str, Any]:
        return result_of(await self.execute(self.tool, {"cmd": cmd}, session=session))

    async def needs_a_shell(self) -> None:
        if (await self.run("printf hello")).get("output") != "hello":
            raise NotChecked(f"this runner does not really run {self.tool}, or cannot now")


def result_of(answer: HttpAnswer) -> dict[str, Any]:
    """The ToolResult of an answer, in either of its two forms; raises DoesNotHold."""
    need(answer.is_success, f"it answered {answer.status}: {quoted(answer.text)}")
    body = answer.json
    need(isinstance(body, dict), f"the body is no object: {quoted(body)}")
    result = body["result"] if isinstance(body.get("result"), dict) else body
    if member(result, "ok", bool, of="the ToolResult"):
        member(result, "output", str, of="the ToolResult")
    else:
        error = member(result, "error", dict, of="the ToolResult")
        member(error, "code", str, of="`error`")
        member(error, "message", str, of="`error`")
    return dict(result)


KIT: Final[Kit[GatewayPeer]] = Kit("000")


@KIT.check(
    "§4",
    "响应 Schema（支持两种）",
    "a call is answered with a ToolResult, directly or as `result`",
)
async def answers_a_tool_result(peer: GatewayPeer) -> None:
    result_of(await peer.execute(peer.tool, {"cmd": "printf hello"}))


@KIT.check(
    "§8",
    '"target":{"targetId":"t","kind":"docker-runner","tenantId":"tenant"}',
    "the seed's own request, without toolCallId and workspaceId, is accepted",
)
async def accepts_the_seeds_request(peer: GatewayPeer) -> None:
    body = {
        "call": {"name": "bash.exec", "args": {"cmd": "printf ok"}},
        "ctx": {"runId": "r", "sessionId": "s", "runtimeMode": "local"},
        "target": {"targetId": "t", "kind": "docker-runner", "tenantId": "tenant"},
    }
    need((result := result_of(await peer.post(body)))["ok"], f"it failed: {quoted(result)}")


@KIT.check(
    "§4.1", '"output": "..."', "a command's output comes back as `output`, character by character"
)
async def returns_the_output(peer: GatewayPeer) -> None:
    await peer.needs_a_shell()
    result = await peer.run("printf '你好\\n%s' ok")
    need(result.get("output") == "你好\nok", f"`output` is {quoted(result.get('output'))}")


@KIT.check(
    "§4.1",
    '"code": "TOOL_EXEC_FAILED"',
    "a command that fails is `ok: false` with `error.code` and `error.message`",
)
async def says_what_failed(peer: GatewayPeer) -> None:
    await peer.needs_a_shell()
    result = await peer.run("exit 3")
    need(result["ok"] is False, f"`exit 3` is answered {quoted(result)}")


@KIT.check(
    "§4.2",
    "`updates` 可选；Gateway 会转发为工具流式更新。",
    "`updates`, where there are any, are a list of `delta` and `at` (ISO 8601, UTC)",
)
async def has_readable_updates(peer: GatewayPeer) -> None:
    body = (await peer.execute(peer.tool, {"cmd": "printf hello"})).json
    updates = body.get("updates") if isinstance(body, dict) else None
    if updates is None:
        raise NotChecked("this answer has no updates")
    need(isinstance(updates, list), f"`updates` is no list: {quoted(updates)}")
    for update in updates:
        if not isinstance(update, str):
            member(update, "delta", str, of="an update")
            at = update.get("at")
            readable = at is None or (isinstance(at, str) and ISO_TIME.fullmatch(at))
            need(readable, f"`at` is {quoted(at)}")


@KIT.check(
    "§6",
    "注意：`POLICY_DENIED` 等策略错误由 Gateway 策略层产生，不由 runner 直接返回。",
    "no answer has the code POLICY_DENIED, also for a tool that it does not have",
)
async def leaves_the_policy_to_the_gateway(peer: GatewayPeer) -> None:
    answer = await peer.execute("testkit.no_such_tool", {})
    if not answer.is_success:
        return  # counts as failed
    result = result_of(answer)
    if result["ok"]:
        raise NotChecked("this runner answers every tool with ok")
    need(result["error"]["code"] != "POLICY_DENIED", "its code is POLICY_DENIED")


@KIT.check("§3", "`call.name`：必填，工具名。", "a call without a name is not carried out")
async def refuses_a_call_without_a_name(peer: GatewayPeer) -> None:
    ctx = {"runId": "r", "sessionId": "s", "runtimeMode": "local"}
    target = {"targetId": "t", "kind": "docker-runner", "tenantId": "tenant"}
    answer = await peer.post({"call": {"args": {}}, "ctx": ctx, "target": target})
    if answer.is_success:
        need(result_of(answer)["ok"] is False, "it is answered with ok: true")


@KIT.check(
    "§2",
    "若配置了 `execution_targets.auth_token`，额外带 `authorization: Bearer <token>`",
    "without the token, or with a wrong one, nothing is run",
)
async def checks_the_token(peer: GatewayPeer) -> None:
    if not peer.token:
        raise NotChecked("no --token-file was given")
    for token in ("", peer.token + "x"):
        answer = await peer.execute(peer.tool, {"cmd": "printf hello"}, token=token)
        need(not answer.is_success, f"it answered {answer.status} to {token or 'no token'!r}")


@KIT.check(
    "§3",
    "`ctx.runId/sessionId/runtimeMode`：必填，用于链路追踪与隔离。",
    "what one session writes, another session does not find",
)
async def keeps_sessions_apart(peer: GatewayPeer) -> None:
    await peer.needs_a_shell()
    await peer.run("printf mine > testkit_mark", session="s_testkit_a")
    if (await peer.run("cat testkit_mark", session="s_testkit_a")).get("output") != "mine":
        raise NotChecked("this runner keeps no files between calls")
    other = await peer.run("cat testkit_mark", session="s_testkit_b")
    need(other.get("output") != "mine", "the other session's file is readable")


@KIT.check(
    "§7", "默认超时：`15000ms`。", "eight calls at once are answered within the default time"
)
async def serves_calls_side_by_side(peer: GatewayPeer) -> None:
    calls = [
        peer.execute(peer.tool, {"cmd": f"printf {number}"}, session=f"s_testkit_{number}")
        for number in range(8)
    ]
    try:
        async with asyncio.timeout(15):
            answers = await asyncio.gather(*calls)
    except TimeoutError:
        raise DoesNotHold("they took longer than 15 s") from None
    for answer in answers:
        result_of(answer)
