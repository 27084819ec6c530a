"""The approvals that wait: all are counted, the oldest are shown, and none is said to be decided."""

from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from tests.support.people import by
from tests.support.seal import PlainSeal
from toolgate.core.enums import ApprovalStatus
from toolgate.core.errors import NotFound
from toolgate.core.tools import ToolRequest
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.evidence import Evidence
from toolgate.journal.journal import Operation, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.policy.model import Decision, Effect
from toolgate.runs import records
from toolgate.runs.runs import Runs
from toolgate.secrets.approver_view import ApproverView
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import Redactor
from toolgate.surfaces.console.approvals import LOOKED_AT, SHOWN, ApprovalPages
from toolgate.surfaces.console.context import ConsoleContext
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.approval_records import Approvals

ASKS = Decision(Effect.ASK, "asks", "A person decides", "sha256:1", "policy")


class NoEvidence:
    def prepare(self, *_: object, **__: object) -> list[Operation]:
        return []

    def commitment(self, content: bytes) -> str:
        return content.decode()

    async def fetch(self, ref: str) -> bytes:
        raise NotFound("artifact", ref)


async def asking(count: int) -> ConsoleContext:
    clock, evidence = FakeClock(), NoEvidence()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    approvals = Approvals(
        journal,
        cast(Evidence, evidence),
        clock,
        AuditLog(journal, redactor=Redactor(lambda _: ())),
        PlainSeal(),
        ApproverView(SecretPatterns()),
    )
    for number in range(count):
        clock.advance(1)
        request = ToolRequest(f"req_{number:05}", "kv.set", {})
        _, operations = approvals.new(request, ASKS, stored={})
        await journal.commit(*operations)
    await approvals.decide("apr_req_00000", approve=True, decided_by=by("operator"))
    parts = SimpleNamespace(journal=journal, clock=clock, approvals=approvals, evidence=evidence)
    return cast(ConsoleContext, parts)


async def test_more_than_a_page_of_approvals_are_counted_and_none_is_called_decided() -> None:
    pages = ApprovalPages(await asking(SHOWN + 101))
    told: dict[str, Any] = await pages.listed(Request({"type": "http"}))
    assert told["total"] == SHOWN + 100
    assert [one["request_id"] for one in told["pending"][:2]] == ["req_00001", "req_00002"]
    assert len(told["pending"]) == SHOWN
    assert [one["status"] for one in told["recent"]] == ["APPROVED"]


async def test_what_an_executor_asks_for_in_the_name_of_a_run_that_there_is_can_be_decided() -> (
    None
):
    parts = cast(Any, await asking(1))
    nobody = cast(Any, None)  # a run that does not wait for it is not asked either
    parts.runs = Runs(
        journal=parts.journal,
        dispatcher=nobody,
        gate=nobody,
        clock=parts.clock,
        new_id=nobody,
        agents=nobody,
        session_tools=nobody,
        originals=nobody,
    )
    parts.gate = SimpleNamespace(decide_approval=parts.approvals.decide)
    request = ToolRequest("req_elsewhere", "kv.set", {}, run_id="run_1")
    _, operations = parts.approvals.new(request, ASKS, stored={})
    await parts.journal.commit(*operations, Put(records.RUNS, "run_1", b"{}", expected=0))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"approve": true}'}

    scope = {"type": "http", "headers": [], "path_params": {"id": "apr_req_elsewhere"}}
    told = cast(dict[str, Any], await ApprovalPages(parts).decide(Request(scope, receive)))
    assert told["status"] == ApprovalStatus.APPROVED


async def test_the_approval_that_was_decided_last_is_the_first_of_the_recent_ones() -> None:
    parts = await asking(4)
    for name in ("apr_req_00003", "apr_req_00001"):
        cast(FakeClock, parts.clock).advance(1)
        await parts.approvals.decide(name, approve=False, decided_by=by("operator"))
    told: dict[str, Any] = await ApprovalPages(parts).listed(Request({"type": "http"}))
    assert [one["id"][-1] for one in told["recent"]] == ["1", "3", "0"]


async def test_what_was_decided_last_is_shown_whatever_the_names_of_all_the_others() -> None:
    told: dict[str, Any] = await ApprovalPages(await asking(LOOKED_AT + 1)).listed(
        Request({"type": "http"})
    )
    assert [one["id"] for one in told["recent"]] == ["apr_req_00000"]
