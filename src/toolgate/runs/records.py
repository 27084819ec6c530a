"""Rows and events of runs in the journal.

`run/<id>` holds a run's facts; `session/<id>` holds the events of the session's devices, numbered for
them; both change in one commit. Rows that are read without a replay: `open_runs` (runs that a restart
must continue, by session and request), `agent_deadlines` (due when the agent's time is over; there only
while it runs), `requests` (requests of ended runs), `runs` (one line per run), `session_runs` (a session's
runs, by age), `ended_runs` (by the time of their end, for retention). A start writes only the first of them,
because a client waits for it.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from toolgate.journal.journal import Append, Delete, Event, Journal, NewEvent, Operation, Put, Row
from toolgate.journal.paging import all_events
from toolgate.runs.deliveries import Delivery
from toolgate.runs.state import (
    CallMoved,
    Fact,
    RunBegun,
    RunEnded,
    RunStarted,
    RunState,
    TurnEnded,
    reduce,
)

RUNS: Final = "runs"
OPEN_RUNS: Final = "open_runs"
REQUESTS: Final = "requests"
AGENT_DEADLINES: Final = "agent_deadlines"
SESSION_RUNS: Final = "session_runs"
ENDED_RUNS: Final = "ended_runs"

FACTS: Final[dict[str, type[Fact]]] = {
    "run_started": RunStarted,
    "run_begun": RunBegun,
    "turn_ended": TurnEnded,
    "call_moved": CallMoved,
    "run_ended": RunEnded,
}
_NAMES: Final = {kind: name for name, kind in FACTS.items()}
_DECODERS: Final = {name: msgspec.json.Decoder(kind) for name, kind in FACTS.items()}
encode: Final = msgspec.json.Encoder().encode


class RunLine(msgspec.Struct, frozen=True):
    """A run in a list."""

    run_id: str
    session_id: str
    agent_id: str
    user_id: str
    status: str
    started_at: int
    ended_at: int
    preview: str
    code: str
    message: str
    total_tokens: int


class Owner(msgspec.Struct, frozen=True):
    """The run and session that a row belongs to."""

    run_id: str
    session_id: str


decode_members: Final = msgspec.json.Decoder(dict[str, Any]).decode
decode_text: Final = msgspec.json.Decoder(str).decode
decode_run_line: Final = msgspec.json.Decoder(RunLine).decode
decode_owner: Final = msgspec.json.Decoder(Owner).decode

PREVIEW_CHARACTERS: Final = 120
PAGE: Final = 200  # rows read at a time


def run_stream(run_id: str) -> str:
    return f"run/{run_id}"


def session_stream(session_id: str) -> str:
    return f"session/{session_id}"


def fence_name(run_id: str) -> str:
    return f"run/{run_id}"


def request_key(session_id: str, request_id: str) -> str:
    return f"{_plain(session_id)}/{request_id}"


def open_key(session_id: str, request_id: str, run_id: str) -> str:
    """The key of an open run; equal for two runs of one request. `=` keeps requests apart from run ids."""
    owner = _plain(session_id)
    return f"{owner}/={request_id}" if request_id else f"{owner}/{run_id}"


def _plain(session_id: str) -> str:
    """A session's name without a slash: the first slash of a key ends the name."""
    return quote(session_id, safe="") if "/" in session_id or "%" in session_id else session_id


def ended_key(ended_at: int, run_id: str) -> str:
    return f"{ended_at:015d}/{run_id}"


def session_key(session_id: str, run_id: str) -> str:
    """The key of a row that is found by its session; a run's id has no slash."""
    return f"{session_id}/{run_id}"


def session_and_run(key: str) -> tuple[str, str]:
    session_id, _, run_id = key.rpartition("/")
    return session_id, run_id


def fact_events(run_id: str, facts: Sequence[Fact]) -> list[NewEvent]:
    return [NewEvent(_NAMES[type(fact)], encode(fact), run_id) for fact in facts]


def fact_of(event: Event) -> Fact:
    return _DECODERS[event.type].decode(event.data)


def start(fact: RunStarted, started: Delivery) -> tuple[Operation, ...]:
    """The operations that start a run; a restart can continue it from them.

    The client waits for this commit, so it writes as little as possible. It conflicts if an open or an
    ended run has the same request.
    """
    run_id, session_id = fact.run_id, fact.session_id
    event = NewEvent("run_started", encode(fact), run_id)
    row = Put(
        OPEN_RUNS,
        open_key(session_id, fact.request_id, run_id),
        encode(Owner(run_id, session_id)),
        expected=0,
    )
    operations = (
        Append(run_stream(run_id), (event,), 0),
        delivery_append(session_id, (started,)),
        row,
    )
    if not fact.request_id:
        return operations
    return (*operations, Delete(REQUESTS, request_key(session_id, fact.request_id), expected=0))


def delivery_append(session_id: str, deliveries: Sequence[Delivery]) -> Append:
    events = [NewEvent(one.type, _members_of(one), one.run_id) for one in deliveries]
    return Append(session_stream(session_id), events)


def _members_of(delivery: Delivery) -> bytes:
    """The members as they are stored; the time of another process's event stands first."""
    if not delivery.said_at:
        return encode(delivery.members)
    return encode({"ts": delivery.said_at, **delivery.members})


def run_line(state: RunState) -> bytes:
    return encode(
        RunLine(
            run_id=state.run_id,
            session_id=state.session_id,
            agent_id=state.agent_id,
            user_id=state.user_id,
            status=state.status,
            started_at=state.started_at,
            ended_at=state.ended_at,
            preview=state.content[:PREVIEW_CHARACTERS],
            code=state.code,
            message=state.message,
            total_tokens=state.prompt_tokens + state.completion_tokens,
        )
    )


async def open_of(journal: Journal, session_id: str) -> list[str]:
    """The open runs of a session, oldest first; ids sort by the time they were made."""
    rows = await _rows_from(journal, OPEN_RUNS, open_key(session_id, "", ""))
    return sorted(decode_owner(row.value).run_id for row in rows)


async def is_active(journal: Journal, session_id: str) -> bool:
    """Tell if a session has an event that is still kept, or an open run."""
    if await journal.read_back(session_stream(session_id), limit=1):
        return True
    return bool(await open_of(journal, session_id))


async def runs_of(journal: Journal, collection: str, session_id: str) -> list[str]:
    """The runs of a session that have a row in a collection kept by session, oldest first."""
    rows = await _rows_from(journal, collection, session_key(session_id, ""))
    owners = [session_and_run(row.key) for row in rows]
    return [run_id for owner, run_id in owners if owner == session_id]


async def _rows_from(journal: Journal, collection: str, prefix: str) -> list[Row]:
    """The rows whose key begins with a prefix."""
    found: list[Row] = []
    after = prefix
    while rows := await journal.scan(collection, after=after, limit=PAGE):
        found += [row for row in rows if row.key.startswith(prefix)]
        after = rows[-1].key
        if len(rows) < PAGE or not after.startswith(prefix):
            break
    return found


async def load(journal: Journal, run_id: str, *, since: RunState | None = None) -> RunState | None:
    """The state of a run, from its facts; None if there is no such run.

    `since` is an earlier state, whose facts are not read again.
    """
    state = since
    after = 0 if since is None else since.seq
    async for event in all_events(journal, run_stream(run_id), after=after):
        state = reduce(state, fact_of(event))
    return state
