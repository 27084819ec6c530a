"""A whole tool pipeline on a directory: the real journal, evidence, audit and policy.

The engines are the built-in ones, with a web and a sandbox in memory, and one of the test's own
that counts how often each of its tools was run.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from tests.support.sessions import FakeSession
from tests.support.web import FakeWeb
from toolgate.access.rate_limits import RateLimits
from toolgate.access.registry import Registry
from toolgate.core.clock import Clock
from toolgate.core.enums import Level
from toolgate.core.ids import Owner
from toolgate.core.tools import Caller, Tool, ToolOutput, ToolRequest
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.policy.file import load_policy
from toolgate.policy.model import ACTIVE_POLICY, Policy
from toolgate.policy.policies import Policies
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.sandbox.sandbox import Session
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.secrets.approver_view import ApproverView
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import Redactor
from toolgate.surfaces.executor.local import LocalExecutor
from toolgate.testing.clock import FakeClock
from toolgate.tools.approval_records import Approvals
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.engine import Update, no_update
from toolgate.tools.engines.builtin.engine import BuiltInEngine
from toolgate.tools.files import FileArtifacts
from toolgate.tools.gate import Gate
from toolgate.tools.ledger import Ledger
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import Denied, Pending, Ran, call_tool
from toolgate.tools.responses import Response
from toolgate.tools.routing import Routing, named_tools

POLICY: Final = """
version: 1
name: suite
default: deny
allowlist:
  tools: [echo, "kv.*", count, fail, hang, unknown.tool, http.fetch, shell]
  http_fetch_hosts: [a.example.com]
rules:
  - {id: ask-first, ask: "ask.*", match: any, reason: A person must see it}
"""


class CountingEngine:
    """Tools whose runs are counted; `gate` holds `hang` until it is set."""

    ref: Final = "counting@1"

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.outputs: dict[str, ToolOutput | Exception] = {}
        self.target = ""  # where they run

    def tools(self) -> list[Tool]:
        return [
            Tool(name, "", level, {}, repeatable=name == "count")
            for name, level in (
                ("count", Level.READ),
                ("fail", Level.WRITE),
                ("hang", Level.WRITE),
                ("ask.once", Level.WRITE),
                ("denied", Level.WRITE),
            )
        ]

    async def place(self, _: ToolRequest) -> str:
        return self.target

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        self.runs[request.tool] += 1
        self.begun.set()
        scripted = self.outputs.get(request.tool)
        if isinstance(scripted, Exception):
            raise scripted
        if scripted is not None:
            update(scripted.stdout)
            return scripted
        if request.tool == "hang":
            await self.gate.wait()
        code = 1 if request.tool == "fail" else 0
        return ToolOutput(code, stdout=str(self.runs[request.tool]), stderr="no" * code)


@dataclass(frozen=True, slots=True)
class Rig:
    home: Path
    clock: Clock
    bus: LocalBus
    journal: Journal
    evidence: EvidenceLog
    audit: AuditLog
    patterns: SecretPatterns
    policies: dict[str, Policy]
    approvals: Approvals
    gate: Gate
    executor: LocalExecutor
    engine: CountingEngine
    web: FakeWeb
    session: FakeSession
    registry: Registry
    limits: CapabilityLimits
    policy_rows: dict[str, int]

    async def run(
        self, request: ToolRequest, *, update: Update = no_update
    ) -> Denied | Pending | Ran:
        """The answer, whether it is new or known."""
        answer = await call_tool(self.gate, request, update=update)
        return answer if isinstance(answer, Ran) else answer._replace(known=False)

    async def respond(self, request: ToolRequest) -> Response:
        """The response as the evidence keeps it."""
        match await self.gate.begin(request):
            case Denied(response=response) | Pending(response=response):
                pass
            case allowed:
                await allowed.finish(await allowed.run())
                response = allowed.response
        assert response is not None
        return response


@asynccontextmanager
async def open_rig(
    home: Path,
    *,
    clock: Clock | None = None,
    policies: Mapping[str, str] | None = None,
    owner: str = "here",
    deadline_s: float = 600.0,
    knows_devices: bool = False,
) -> AsyncIterator[Rig]:
    """`policies` maps a policy_ref to the text of its YAML.

    With `knows_devices` the gate refuses devices that are not in the registry.
    """
    clock, bus, patterns = clock or FakeClock(), LocalBus(), SecretPatterns()
    redactor = patterns.redactor()
    parse_shell = TreeSitterShellParser()
    texts = policies or {ACTIVE_POLICY: POLICY}
    known = {
        ref: load_policy(text, name=ref, parse_shell=parse_shell) for ref, text in texts.items()
    }
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    try:
        evidence = await EvidenceLog.open(
            TileFiles(home / "evidence"),
            journal=journal,
            blobs=DiskBlobs(home / "blobs"),
            bus=bus,
            clock=clock,
            signer=Ed25519Signer.in_home(home),
            redactor=redactor,
            commit=Commitments.in_home(home),
        )
        try:
            yield _rig(
                home,
                clock,
                bus,
                journal,
                evidence,
                patterns,
                redactor,
                parse_shell,
                known,
                owner,
                deadline_s,
                knows_devices=knows_devices,
            )
        finally:
            await evidence.close()
    finally:
        await journal.close()


def _rig(
    home: Path,
    clock: Clock,
    bus: LocalBus,
    journal: Journal,
    evidence: EvidenceLog,
    patterns: SecretPatterns,
    redactor: Redactor,
    parse_shell: TreeSitterShellParser,
    known: dict[str, Policy],
    owner: str,
    deadline_s: float,
    *,
    knows_devices: bool,
) -> Rig:
    counting, web, session = CountingEngine(), FakeWeb({}), FakeSession()

    async def open_session(_: ToolRequest) -> Session:
        return session

    rows: dict[str, int] = {}  # versions in the journal, where a test says so
    policies = Policies(
        known.get,
        parse_shell,
        level_of=lambda request: routing.level_of(request),
        read_row_version=lambda: rows.get(ACTIVE_POLICY, 0),
    )
    registry = Registry(journal, clock)
    limits = CapabilityLimits(
        clock,
        Capabilities(journal, clock, PlainSeal(), SilentAudit()),
        RateLimits(journal, clock),
        capability_of=lambda _tool: "",
    )
    built_in = BuiltInEngine(
        journal=journal,
        web=web,
        session=open_session,
        isolation="fake",
        permits=policies.permits_hop,
        version="1",
    )
    counted = replace(named_tools(counting, counting.tools()), place=counting.place)
    routing = Routing([counted, named_tools(built_in, built_in.tools())])
    audit = AuditLog(journal, redactor=redactor)
    approvals = Approvals(
        journal, evidence, clock, audit, AesGcmSeal(b"k" * 32), ApproverView(patterns)
    )
    gate = Gate(
        policies=policies,
        routing=routing,
        ledger=Ledger(journal, evidence, audit, clock, Owner(owner, "1")),
        approvals=approvals,
        redactor=redactor,
        registry=registry if knows_devices else None,
        limits=limits,
        deadline_s=deadline_s,
    )
    executor = LocalExecutor(
        gate,
        evidence,
        journal,
        clock,
        Caller(role="executor", level=Level.SIGN),
        "1",
        FileArtifacts(DiskBlobs(home / "blobs"), journal, clock=clock),
    )
    return Rig(
        home, clock, bus, journal, evidence, audit, patterns, known, approvals, gate,
        executor, counting, web, session, registry, limits, rows,
    )  # fmt: skip
