"""Recovery of calls that were started and have no result: each gets an outcome record.

Nothing is run from here. A tool that is safe to repeat is run again when its call is begun again; any
other call ends as one that may have been executed.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from toolgate.core.enums import CallStatus
from toolgate.core.tools import Caller
from toolgate.evidence.evidence import STREAM
from toolgate.journal.journal import Operation
from toolgate.journal.paging import all_events
from toolgate.tools.calls import (
    EXECUTIONS,
    Entry,
    call_of,
    decode_entry,
)
from toolgate.tools.ledger import Ledger

log = logging.getLogger(__name__)

ENDS: Final = frozenset({"result", "outcome"})  # the kinds of record that end a call
PAGE: Final = 200  # records at a time: each may have its artifacts with it

IsRepeatable = Callable[[str, Caller], bool]
# The operations that go with the outcome of a call, by the call's id.
AlsoOfCall = Callable[[str], Awaitable[Sequence[Operation]]]


async def nothing_of_call(_: str) -> Sequence[Operation]:
    return ()


async def recover(
    ledger: Ledger, *, is_repeatable: IsRepeatable, also: AlsoOfCall = nothing_of_call
) -> int:
    """End the calls that earlier starts of this node left open; return their number.

    Each ends in one commit with its `also`, so that recovery can be interrupted anywhere.
    """
    decided: dict[str, None] = {}
    after = await ledger.finished_through()
    async for record in all_events(ledger.journal, STREAM, after=after, page=PAGE):
        after = record.seq
        if record.type == "decision":
            decided[record.subject] = None
        elif record.type in ENDS:
            decided.pop(record.subject, None)
    found = 0
    for request_id in decided:
        found += await _recover_one(ledger, request_id, is_repeatable, also)
    await ledger.note_finished(newest=after)
    if found:
        log.warning("calls_interrupted count=%d", found)
    return found


async def _recover_one(
    ledger: Ledger, request_id: str, is_repeatable: IsRepeatable, also: AlsoOfCall
) -> bool:
    row = await ledger.journal.get(EXECUTIONS, request_id)
    entry = decode_entry(row.value) if row is not None else None
    if row is None or entry is None:
        return False
    if entry.state is not CallStatus.RUNNING or not ledger.owner.is_same_node(entry.owner):
        return False
    call = call_of(request_id, entry, version=row.version)
    again = may_run_again(entry, is_repeatable=is_repeatable)
    await ledger.interrupted(call, entry, may_run_again=again, also=await also(request_id))
    return True


def may_run_again(entry: Entry, *, is_repeatable: IsRepeatable) -> bool:
    """An approval is for one run, so a call that needed one is never repeated."""
    details = entry.details
    return (
        details is not None
        and details.approval is None
        and is_repeatable(details.tool, details.caller)
    )
