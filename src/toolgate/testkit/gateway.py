"""Seed 002: a device, and an operator where their token is given, for whoever builds a gateway."""

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from toolgate.testkit.checks import HttpAnswer, Kit, NotChecked, ask, member, need, quoted

EVENT_TYPES: Final = {"health", "heartbeat", "cron", "agent", "tool", "mcp"}
EVENT_MEMBERS: Final = {
    "id", "type", "time", "status", "source", "message", "durationMs", "metadata",
}  # fmt: skip
EVENTS_S: Final = 10.0  # in which the events of a command are there


@dataclass(slots=True)
class DevicePeer:
    url: str
    http: aiohttp.ClientSession
    device_id: str = "testkit"
    token: str = ""
    operator_token: str = ""
    tool: str = "echo"  # one that only reads and that the policy allows
    args: dict[str, Any] = field(default_factory=lambda: {"text": "testkit"})

    async def get(self, path: str, **headers: str) -> HttpAnswer:
        return await ask(self.http, "GET", self.url + path, **(headers or self._headers))

    async def post(self, path: str, body: Any, **headers: str) -> HttpAnswer:
        return await ask(self.http, "POST", self.url + path, body, **{**self._headers, **headers})

    async def operator(self, method: str, path: str, body: Any = None) -> HttpAnswer:
        if not self.operator_token:
            raise NotChecked("no --operator-token-file was given")
        bearer = f"Bearer {self.operator_token}"
        return await ask(self.http, method, self.url + path, body, authorization=bearer)

    async def call(self, **members: Any) -> HttpAnswer:
        """A call of the tool; raises NotChecked where this device may make none."""
        await self.needs_pairing()
        key = members.pop("key", "")
        body = {"payload": {"name": self.tool, "args": self.args}, **members}
        answer = await self.post("/command/tool", body, Idempotency_Key=key)
        if answer.status in (403, 202):
            raise NotChecked(f"this device may not call {self.tool}; name another with --tool")
        return answer

    async def needs_pairing(self) -> None:
        """Pair the device, if it has no token and the operator's is given."""
        if self.token:
            return
        if not self.operator_token:
            raise NotChecked("no --token-file and no --operator-token-file was given")
        await self.get("/status", X_Device_Id=self.device_id)
        scope = {"tools": "write", "system": True, "mcp": True, "agent": True}
        body = {"deviceId": self.device_id, "scope": scope}
        answer = await self.operator("POST", "/pairing/approve", body)
        self.token = token_of(answer)

    @property
    def _headers(self) -> dict[str, str]:
        return {"X_Device_Id": self.device_id, "X_Device_Token": self.token}


def token_of(answer: HttpAnswer) -> str:
    """The device token of `/pairing/approve`, in the header or in the body."""
    need(answer.is_success, f"/pairing/approve answered {answer.status}: {quoted(answer.text)}")
    data = answer.json.get("data") or {}
    token = answer.headers.get("x-device-token") or data.get("deviceToken") or data.get("token")
    need(isinstance(token, str) and token, f"no X-Device-Token in {quoted(answer.text)}")
    return str(token)


def enveloped(answer: HttpAnswer) -> dict[str, Any]:
    """The unified answer; raises DoesNotHold."""
    body = answer.json
    is_ok = member(body, "ok", bool)
    member(body, "traceId", str)
    if is_ok:
        need("data" in body, f"no `data` in {quoted(body)}")
    else:
        error = member(body, "error", dict)
        member(error, "code", str, of="`error`")
        member(error, "message", str, of="`error`")
    return dict(body)


def refused_with(answer: HttpAnswer, *codes: str) -> None:
    body = enveloped(answer)
    need(body["ok"] is False, f"it was accepted: {quoted(body)}")
    need(body["error"]["code"] in codes, f"the code is {body['error']['code']}, not {codes[0]}")


KIT: Final[Kit[DevicePeer]] = Kit("002")


@KIT.check("§2.1", "返回：`{ ok: true, version, uptime }`", "GET /health: ok, version, uptime")
async def answers_health(peer: DevicePeer) -> None:
    body = (await peer.get("/health")).json
    need(body.get("ok") is True, f"it answered {quoted(body)}")
    member(body, "version", str)
    uptime = body.get("uptime")
    need(isinstance(uptime, int | float), f"`uptime` is {quoted(uptime)}")


@KIT.check("§1.1", "`X-Device-Id`: 设备唯一标识", "without headers: ERR_AUTH_REQUIRED")
async def asks_for_a_device(peer: DevicePeer) -> None:
    body = {"payload": {"name": peer.tool, "args": peer.args}}
    answer = await ask(peer.http, "POST", f"{peer.url}/command/tool", body)
    refused_with(answer, "ERR_AUTH_REQUIRED")


