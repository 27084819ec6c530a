"""The rows of a home of 0.1.0, changed to those that this version reads.

Only this package knows how 0.1.0 wrote its rows; it goes when such homes are no longer supported.
Nothing is decided or run here: the start that follows ends the calls that were running.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from toolgate.journal.journal import Delete
from toolgate.journal.sqlite.upgrade import Change, OldFile
from toolgate.tasks.records import key_of
from toolgate.tasks.state import OPERATOR, OPERATORS_CALLER
from toolgate.upgrade_0_1_0.approvals import approvals
from toolgate.upgrade_0_1_0.calls import calls, runs
from toolgate.upgrade_0_1_0.commands import commands
from toolgate.upgrade_0_1_0.reading import (
    OPEN_COMMANDS,
    SERVERS,
    TARGETS,
    Home,
    json_of,
    members_of,
    read,
)

TASKS: Final = "task_runs"
TASK_KEYS: Final = "task_keys"
SEALED: Final = (TARGETS, "agents", SERVERS, OPEN_COMMANDS)  # need the key


class OldTask(msgspec.Struct):
    run_id: str
    template_id: str
    idempotency_key: str = ""


_decode_task: Final = msgspec.json.Decoder(OldTask).decode


def changes(file: OldFile, *, home: Home) -> Iterator[Change]:
    """Every change to the rows. Raises Damaged if one cannot be read, or the seal key is missing."""
    seal = home.seal([row.value for name in SEALED for row in islice(file.rows(name), 1)])
    yield from approvals(file, home, seal)
    yield from calls(file)
    yield from runs(file)
    yield from commands(file, home, seal)
    yield from _tasks(file)


def _tasks(file: OldFile) -> Iterator[Change]:
    """Give every task run, and its idempotency key, to the operator: 0.1.0 knew no owners."""
    old_keys = {row.key: row for row in file.rows(TASK_KEYS)}
    yield from (Delete(TASK_KEYS, key) for key in old_keys)
    for row in file.rows(TASKS):
        old = read(file, row, _decode_task)
        new = read(file, row, members_of)
        new |= {"owner": OPERATOR, "caller": OPERATORS_CALLER}
        yield row._replace(version=row.version + 1, value=json_of(new))
        text = f"{old.template_id}\0{old.idempotency_key}".encode("utf-8", "surrogatepass")
        kept = old_keys.get(hashlib.sha256(text).hexdigest())
        if kept is not None and kept.value.decode() == old.run_id:
            key = key_of(OPERATOR, old.template_id, old.idempotency_key)
            yield kept._replace(key=key)
