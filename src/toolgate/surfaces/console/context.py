"""The dependencies of the console, and what its endpoints share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from toolgate.access.devices import AT_CONSOLE
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.clock import Clock
from toolgate.core.errors import Invalid
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.log import EvidenceLog
from toolgate.http import asgi
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Journal
from toolgate.policy.file import PolicyFile
from toolgate.runs import records
from toolgate.runs.records import RunLine
from toolgate.runs.runs import Runs
from toolgate.tools.approval_records import Approvals
from toolgate.tools.outcomes import ToolGate

OPERATOR: Final = AT_CONSOLE.name
COUNTED: Final = 1_000_000  # approvals that wait: all of them, so that a number is true

S = TypeVar("S")
Answer = Any
Handle = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class ChatAddress:
    """Where clients of this installation connect, and with which key."""

    port: int
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleContext:
    version: str
    runs: Runs
    gate: ToolGate
    approvals: Approvals
    audit: AuditLog
    evidence: EvidenceLog
    policy: PolicyFile
    journal: Journal
    bus: Bus
    clock: Clock
    chat: ChatAddress
    run_summary: Callable[[RunLine], Any]  # a run as the gateway shows it


async def is_run(journal: Journal, run_id: str) -> bool:
    """True if the run has a page: commands and calls of the executor name runs as well."""
    return bool(run_id) and await journal.get(records.RUNS, run_id) is not None


async def body_of(request: Request, model: type[S]) -> S:
    """The body as this model; raises Invalid, BodyTooLarge."""
    try:
        return msgspec.json.decode(await asgi.read_body(request), type=model)
    except UNREADABLE as wrong:
        raise Invalid(str(wrong), field="body") from wrong
