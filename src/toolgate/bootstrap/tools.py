"""The gate and everything a tool call may reach."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolgate.bootstrap.admission import Admission
from toolgate.bootstrap.browser import browser_route, browser_tasks
from toolgate.bootstrap.gates import open_gate_parts
from toolgate.bootstrap.installation import VERSION, Core, Installation
from toolgate.commands.records import InterruptedReads, Rows
from toolgate.core.enums import Level, TargetKind, TrustLevel
from toolgate.core.errors import Misconfigured
from toolgate.core.json_schema import schema_errors
from toolgate.core.tools import Caller, Tool
from toolgate.core.urls import parse_url
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.evidence import Evidence
from toolgate.evidence.log import EvidenceLog
from toolgate.policy.decide import FindPolicy
from toolgate.policy.file import PolicyFile, load_policy
from toolgate.policy.inputs import COMMAND_TOOLS
from toolgate.sandbox.bwrap import BwrapSandbox
from toolgate.sandbox.choice import BWRAP, make_sandbox
from toolgate.sandbox.egress import SandboxEgress
from toolgate.sandbox.egress_hosts import allows
from toolgate.sandbox.programs import ProgramSandbox
from toolgate.sandbox.sandbox import SessionKey
from toolgate.sandbox.sessions import Sessions as Sandboxes
from toolgate.settings import Settings
from toolgate.surfaces.executor.local import LocalExecutor
from toolgate.tasks.engine import BrowserEngine
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.toolset import Toolset
from toolgate.tools.approval_records import Approvals
from toolgate.tools.capabilities import BROWSER_CAPABILITY
from toolgate.tools.egress import EgressRecords, PolicyEgress, registered_egress
from toolgate.tools.engines.builtin.engine import BuiltInEngine
from toolgate.tools.engines.builtin.registry import BUILT_IN
from toolgate.tools.engines.files_run import FilesRun
from toolgate.tools.engines.path_rules import PathRules
from toolgate.tools.engines.remote_runner import DockerRunners
from toolgate.tools.engines.sandbox import SandboxEngine, guarded_http
from toolgate.tools.engines.transfers import Transfers
from toolgate.tools.engines.web_search import WebSearch
from toolgate.tools.files import FileArtifacts
from toolgate.tools.gate import Gate
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.routing import Route as ToolRoute
from toolgate.tools.routing import Routing, named_tools, on_target, runs_on_target
from toolgate.tools.simulation import Simulation
from toolgate.tools.targets.health import TargetHealths
from toolgate.tools.targets.registry import TargetEngine, Targets, tokens
from toolgate.tools.targets.tools import TOOLS as TARGET_TOOLS
from toolgate.tools.upstream.pins import Pins
from toolgate.tools.upstream.programs import Programs
from toolgate.tools.upstream.registered import RegisteredServers
from toolgate.web.egress_proxy import UNREACHABLE, EgressDecision
from toolgate.web.guard import Guard, GuardedWeb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Execution:
    """The gate, and what the surfaces read beside it."""

    gate: Gate
    policy: PolicyFile
    approvals: Approvals
    audit: AuditLog
    evidence: EvidenceLog
    targets: Targets
    target_health: TargetHealths
    executor: LocalExecutor
    level_of: Callable[[str], Level | None]
    upstreams: RegisteredServers
    limits: CapabilityLimits | None
    simulation: Simulation
    tasks: Toolset
    browser_tools: Sequence[Tool]


async def open_execution(
    settings: Settings,
    installation: Installation,
    core: Core,
    admission: Admission | None = None,
) -> Execution:
    """`admission` is None where there is no gateway: no devices, and nothing is registered."""
    journal, clock, redactor = core.journal, core.clock, core.redactor
    parts = await open_gate_parts(settings, installation, core)
    blobs, evidence, audit, policy = parts.blobs, parts.evidence, parts.audit, parts.policy
    policies = parts.policies(lambda call: routing.level_of(call))
    guard = Guard()
    web = await installation.enter(GuardedWeb(guard))
    way_out = policed_egress(guard, policy.find, evidence=evidence, audit=audit)
    sandboxes = Sandboxes(make_sandbox(BWRAP), clock=clock, egress=way_out)
    sandboxes.start_soon()
    installation.on_stop(sandboxes.close)
    runners = DockerRunners(clock=clock)
    installation.on_stop(runners.close)
    targets = Targets(journal, clock=clock, seal=core.seal, read_promises=runners.read_promises)
    for known, name in tokens(await targets.list()).items():
        core.learn(known, name)
    target_health = TargetHealths(
        targets.list,
        clock=clock,
        local=lambda _: sandboxes.health(),
        remote=runners.health,
        is_held_back=lambda target: runners.breaker(target).is_open,
    )
    installation.on_stop(target_health.stop)
    built_in = BuiltInEngine(
        journal=journal,
        web=web,
        session=sandboxes.open_for,
        isolation=sandboxes.isolation,
        permits=policies.permits_hop,
        version=VERSION,
        holds_secret=lambda text: redactor.text(text) != text,
    )
    local = SandboxEngine(
        sandboxes,
        http=guarded_http(web, permits=policies.permits_hop),
        others=dict.fromkeys(
            COMMAND_TOOLS & BUILT_IN.keys(),
            lambda request, update: built_in.run(request, update=update),
        ),
    )
    files = FileArtifacts(
        blobs, journal, clock=clock, holds_secret=lambda text: bool(core.patterns.find(text))
    )
    at_target = TargetEngine(
        targets,
        local=local,
        remote=runners.engine,
        can_be_clean=lambda target: (
            sandboxes.can_be_clean
            if target.kind is TargetKind.LOCAL_HOST
            else runners.can_be_clean(target)
        ),
    )
    on_targets = PathRules(Transfers(at_target, files), policies)
    files_run = FilesRun(policies, sandboxes)
    pins = Pins(journal, clock, core.seal, audit)
    await pins.load()
    upstreams = RegisteredServers(
        clock,
        None if admission is None else admission.capabilities,
        programs=mcp_programs(settings, installation, guard, evidence=evidence, audit=audit),
        pins=pins,
    )
    installation.on_stop(upstreams.sessions.close)
    browser = browser_route(lambda: in_browser, TrustLevel.REMOTE)
    limits: CapabilityLimits | None = None
    if admission is not None:
        limits = CapabilityLimits(
            clock,
            admission.capabilities,
            admission.rates,
            upstreams.sessions.capability_of,
            dict.fromkeys(browser.named, BROWSER_CAPABILITY),
            pins,
        )
    routes = [
        *([] if limits is None else [limits.route()]),
        on_target(
            lambda _: on_targets,
            tools=[
                *TARGET_TOOLS,
                *(tool for tool in built_in.tools() if tool.name in COMMAND_TOOLS),
            ],
            place=files_run.added_to(at_target.place),
            can_be_clean=at_target.can_be_clean,
        ),
        browser,
        upstreams.route(),
        *await _search(settings, installation),
        named_tools(built_in, [tool for tool in built_in.tools() if not runs_on_target(tool.name)]),
    ]
    routing = Routing(routes)
    registry = None if admission is None else admission.registry
    gate = parts.gate(core, policies, routing, registry=registry, limits=limits)
    await gate.recover(also=InterruptedReads(journal, clock, Rows(core.seal, core.owner)).end)
    tasks = await installation.enter(
        browser_tasks(
            settings, gate=gate, journal=journal, bus=core.bus, clock=clock, new_id=core.new_id
        )
    )
    in_browser = BrowserEngine(tasks, TaskAgent(tasks, check=schema_errors))
    await tasks.runtime.start()
    whoever_has_the_token = Caller(role="executor", level=Level.SIGN)
    executor = LocalExecutor(gate, evidence, journal, clock, whoever_has_the_token, VERSION, files)
    simulation = Simulation(
        journal,
        evidence,
        lambda text: load_policy(text, parse_shell=parts.parse_shell),
        parts.parse_shell,
    )
    return Execution(
        gate,
        policy,
        parts.approvals,
        audit,
        evidence,
        targets,
        target_health,
        executor,
        routing.known_level,
        upstreams,
        limits,
        simulation,
        tasks,
        in_browser.tools(),
    )


def policed_egress(
    guard: Guard, find: FindPolicy, *, evidence: Evidence, audit: AuditLog
) -> SandboxEgress:
    """The way out of this machine's sandboxes: what the policy grants, and each use on record."""
    granted = PolicyEgress(find)
    records = EgressRecords(evidence, audit, granted.decide)

    async def note(key: SessionKey, decision: EgressDecision) -> None:
        refusal = "" if decision.allowed else decision.reason
        reached = decision.reason != UNREACHABLE
        await records.note(key, decision.host, decision.port, refusal, reached=reached)

    return SandboxEgress(guard, grants=granted.grants, note=note, closed=records.forget)


