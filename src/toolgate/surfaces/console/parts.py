"""What the console stands on, and what its endpoints share. It knows no concrete adapter."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from toolgate.access import devices
from toolgate.access.pairing import Pairing
from toolgate.access.registry import Registry
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.clock import Clock
from toolgate.core.errors import Invalid
from toolgate.core.tools import JsonValue
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.http import asgi
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Journal, Operation
from toolgate.policy.model import Policy
from toolgate.runs import records
from toolgate.runs.runs import Runs
from toolgate.tasks.toolset import Toolset
from toolgate.tools.approval_records import Approvals
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.outcomes import ToolGate
from toolgate.tools.simulation import Simulation
from toolgate.tools.targets.registry import Targets

AT_CONSOLE: Final = replace(devices.OPERATOR, via=devices.Via.CONSOLE)
OPERATOR: Final = AT_CONSOLE.name
MAX_PAGE: Final = 200
COUNTED: Final = 1_000_000  # approvals that wait: all of them, so that a number is true
TEXT_LIMIT: Final = 100_000  # characters of one text that a page is given; the rest is evidence

S = TypeVar("S")
Answer = Any
Handle = Callable[[Request], Awaitable[Answer]]


class PolicyInForce(Protocol):
    text: str
    current: Policy
    error: str

    async def replace(
        self, text: str, *, over: str, also: Callable[[Policy], Sequence[Operation]]
    ) -> Policy:
        """Commit the operations of `also` with the change. Raises InvalidPolicy, Refused,
        Unavailable, Conflict where another than `over` is in force, and then changes nothing."""
        ...


class EvidenceLog(Protocol):
    failure: str

    @property
    def checkpoint(self) -> str: ...

    @property
    def key(self) -> object:
        """The public key; its text is how it is published."""
        ...

    async def fetch(self, ref: str) -> bytes: ...

    async def prove(self, index: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check of the whole log on disk found."""

    size: int
    artifacts: int
    problems: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may come in; absent where no gateway runs here."""

    registry: Registry
    pairing: Pairing
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class ChatDoor:
    """Where clients of this installation connect, and with which key."""

    port: int
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    version: str
    runs: Runs
    gate: ToolGate
    approvals: Approvals
    audit: AuditLog
    evidence: EvidenceLog
    verify: Callable[[], Awaitable[Verification]]
    policy: PolicyInForce
    simulation: Simulation
    targets: Targets
    journal: Journal
    bus: Bus
    clock: Clock
    chat: ChatDoor
    learn: Callable[[str], None]  # a secret that must not be written down anywhere
    admission: Admission | None = None
    tasks: Toolset | None = None

    async def note(
        self,
        action: str,
        resource: tuple[str, str],
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """A row in the audit, in the operator's name."""
        await self.journal.commit(*self.row(action, resource, metadata))

    def row(
        self,
        action: str,
        resource: tuple[str, str],
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Sequence[Operation]:
        """The same, to be committed with what it is about."""
        kind, name = resource
        entry = AuditEntry(
            action=action,
            actor=OPERATOR,
            resource_type=kind,
            resource_id=name,
            metadata=metadata or {},
        )
        return self.audit.prepare(entry)


async def is_run(journal: Journal, run_id: str) -> bool:
    """Whether there is a page about it: commands and calls of the executor name runs as well."""
    return bool(run_id) and await journal.get(records.RUNS, run_id) is not None


async def body_of(request: Request, model: type[S]) -> S:
    """The body as this model; raises Invalid, BodyTooLarge."""
    try:
        return msgspec.json.decode(await asgi.read_body(request), type=model)
    except UNREADABLE as wrong:
        raise Invalid(str(wrong), field="body") from wrong


def whole(request: Request, name: str, *, default: int, most: int) -> int:
    """A whole number of the query, from 0 to `most`; raises Invalid."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid(f"{name} must be a whole number", field=name)
    return min(int(text), most)


def clipped(text: str) -> dict[str, JsonValue]:
    """A text for a page: at most so much of it, and how much there is."""
    return {"text": text[:TEXT_LIMIT], "length": len(text)}
