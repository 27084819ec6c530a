"""A whole gateway on a real socket, on a journal in memory or on disk, with a gate by hand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.audit import SilentEvidence
from tests.support.seal import PlainSeal
from tests.support.upstreams import FakeUpstreams
from toolgate.access.authentication import Authenticator
from toolgate.access.rate_limits import RateLimits
from toolgate.access.registry import Registry
from toolgate.access.sign_in import SignIn
from toolgate.access.signatures import verify_ed25519
from toolgate.core.clock import Clock
from toolgate.core.ids import Owner
from toolgate.core.random_ids import RandomIds
from toolgate.core.rates import Rate
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import AuditLog, AuditQuery
from toolgate.http import asgi
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.runs import records
from toolgate.runs.advance import Advance
from toolgate.runs.agents.agent import Agent
from toolgate.runs.agents.echo import EchoAgent
from toolgate.runs.agents.registry import Agents
from toolgate.runs.agents.script import ScriptAgent
from toolgate.runs.client_tools import SessionTools
from toolgate.runs.conversations import Conversations
from toolgate.runs.originals import Originals
from toolgate.runs.runs import Runs
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.secrets.redaction import Redactor
from toolgate.surfaces.gateway.assembly import (
    SYSTEM_CAPABILITIES,
    Assembled,
    Foundations,
    Options,
    assemble,
)
from toolgate.surfaces.gateway.events import health_event
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import FakeGate
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.calls import EXECUTIONS
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.targets.health import TargetHealth

OPERATOR = "operator-token-of-the-tests"
BOUND_S = 10.0


@dataclass(slots=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes
    json: Any

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def data(self) -> Any:
        return self.json["data"]


@dataclass(slots=True)
class Paired:
    """A device with its token, as a client holds it."""

    door: "Door"
    device_id: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Device-Id": self.device_id, "X-Device-Token": self.token}

    async def get(self, path: str, **headers: str) -> Answered:
        return await self.door.ask("GET", path, headers={**self.headers, **_dashed(headers)})

    async def post(self, path: str, body: Any, *, key: str = "", **headers: str) -> Answered:
        extra = {"Idempotency-Key": key} if key else {}
        sent = {**self.headers, **extra, **_dashed(headers)}
        return await self.door.ask("POST", path, body=body, headers=sent)

    async def tool(
        self, name: str, args: Mapping[str, Any] | None = None, /, *, key: str = "", **more: Any
    ) -> Answered:
        body = {"payload": {"name": name, "args": args or {}}, **more}
        return await self.post("/command/tool", body, key=key)


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(slots=True)
class Door:
    url: str
    http: aiohttp.ClientSession
    parts: Assembled
    gate: FakeGate
    upstreams: FakeUpstreams
    journal: Journal
    clock: Clock
    audit: AuditLog
    dispatcher: Dispatcher
    runs: Runs
    stop: Any = None
    extra: dict[str, Any] = field(default_factory=dict)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        operator: bool = False,
    ) -> Answered:
        sent = dict(headers or {})
        if operator:
            sent["Authorization"] = f"Bearer {OPERATOR}"
        kind = {"json": body} if body is not None else {"data": data}
        async with asyncio.timeout(BOUND_S * 4):
            async with self.http.request(method, self.url + path, headers=sent, **kind) as answer:
                content = await answer.read()
                known = await answer.json() if "json" in answer.content_type else None
                return Answered(answer.status, answer.headers, content, known)

    async def pair(self, device_id: str = "laptop", /, **scope: Any) -> Paired:
        """A device that knocked and was let in."""
        await self.ask("GET", "/status", headers={"X-Device-Id": device_id})
        wanted: dict[str, Any] = {"deviceId": device_id}
        if scope:
            wanted["scope"] = scope
        answer = await self.ask("POST", "/pairing/approve", body=wanted, operator=True)
        assert answer.status == 200, answer.json
        return Paired(self, device_id, answer.data["deviceToken"])

    async def audit_rows(self, **wanted: Any) -> list[Any]:
        return (await self.audit.query(AuditQuery(limit=500, **wanted))).items


ALL: dict[str, Any] = {"tools": "sign", "system": True, "mcp": True, "agent": True}


async def _no_targets() -> list[TargetHealth]:
    return []


def _nowhere(*_: object) -> Agent:
    raise AssertionError("no agent here is elsewhere")


@contextlib.asynccontextmanager
async def open_door(
    *,
    home: Path | None = None,
    clock: Clock | None = None,
    gate: FakeGate | None = None,
    rate: int = 60,
    redactor: Redactor | None = None,
    gateway_token: str = "",
    **options: Any,
) -> AsyncIterator[Door]:
    clock = clock or SystemClock()
    bus = LocalBus()
    journal: MemoryJournal | SqliteJournal
    if home is None:
        journal = MemoryJournal(clock=clock, bus=bus)
    else:
        journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    seal = AesGcmSeal(b"k" * 32)
    new_id = RandomIds(clock)
    gate = gate or FakeGate()
    gate.journal = journal
    upstreams = FakeUpstreams()
    dispatcher = Dispatcher(journal, clock)
    tools = SessionTools(journal)
    builtin: dict[str, Agent] = {"echo": EchoAgent(), "script": ScriptAgent()}
    audit = AuditLog(journal, redactor=redactor or Redactor(lambda _text: []))
    agents = Agents(journal, builtin, _nowhere, PlainSeal(), audit)
    runs = Runs(
        journal=journal,
        dispatcher=dispatcher,
        gate=gate,
        clock=clock,
        new_id=RandomIds(clock),
        agents=agents,
        session_tools=tools,
        originals=Originals(journal, seal),
    )
    gate.registry = Registry(journal, clock)
    capabilities = Capabilities(
        journal,
        clock,
        seal,
        audit,
        SYSTEM_CAPABILITIES,
        tell=lambda capability_id, health: (health_event(capability_id, health),),
    )
    gate.limits = CapabilityLimits(
        clock, capabilities, RateLimits(journal, clock), upstreams.capability_of
    )
    parts = assemble(
        Foundations(
            journal=journal,
            bus=bus,
            clock=clock,
            new_id=RandomIds(clock),
            owner=Owner("local", new_id("inc")),
            seal=seal,
            audit=audit,
            evidence=SilentEvidence(),
            gate=gate,
            level_of=gate.level_of,
            runs=runs,
            upstreams=upstreams,
            authenticator=Authenticator(
                gate.registry, operator_token=OPERATOR, gateway_token=gateway_token
            ),
            sign_in=SignIn(OPERATOR, clock, journal),
            limits=gate.limits,
            wake_at=dispatcher.wake_at,
            verify=verify_ed25519,
            last_at=lambda _kind: None,
            targets=_no_targets,
        ),
        Options(version="1.2.3", rate=Rate(rate), **options),
    )
    for part in (parts.registry, parts.limits, parts.capabilities):
        await part.load()
    await parts.load()
    runs.watch_approvals(bus)
    dispatcher.start(
        Advance(runs, tools, Conversations(journal)),
        {
            records.AGENT_DEADLINES: runs.on_agent_deadline,
            EXECUTIONS: runs.on_call_deadline,
            records.REQUESTS: runs.on_request_expired,
            **parts.on_due,
        },
    )
    bound = asgi.bind("127.0.0.1", 0, setting="GATEWAY_PORT")
    listener = asgi.Listener(parts.gateway.app(), bound, websockets=True)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    await listener.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Door(url, http, parts, gate, upstreams, journal, clock, audit, dispatcher, runs)
    finally:
        parts.events.close()
        await listener.stop()
        await parts.states.stop()
        await dispatcher.drain(seconds=1)
        await journal.close()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as door:
        yield door


@pytest.fixture
async def frozen() -> AsyncIterator[Door]:
    """A door whose clock goes only where the test moves it."""
    async with open_door(clock=FakeClock()) as door:
        yield door
