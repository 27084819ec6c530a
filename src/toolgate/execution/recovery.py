"""After a crash: what was started and has no result gets an outcome record.

Nothing is run from here. A tool that is safe to repeat is run again when its caller asks again; any
other call ends as one that may have been executed.
"""

import logging
from collections.abc import Callable

from toolgate.domain.tools import Caller
from toolgate.execution.calls import (
    EXECUTING,
    EXECUTIONS,
    Entry,
    State,
    decode_entry,
    interrupted_call,
)
from toolgate.execution.ledger import Ledger
from toolgate.ports.journal import Delete

log = logging.getLogger(__name__)

IsRepeatable = Callable[[str, Caller], bool]


async def recover(ledger: Ledger, *, is_repeatable: IsRepeatable) -> int:
    """How many calls this process had left unfinished when it last stopped."""
    found = 0
    after = ""
    while rows := await ledger.journal.scan(EXECUTING, after=after):
        after = rows[-1].key
        for row in rows:
            if row.value.decode() == ledger.owner:
                await _recover_one(ledger, row.key, is_repeatable)
                found += 1
    if found:
        log.warning("calls_interrupted count=%d", found)
    return found


async def _recover_one(ledger: Ledger, request_id: str, is_repeatable: IsRepeatable) -> None:
    row = await ledger.journal.get(EXECUTIONS, request_id)
    entry = decode_entry(row.value) if row is not None else None
    if row is None or entry is None or entry.state is not State.STARTED:
        await ledger.journal.commit(Delete(EXECUTING, request_id))
        return
    call = interrupted_call(request_id, entry, version=row.version)
    again = may_run_again(entry, is_repeatable=is_repeatable)
    await ledger.interrupted(call, entry, may_run_again=again)


def may_run_again(entry: Entry, *, is_repeatable: IsRepeatable) -> bool:
    """An approval is for one run, so a call that needed one is never repeated."""
    started = entry.started
    return (
        started is not None
        and started.approval is None
        and is_repeatable(started.tool, started.caller)
    )