def mcp_programs(
    settings: Settings,
    installation: Installation,
    guard: Guard,
    *,
    evidence: Evidence,
    audit: AuditLog,
) -> Programs:
    """The programs of MCP servers: their sandbox, and their way out with each use on record."""
    sandbox = BwrapSandbox()
    installation.on_stop(sandbox.close)

    def way_out(_key: SessionKey, hosts: Sequence[str]) -> SandboxEgress:
        allowed = allows(hosts)
        records = EgressRecords(evidence, audit, registered_egress(allowed))

        async def note(key: SessionKey, decision: EgressDecision) -> None:
            refusal = "" if decision.allowed else decision.reason
            reached = decision.reason != UNREACHABLE
            await records.note(key, decision.host, decision.port, refusal, reached=reached)

        return SandboxEgress(guard, grants=lambda _: allowed, note=note, closed=records.forget)

    files = (settings.policy_file, settings.mcp_file)
    protected = [settings.home, *(Path(file) for file in files if file)]
    return Programs(
        ProgramSandbox(sandbox),
        way_out,
        settings.home / "servers",
        [path.resolve() for path in protected],
    )


async def _search(settings: Settings, installation: Installation) -> list[ToolRoute]:
    """`web.search`, where the operator has named a provider; its own host may be private."""
    if not settings.search_provider:
        return []
    if settings.search_provider == "searxng" and not settings.search_url:
        raise Misconfigured("SEARCH_PROVIDER is searxng; set SEARCH_URL to where it is")
    if settings.search_provider == "brave" and not settings.search_key:
        raise Misconfigured("SEARCH_PROVIDER is brave; set SEARCH_KEY to the key for it")
    opened = frozenset({parse_url(settings.search_url).endpoint} if settings.search_url else ())
    web = await installation.enter(GuardedWeb(Guard(allow_private=opened)))
    engine = WebSearch(
        web,
        provider=settings.search_provider,
        url=settings.search_url,
        key=settings.search_key.reveal(),
    )
    return [named_tools(engine, engine.tools())]