@KIT.check(
    "§2.4",
    "`/pairing/approve` 返回 `X-Device-Token`（或在响应体中返回）。",
    "a new device is in /pairing/pending; approve returns its token, revoke ends it",
)
async def pairs_devices(peer: DevicePeer) -> None:
    name = f"testkit-{uuid.uuid4().hex[:8]}"
    await peer.get("/status", X_Device_Id=name)
    pending = await peer.operator("GET", "/pairing/pending")
    need(name in pending.text, f"{name} is not in /pairing/pending: {quoted(pending.text)}")
    token = token_of(await peer.operator("POST", "/pairing/approve", {"deviceId": name}))
    known = await peer.get("/status", X_Device_Id=name, X_Device_Token=token)
    need(known.is_success, f"with its token it gets {known.status}")
    await peer.operator("POST", "/pairing/revoke", {"deviceId": name})
    ended = await peer.get("/status", X_Device_Id=name, X_Device_Token=token)
    need(not ended.is_success, "its token still opens /status after /pairing/revoke")


@KIT.check("§3", "- `ERR_INVALID_TOKEN`", "a wrong device token: ERR_INVALID_TOKEN")
async def refuses_a_wrong_token(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    answer = await peer.post("/command/tool", {}, X_Device_Token="wrong")  # noqa: S106 - to be refused
    refused_with(answer, "ERR_INVALID_TOKEN")


@KIT.check(
    "§2.2",
    "running: { agent: [], tool: [], mcp: [] },",
    "GET /status: version, health, devices, running, heartbeat, cron",
)
async def answers_status(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    body = (await peer.get("/status")).json
    member(body, "version", str)
    need("health" in body, f"no `health` in {quoted(body)}")
    member(body, "devices", list)
    running = member(body, "running", dict)
    for kind in ("agent", "tool", "mcp"):
        member(running, kind, list, of="`running`")
    for name in ("heartbeat", "cron"):
        need("lastAt" in member(body, name, dict), f"no `lastAt` in `{name}`")


@KIT.check(
    "§3",
    "ok: true,\n  data,\n  traceId,",
    "a command is answered with ok, data and traceId; trace.traceId comes back",
)
async def answers_in_the_envelope(peer: DevicePeer) -> None:
    trace = uuid.uuid4().hex
    answer = await peer.call(requestId=f"r_{trace}", trace={"traceId": trace})
    body = enveloped(answer)
    need(body["ok"] is True, f"the command failed: {quoted(body)}")
    need(body["traceId"] == trace, f"traceId is {body['traceId']}, not the one given")


@KIT.check(
    "§3",
    "actor: { id, role },",
    "the whole envelope is accepted: actor, sessionKey, route, security, trace",
)
async def takes_the_whole_envelope(peer: DevicePeer) -> None:
    answer = await peer.call(
        requestId=f"r_{uuid.uuid4().hex}",
        actor={"id": "testkit", "role": "device"},
        sessionKey="testkit",
        route="testkit",
        idempotencyKey=uuid.uuid4().hex,
        security={"level": "read", "scopes": []},
        trace={"traceId": uuid.uuid4().hex, "spanId": "s1"},
    )
    need(enveloped(answer)["ok"] is True, f"it was refused: {quoted(answer.text)}")


@KIT.check("§3", "POST /command/<type>", "agent, tool, system and mcp read their payload")
async def has_four_kinds_of_commands(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    for kind in ("agent", "tool", "system", "mcp"):
        answer = await peer.post(f"/command/{kind}", {"payload": {}})
        refused_with(answer, "ERR_INVALID_REQUEST", "ERR_PERMISSION_DENIED")
        need(answer.status != 404, f"/command/{kind} is answered 404")
    need((await peer.post("/command/nope", {})).status == 404, "/command/nope is not 404")


@KIT.check(
    "§5.1",
    "若命中幂等缓存，返回原始响应",
    "the same Idempotency-Key again has the first answer, also with another requestId",
)
async def replays_a_key(peer: DevicePeer) -> None:
    key = uuid.uuid4().hex
    first = await peer.call(key=key, requestId=f"r_{uuid.uuid4().hex}")
    again = await peer.call(key=key, requestId=f"r_{uuid.uuid4().hex}")
    need(first.text == again.text, f"first {quoted(first.text)}, then {quoted(again.text)}")


@KIT.check(
    "§5.1",
    "冲突则返回 `ERR_IDEMPOTENCY_CONFLICT`。",
    "the same Idempotency-Key with another payload: ERR_IDEMPOTENCY_CONFLICT",
)
async def refuses_a_used_key(peer: DevicePeer) -> None:
    key = uuid.uuid4().hex
    await peer.call(key=key)
    body = {"payload": {"name": peer.tool, "args": {**peer.args, "testkit": 2}}}
    answer = await peer.post("/command/tool", body, Idempotency_Key=key)
    refused_with(answer, "ERR_IDEMPOTENCY_CONFLICT")


@KIT.check(
    "§1.2",
    "`Idempotency-Key`: 幂等键（有副作用请求必填）",
    "a command of level write without a key: ERR_INVALID_REQUEST",
)
async def wants_a_key_for_writes(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    payload = {"action": "exec", "args": {"cmd": "ls -la"}}
    answer = await peer.post(
        "/command/system", {"payload": payload, "security": {"level": "write"}}
    )
    refused_with(answer, "ERR_INVALID_REQUEST", "ERR_PERMISSION_DENIED", "ERR_NOT_IMPLEMENTED")


@KIT.check("§3.3", "- `exec = write`", "exec with security.level read: ERR_PERMISSION_DENIED")
async def holds_the_declared_level(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    body = {
        "payload": {"action": "exec", "args": {"cmd": "ls -la"}},
        "security": {"level": "read"},
    }
    answer = await peer.post("/command/system", body, Idempotency_Key=uuid.uuid4().hex)
    refused_with(answer, "ERR_PERMISSION_DENIED", "ERR_NOT_IMPLEMENTED")


@KIT.check(
    "§3.4",
    'capabilityId: "mcp.playwright",',
    "an unknown capability is refused with a code of the table",
)
async def refuses_an_unknown_capability(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    payload = {
        "capabilityId": "mcp.testkit_no_such",
        "action": "click",
        "args": {"selector": "#submit"},
        "sessionId": "testkit",
        "context": {"url": "https://example.com", "userAgent": "testkit", "locale": "en"},
    }
    answer = await peer.post("/command/mcp", {"payload": payload}, Idempotency_Key=uuid.uuid4().hex)
    refused_with(answer, "ERR_PERMISSION_DENIED", "ERR_INVALID_REQUEST")


@KIT.check(
    "§5.3",
    "通过 `X-RateLimit-Limit` / `X-RateLimit-Remaining` / `Retry-After` 返回限额信息。",
    "an answer has X-RateLimit-Limit and X-RateLimit-Remaining, both whole numbers",
)
async def tells_the_rate_limit(peer: DevicePeer) -> None:
    answer = await peer.call()
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining"):
        need(answer.headers.get(name, "").isdigit(), f"{name} is {answer.headers.get(name)!r}")


@KIT.check(
    "§2.3",
    "events: [{ id, type, time, status, source, message, durationMs, metadata }]",
    "a command makes events with all eight members; the cursor only rises",
)
async def tells_events(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    before = await _poll(peer)
    await peer.call()
    seen: list[Any] = []
    cursor = before["cursor"]
    async with asyncio.timeout(EVENTS_S):
        while not seen:
            page = await _poll(peer, since=cursor)
            need(page["cursor"] >= cursor, f"the cursor fell from {cursor} to {page['cursor']}")
            cursor = page["cursor"]
            seen += page["events"]
            await asyncio.sleep(0.1)
    _check_events(seen)


@KIT.check(
    "§2.3",
    "过期或缺失时客户端回退到 `GET /status`。",
    "a cursor from nowhere is refused or answered, and never an internal error",
)
async def answers_a_dead_cursor(peer: DevicePeer) -> None:
    await peer.needs_pairing()
    answer = await peer.get("/events/poll?since=999999999999999")
    need(answer.status < 500, f"it answered {answer.status}")


@KIT.check(
    "§4.1",
    "status          // healthy | degraded | offline",
    "a capability can be registered; offline, it is refused",
)
async def registers_capabilities(peer: DevicePeer) -> None:
    capability = {
        "capabilityId": "mcp.testkit",
        "scope": "browser",
        "level": "read",
        "rateLimit": 60,
        "version": "1",
        "owner": "testkit",
        "status": "offline",
    }
    answer = await peer.operator("POST", "/capabilities/register", capability)
    need(answer.is_success, f"it answered {answer.status}: {quoted(answer.text)}")
    await peer.needs_pairing()
    payload = {"capabilityId": "mcp.testkit", "action": "look", "args": {}}
    refused = await peer.post(
        "/command/mcp", {"payload": payload}, Idempotency_Key=uuid.uuid4().hex
    )
    need(not refused.is_success, "a command to the offline capability was accepted")


async def _poll(peer: DevicePeer, **query: Any) -> dict[str, Any]:
    answer = await peer.get(f"/events/poll?{urlencode(query)}")
    if not query and answer.status == 410:  # it wants a cursor
        return {"cursor": 0, "events": []}
    need(answer.is_success, f"/events/poll answered {answer.status}: {quoted(answer.text)}")
    page = answer.json
    member(page, "cursor", int)
    member(page, "events", list)
    return dict(page)


def _check_events(events: Iterable[Any]) -> None:
    for event in events:
        need(isinstance(event, dict), f"an event is {quoted(event)}")
        missing = EVENT_MEMBERS - event.keys()
        need(not missing, f"an event lacks {sorted(missing)}: {quoted(event)}")
        need(event["type"] in EVENT_TYPES, f"an event's type is {event['type']!r}")
