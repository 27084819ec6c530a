"""Browser task runs in the journal.

`task_runs` holds one row per run, changed in the same commit as the event in stream `tasks` that
explains it, and only over the version it was read at: of two ends that race, one is written.
`task_keys` holds which run an idempotency key belongs to.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import msgspec

from toolgate.journal.journal import Append, Delete, Journal, NewEvent, Operation, Put
from toolgate.journal.paging import all_rows
from toolgate.tasks.state import TaskEvent, TaskRun

RUNS: Final = "task_runs"
KEYS: Final = "task_keys"
STREAM: Final = "tasks"

_decode: Final = msgspec.json.Decoder(TaskRun).decode
_EVENTS: Final = {"Started": "task_started", "Requeued": "task_requeued", "Ended": "task_ended"}


@dataclass(frozen=True, slots=True)
class Stored:
    run: TaskRun
    version: int


def key_of(owner: str, template_id: str, idempotency_key: str) -> str:
    """A row key of fixed length; the parts are texts of callers, of any length."""
    text = f"{owner}\0{template_id}\0{idempotency_key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def queue(run: TaskRun) -> list[Operation]:
    return [
        Put(RUNS, run.run_id, msgspec.json.encode(run), expected=0),
        Append(STREAM, [_event("task_queued", run)]),
    ]


def change(before: Stored, after: TaskRun, event: TaskEvent) -> list[Operation]:
    name = _EVENTS[type(event).__name__]
    return [
        Put(RUNS, after.run_id, msgspec.json.encode(after), expected=before.version),
        Append(STREAM, [_event(name, after)]),
    ]


def claim(run: TaskRun, *, expected: int) -> Put:
    """Take an idempotency key: a new one (0), or one whose run is no longer kept."""
    key = key_of(run.owner, run.template_id, run.idempotency_key)
    return Put(KEYS, key, run.run_id.encode(), expected=expected)


async def forget(journal: Journal, run: TaskRun) -> list[Operation]:
    """Operations that delete a run, and its key unless a later run has taken it."""
    operations: list[Operation] = [Delete(RUNS, run.run_id)]
    if run.idempotency_key:
        key = key_of(run.owner, run.template_id, run.idempotency_key)
        row = await journal.get(KEYS, key)
        if row is not None and row.value.decode() == run.run_id:
            operations.append(Delete(KEYS, key, expected=row.version))
    return operations


async def load(journal: Journal) -> AsyncIterator[Stored]:
    """Every run in the journal, oldest first."""
    async for row in all_rows(journal, RUNS):
        yield Stored(_decode(row.value), row.version)


def _event(name: str, run: TaskRun) -> NewEvent:
    data = {
        "runId": run.run_id,
        "templateId": run.template_id,
        "status": run.status.value,
        "errorCode": run.error.code.value if run.error else None,
    }
    return NewEvent(name, msgspec.json.encode(data), subject=run.run_id)
