"""The gateway, built from its dependencies; imports no concrete driver."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolgate.access.audit import Records as Evidence
from toolgate.access.authentication import Authenticator
from toolgate.access.pairing import PAIRINGS, Pairing
from toolgate.access.rate_limits import RATES, RateLimits
from toolgate.access.registry import Registry
from toolgate.access.revocations import REVOCATIONS
from toolgate.access.sign_in import SignIn
from toolgate.commands.commands import Commands
from toolgate.commands.planners.agent import AgentPlanner
from toolgate.commands.planners.mcp import McpPlanner, OwnServer
from toolgate.commands.planners.system import SystemPlanner
from toolgate.commands.planners.tool import LevelOf, ToolPlanner
from toolgate.commands.records import ENDED, OPEN, Records, Rows
from toolgate.commands.states import Keys, States
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, Level
from toolgate.core.ids import NewId, Owner
from toolgate.core.rates import Rate
from toolgate.evidence.audit import AuditLog
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Journal, Row
from toolgate.runs import records
from toolgate.runs.revocations import Revocations
from toolgate.runs.runs import Runs
from toolgate.secrets.seal import Seal
from toolgate.surfaces.gateway.authentication import Doors
from toolgate.surfaces.gateway.capabilities import CapabilityRoutes
from toolgate.surfaces.gateway.command_routes import CommandRoutes
from toolgate.surfaces.gateway.events import Events
from toolgate.surfaces.gateway.pairing import PairingRoutes, TokenRoutes
from toolgate.surfaces.gateway.routes import Route
from toolgate.surfaces.gateway.server import Gateway
from toolgate.surfaces.gateway.status import HealthOfTargets, StatusRoutes
from toolgate.surfaces.gateway.v2 import Verify
from toolgate.tools.capabilities import BROWSER_CAPABILITY, PLAYWRIGHT_SCOPE, Capability
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import ToolGate
from toolgate.tools.upstream.catalogue import Upstreams

log = logging.getLogger(__name__)

DEFAULT_RATE: Final = Rate(wire.RATE_PER_MINUTE)

OnDue = Callable[[Row], Awaitable[None]]

HOUSEKEEPING_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    version: str
    auto_approve: bool = False
    rate: Rate = DEFAULT_RATE
    hosts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundations:
    """The dependencies of the gateway."""

    journal: Journal
    bus: Bus
    clock: Clock
    new_id: NewId
    owner: Owner
    seal: Seal
    audit: AuditLog
    evidence: Evidence
    gate: ToolGate
    level_of: LevelOf
    runs: Runs
    upstreams: Upstreams
    authenticator: Authenticator
    sign_in: SignIn
    limits: CapabilityLimits
    wake_at: Callable[[int], None]
    last_at: Callable[[str], int | None]
    verify: Verify
    targets: HealthOfTargets
    more_routes: Sequence[Route] = ()
    own_servers: Mapping[str, OwnServer] = field(default_factory=dict)


SYSTEM_CAPABILITIES: Final = tuple(
    Capability(str(action), "system", level, updated_at=0)
    for action, level in wire.ACTION_LEVELS.items()
)
OWN_CAPABILITIES: Final = (
    Capability(BROWSER_CAPABILITY, PLAYWRIGHT_SCOPE, Level.WRITE, updated_at=0),
)


@dataclass(slots=True)
class Assembled:
    gateway: Gateway
    registry: Registry
    revocations: Revocations
    pairing: Pairing
    capabilities: Capabilities
    commands: Commands
    states: States
    events: Events
    limits: RateLimits
    keys: Keys

    async def load(self) -> None:
        """Read the journal, before the first request; callers and capabilities were read before."""
        for part in (
            self.revocations,
            self.pairing,
            self.events,
            self.commands,
        ):
            await part.load()

    async def housekeeping(self) -> None:
        """Forget old events, again and again."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            try:
                await self.events.forget_old()
            except Exception:  # try again at the next turn
                log.exception("old_events_kept")

    @property
    def on_due(self) -> Mapping[str, OnDue]:
        return {
            REVOCATIONS: self.revocations.on_due,
            PAIRINGS: self.pairing.on_due,
            RATES: self.limits.on_due,
            OPEN: self.states.on_open_due,
            ENDED: self.keys.on_ended_due,
        }


def assemble(on: Foundations, options: Options) -> Assembled:
    revocations = Revocations(on.journal, on.clock, on.runs, on.wake_at)
    authenticator, registry = on.authenticator, on.authenticator.registry
    capabilities, rates = on.limits.capabilities, on.limits.rates
    registry.subscribe(revocations.end_runs)
    pairing = Pairing(on.journal, on.clock, registry, on.audit, on.evidence, options.auto_approve)
    rows = Rows(on.seal, on.owner)
    keys = Keys(on.journal, on.clock, rows)
    states = States(on.journal, on.bus, on.clock, rows)
    commands = Commands(
        journal=on.journal,
        clock=on.clock,
        new_id=on.new_id,
        registry=registry,
        limits=rates,
        keys=keys,
        capability_limits=on.limits,
        records=Records(on.audit, on.evidence, on.clock, on.audit.redact),
        rows=rows,
        states=states,
        planners={
            CommandKind.AGENT: AgentPlanner(on.runs, on.bus, registry),
            CommandKind.TOOL: ToolPlanner(on.level_of, on.limits),
            CommandKind.SYSTEM: SystemPlanner(
                lambda name: on.level_of(name) is not None, on.clock, capabilities
            ),
            CommandKind.MCP: McpPlanner(on.limits, on.upstreams, on.own_servers),
        },
        gate=on.gate,
        rate=options.rate,
        wake_at=on.wake_at,
    )
    events = Events(on.journal, on.bus, on.clock, registry)
    status = StatusRoutes(
        clock=on.clock,
        version=options.version,
        registry=registry,
        states=states,
        events=events,
        open_runs=lambda: _open_runs(on.runs),
        last_at=on.last_at,
        targets=on.targets,
        journal=on.journal,
    )
    gateway = Gateway(
        (
            *status.routes(),
            *events.routes(),
            *PairingRoutes(pairing).routes(),
            *TokenRoutes(registry, on.clock, on.audit).routes(),
            *CommandRoutes(states, registry).routes(),
            *CapabilityRoutes(capabilities, on.clock).routes(),
            *on.more_routes,
        ),
        doors=Doors(authenticator, pairing, on.sign_in, options.hosts),
        commands=commands,
        events=events,
        trail=on.audit,
        journal=on.journal,
        clock=on.clock,
        version=options.version,
        verify=on.verify,
    )
    return Assembled(
        gateway,
        registry,
        revocations,
        pairing,
        capabilities,
        commands,
        states,
        events,
        rates,
        keys,
    )


async def _open_runs(runs: Runs) -> list[wire.InFlight]:
    found: list[wire.InFlight] = []
    for run_id, _ in await runs.open_runs():
        row = await runs.journal.get(records.RUNS, run_id)
        if row is not None:
            line = records.decode_run_line(row.value)
            found.append(
                wire.InFlight(
                    request_id=run_id,
                    name=line.agent_id,
                    started_at=line.started_at,
                    device_id=line.user_id,
                    run_id=run_id,
                )
            )
    return found
