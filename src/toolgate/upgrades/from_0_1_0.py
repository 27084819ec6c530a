"""The rows of a home of 0.1.0, changed to what this version reads. Delete it with that support.

Old rows are described here, as 0.1.0 wrote them; nothing else in the package knows them. Nothing is
run, decided or recorded: calls that were running are ended by the recovery of the start that follows.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import msgspec

from toolgate.commands.answers import Code, Problem, failure
from toolgate.core.enums import ApprovalStatus, CallStatus, Outcome
from toolgate.core.errors import Conflict, Damaged
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.evidence.evidence import record_of
from toolgate.journal.journal import Append, Delete, Event, NewEvent, Row
from toolgate.journal.sqlite.upgrade import Change, OldFile
from toolgate.policy.model import Effect, Policy
from toolgate.runs.records import fact_of, run_stream
from toolgate.runs.state import RunState, TurnEnded, reduce
from toolgate.secrets.seal import Seal
from toolgate.tasks.records import key_of
from toolgate.tasks.state import OPERATOR, OPERATORS_CALLER
from toolgate.tools.approvals import binding_of

log = logging.getLogger(__name__)

T = TypeVar("T")

CALLS: Final = "executions"
CALLS_OF_RUNS: Final = "calls"
APPROVALS: Final = "approvals"
OPEN_APPROVALS: Final = "open_approvals"
APPROVALS_OF_RUNS: Final = "run_approvals"
RUNS: Final = "runs"
OPEN_RUNS: Final = "open_runs"
DEADLINES: Final = "agent_deadlines"
OPEN_COMMANDS: Final = "open_commands"
COMMANDS: Final = "commands"
KEYS: Final = "idempotency"
UNTOLD: Final = "untold_ends"
TARGETS: Final = "execution_targets"
SERVERS: Final = "capabilities"
TASKS: Final = "task_runs"
TASK_KEYS: Final = "task_keys"
GATEWAY: Final = "gateway"  # stream of /events/poll
SEALED: Final = (TARGETS, "agents", SERVERS, OPEN_COMMANDS)  # a home with these needs its seal key
KEY_KEPT_MS: Final = 600_000
ANSWER_KEPT_MS: Final = 24 * 3600 * 1000
LOCAL_TARGET: Final = "target_local_default local-host "  # as `place` spelt it

json_of: Final = msgspec.json.Encoder().encode
pack: Final = msgspec.msgpack.Encoder().encode
members_of: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Home:
    """What the rows alone do not say. The functions are called if rows need them."""

    now: int
    seal: Callable[[Sequence[bytes]], Seal | None]  # opens these; None: the key was given up
    policy: Callable[[], Policy]  # the one that will be in force
    commitment: Callable[[], Callable[[bytes], str]]
    redact: Callable[[str], str]


class OldStarted(msgspec.Struct):
    tool: str
    run_id: str
    step_id: str
    caller: dict[str, Any]
    engine_ref: str
    level: str
    decision: list[str]
    approval: dict[str, Any] | None = None


class OldCall(msgspec.Struct):
    fingerprint: str
    state: Literal["waiting", "started", "interrupted", "released", "ended"]
    owner: str
    started: OldStarted | None = None
    response: dict[str, Any] | None = None
    isolation: str = ""


class OldOwner(msgspec.Struct):
    run_id: str
    session_id: str


class OldApproval(msgspec.Struct):
    approval_id: str
    request_id: str
    binding: str
    tool: str
    rule_id: str
    policy_version: str
    asked_at: int
    expires_at: int
    run_id: str
    status: str
    used: bool


class OldOpenCommand(msgspec.Struct):
    kind: str
    who: str
    raw: bytes
    command_id: str
    request_id: str
    key: str
    request_hash: str
    trace_id: str
    at: int
    approval_id: str
    run_id: str
    ran: bytes = b""


class OldState(msgspec.Struct):
    """Of a command, as GET /command/{requestId} answered it."""

    command_id: str
    status: Literal["pending", "running", "done"]
    approval_id: str = ""
    run_id: str = ""
    body: bytes = b""


class OldKey(msgspec.Struct, array_like=True):
    request_hash: str
    command_id: str
    request_id: str
    at: int
    expires_at: int
    done: bool = False
    status: int = 0
    body: bytes = b""
    kind: str = ""
    name: str = ""
    trace_id: str = ""


class OldTask(msgspec.Struct):
    run_id: str
    template_id: str
    idempotency_key: str = ""


class OldTarget(msgspec.Struct):
    id: str
    kind: str
    endpoint: str = ""
    config: dict[str, Any] = {}

    @property
    def place(self) -> str:
        configured = self.config.get("endpoint")
        url = self.endpoint.strip() or (configured.strip() if isinstance(configured, str) else "")
        return f"{self.id} {self.kind} {url}"


class OldServer(msgspec.Struct):
    command: str
    args: list[str]
    url: str

    @property
    def place(self) -> str:
        return msgspec.json.encode([self.url, self.command, self.args]).decode()


class OldCapability(msgspec.Struct):
    server: OldServer | None = None


def changes(file: OldFile, *, home: Home) -> Iterator[Change]:
    """Every change to the rows. Raises Damaged if one cannot be read, or the seal key is missing."""
    seal = home.seal([row.value for name in SEALED for row in islice(file.rows(name), 1)])
    yield from _approvals(file, home, seal)
    yield from _calls(file)
    yield from _runs(file)
    yield from _commands(file, home, seal)
    yield from _tasks(file)


# Calls


def _calls(file: OldFile) -> Iterator[Change]:
    for row in file.rows(CALLS):
        if "/" not in row.key:  # the row of a refused id holds nothing
            yield _call(file, row)
    for collection in (CALLS_OF_RUNS, APPROVALS_OF_RUNS):
        for row in file.rows(collection):
            yield Delete(row.collection, row.key)


def _call(file: OldFile, row: Row) -> Row:
    old = _read(file, row, _decode_call)
    new: dict[str, Any] = {"fingerprint": old.fingerprint, "owner": old.owner}
    due = None
    if old.isolation:
        new["isolation"] = old.isolation
    if old.started is not None:
        new["run_id"] = old.started.run_id
    match old.state:
        case "started":
            new["state"] = CallStatus.RUNNING
        case "interrupted":
            new["state"] = "INTERRUPTED"
        case "released":
            new["state"] = CallStatus.DISPATCHED
            of_run = file.row(CALLS_OF_RUNS, row.key)
            due = None if of_run is None else of_run.due
        case "waiting":
            new["state"] = CallStatus.WAITING_APPROVAL
            new |= _asked_by_records(file, row.key)
        case "ended" if old.response is not None:
            new["state"] = _refused(old.response)
            new["run_id"] = old.response.get("run_id", "")
            new["response"] = old.response
        case "ended":
            new |= _ended_by_records(file, row.key)
    if old.started is not None and old.state != "ended":
        details = msgspec.structs.asdict(old.started)
        del details["run_id"]
        new["details"] = details
    return row._replace(version=row.version + 1, value=json_of(new), due=due)


def _refused(response: Mapping[str, Any]) -> CallStatus:
    match response.get("policy_check", {}).get("rule_id"):
        case "approval_rejected":
            return CallStatus.REJECTED
        case "approval_expired":
            return CallStatus.TIMEOUT
        case _:
            return CallStatus.BLOCKED


def _ended_by_records(file: OldFile, call_id: str) -> dict[str, Any]:
    """The state and the run of a call that ran, by its evidence; it failed if that is unknown."""
    new: dict[str, Any] = {"state": CallStatus.FAILED}
    for event in file.events_about(call_id, stream=EVIDENCE):
        fields = _record(file, event)["fields"]
        if event.type == "decision":
            new["run_id"] = fields.get("run_id", "")
        elif event.type in {"result", "outcome"}:
            ok = fields.get("outcome") == "executed" and fields.get("exit_code") == 0
            new["state"] = CallStatus.SUCCEEDED if ok else CallStatus.FAILED
    return new


def _asked_by_records(file: OldFile, call_id: str) -> dict[str, Any]:
    """The run and the details of a call that waits, by the evidence of the ask."""
    for event in file.events_about(call_id, stream=EVIDENCE):
        if event.type != "decision":
            continue
        record = _record(file, event)
        fields, artifacts = record["fields"], _artifacts(record, event)
        asked, decided = artifacts.get("request"), artifacts.get("policy_decision")
        if asked is None or decided is None:  # too large to be in the journal
            return {"run_id": fields["run_id"]}
        names = ("decision", "rule_id", "reason", "policy_version", "policy_ref", "detail")
        details = {
            "tool": fields["tool"],
            "step_id": fields["step_id"],
            "caller": asked["caller"],
            "engine_ref": fields["engine"],
            "level": fields["level"],
            "decision": [decided[name] for name in names],
        }
        return {"run_id": fields["run_id"], "details": details}
    return {}


# Runs


def _runs(file: OldFile) -> Iterator[Change]:
    for row in file.rows(OPEN_RUNS):
        owner = _read(file, row, _decode_owner)
        if row.due is not None:  # the agent's deadline has a row of its own
            yield Row(DEADLINES, owner.run_id, 1, row.value, row.due)
            yield row._replace(version=row.version + 1, due=None)
        line = file.row(RUNS, owner.run_id)
        moves = _moves(file, owner.run_id)
        if line is not None and line.version != moves:
            yield line._replace(version=moves) if moves else Delete(RUNS, owner.run_id)


def _moves(file: OldFile, run_id: str) -> int:
    """How often the status of a run changed after its start."""
    state: RunState | None = None
    moves = 0
    for event in file.events(run_stream(run_id)):
        before = state
        try:
            state = reduce(before, fact_of(event))
        except (msgspec.MsgspecError, KeyError, Conflict) as wrong:
            raise _damaged(file, f"event {event.seq} of {event.stream}", wrong) from wrong
        moves += before is not None and before.status != state.status
    return moves


# Approvals


def _approvals(file: OldFile, home: Home, seal: Seal | None) -> Iterator[Change]:
    """Bind those that can still be used to the rule that asked; let the others expire.

    0.1.0 bound them to the version of the whole policy. The arguments that an approval is for are
    not in it, but those that are found elsewhere can be checked against its binding.
    """
    for row in file.rows(APPROVALS):
        old = _read(file, row, _decode_approval)
        waits = old.status == ApprovalStatus.PENDING
        if not waits and (old.status != ApprovalStatus.APPROVED or old.used):
            continue
        new = _read(file, row, members_of)
        due = row.due
        if rebound := _rebound(file, home, seal, old):
            new["rule_digest"], new["binding"] = rebound
        elif waits:
            due = new["expires_at"] = old.asked_at  # the start that follows records that it expired
        else:
            continue
        yield row._replace(version=row.version + 1, value=json_of(new), due=due)
        is_open = file.row(OPEN_APPROVALS, row.key)
        if is_open is not None:
            yield is_open._replace(version=is_open.version + 1, value=json_of(new))


def _rebound(
    file: OldFile, home: Home, seal: Seal | None, old: OldApproval
) -> tuple[str, str] | None:
    """The digest of the rule that asked, and the binding to it; None if either is not known."""
    policy = home.policy()
    if old.status == ApprovalStatus.APPROVED and policy.version != old.policy_version:
        return None  # the answer was given under another policy
    rule = next((rule for rule in policy.rules if rule.id == old.rule_id), None)
    if rule is None:
        return None
    digest = (rule.decision if rule.effect is Effect.ASK else rule.signing).rule_digest
    commitment = home.commitment()

    def binding(args: Mapping[str, Any], place: str, bound_to: str) -> str:
        bound = binding_of(old.tool, args, target=place, rule=bound_to)
        return commitment(bound.encode())

    places = _places(file, seal)
    for args in _arguments(file, seal, old):
        for place in places:
            if binding(args, place, old.policy_version) == old.binding:
                return digest, binding(args, place, digest)
    return None


def _places(file: OldFile, seal: Seal | None) -> list[str]:
    """The places where a call may have been meant to run, as 0.1.0 spelt them."""
    places = ["", LOCAL_TARGET]
    if seal is not None:
        for row in file.rows(TARGETS):
            places.append(_unsealed(file, row, seal, _decode_target).place)
        for row in file.rows(SERVERS):
            server = _unsealed(file, row, seal, _decode_capability).server
            places += [] if server is None else [server.place]
    return places


def _arguments(file: OldFile, seal: Seal | None, old: OldApproval) -> Iterator[dict[str, Any]]:
    """The arguments of the call that waits, from its run, its command or, redacted, its evidence."""
    for event in file.events(run_stream(old.run_id)):
        fact = fact_of(event)
        if isinstance(fact, TurnEnded):
            yield from (call.args for call in fact.calls if call.call_id == old.request_id)
    command_id, _, number = old.request_id.rpartition(".")
    row = file.row(OPEN_COMMANDS, command_id)
    if row is not None and seal is not None and number.isdecimal():
        command = _unsealed(file, row, seal, _decode_open)
        yield from _of_body(command.raw, int(number))
    for event in file.events_about(old.request_id, stream=EVIDENCE):
        if event.type == "decision":
            asked = _artifacts(_record(file, event), event).get("request")
            yield from [] if asked is None else [asked["args"]]


def _of_body(raw: bytes, number: int) -> Iterator[dict[str, Any]]:
    """The arguments of one call of a command's body, if they stand in it as they are."""
    payload = members_of(raw).get("payload", {})
    several = payload.get("toolCalls") or []
    one = several[number] if number < len(several) else payload
    args = one.get("arguments", one.get("args"))
    if isinstance(args, dict):
        yield args


# Commands


def _commands(file: OldFile, home: Home, seal: Seal | None) -> Iterator[Change]:
    """Key the rows of commands by caller, request and command, and end those that were interrupted."""
    waiting: list[OldOpenCommand] = []
    ended: set[tuple[str, str]] = set()  # caller and request id of those that have a row
    yield from (Delete(row.collection, row.key) for row in list(file.rows(UNTOLD)))
    rows = {name: list(file.rows(name)) for name in (OPEN_COMMANDS, COMMANDS, KEYS)}
    yield from (Delete(name, row.key) for name, each in rows.items() for row in each)
    if seal is None:
        if counts := " ".join(f"{name}={len(each)}" for name, each in rows.items() if each):
            log.warning("upgrade_dropped sealed_with_a_lost_key %s", counts)
    else:
        new = _NewCommands(home, seal)
        for row in rows[OPEN_COMMANDS]:
            waiting.append(_unsealed(file, row, seal, _decode_open))
            yield new.open(waiting[-1], due=row.due)
        are_open = {command.command_id for command in waiting}
        for row in rows[KEYS]:
            key = _unsealed(file, row, seal, _decode_key)
            who, _, name = row.key.partition("\n")
            yield new.key(row.key, key)
            if key.command_id not in are_open:
                ended.add((who, key.request_id))
                yield new.ended_with_key(who, name, key)
        for row in rows[COMMANDS]:
            who, _, request_id = row.key.partition("\n")
            state = _unsealed(file, row, seal, _decode_state)
            if state.status == "done" and (who, request_id) not in ended:
                ended.add((who, request_id))
                yield new.ended(who, request_id, state, due=row.due)
    for event, data in _interrupted(file, home, waiting):
        yield _end(event, data, now=home.now)
        who, about = data["source"], data["metadata"]
        chosen = not about["requestId"].startswith("cmd_")  # else nobody can ask for it
        if seal is not None and chosen and (who, about["requestId"]) not in ended:
            yield _NewCommands(home, seal).interrupted(who, about, at=event.at)


@dataclass(frozen=True, slots=True)
class _NewCommands:
    home: Home
    seal: Seal

    def open(self, old: OldOpenCommand, *, due: int | None) -> Row:
        members = {**msgspec.structs.asdict(old), "owner": "local", "scope": None}
        return self._row(OPEN_COMMANDS, old.who, old.request_id, old.command_id, members, due)

    def key(self, slot: str, old: OldKey) -> Row:
        names = ("command_id", "request_id", "request_hash")
        value = pack({name: getattr(old, name) for name in names})
        return Row(KEYS, slot, 1, self.seal.close(value), None)

    def ended_with_key(self, who: str, name: str, old: OldKey) -> Row:
        """A command that has its answer; or that was interrupted, and is not run again."""
        status, body, ended_at = old.status, old.body, old.expires_at - KEY_KEPT_MS
        if not old.done:
            reply = failure(_INTERRUPTED, old.trace_id)
            status, body, ended_at = reply.status, reply.body, self.home.now
        members = {
            "status": status,
            "body": body,
            "request_hash": old.request_hash,
            "key": name,
            "at": old.at,
            "ended_at": ended_at,
        }
        due = ended_at + KEY_KEPT_MS
        return self._row(COMMANDS, who, old.request_id, old.command_id, members, due)

    def ended(self, who: str, request_id: str, old: OldState, *, due: int | None) -> Row:
        ended_at = self.home.now if due is None else due - ANSWER_KEPT_MS
        return self._unkeyed(who, request_id, old.command_id, 200, old.body, ended_at, ended_at)

    def interrupted(self, who: str, about: Mapping[str, str], *, at: int) -> Row:
        reply = failure(_INTERRUPTED, about["traceId"])
        request_id, now = about["requestId"], self.home.now
        return self._unkeyed(who, request_id, "", reply.status, reply.body, at, now)

    def _unkeyed(
        self,
        who: str,
        request_id: str,
        command_id: str,
        status: int,
        body: bytes,
        at: int,
        ended_at: int,
    ) -> Row:
        members = {
            "status": status,
            "body": body,
            "request_hash": "",
            "at": at,
            "ended_at": ended_at,
        }
        due = ended_at + ANSWER_KEPT_MS
        return self._row(COMMANDS, who, request_id, command_id or "cmd_0", members, due)

    def _row(
        self,
        collection: str,
        who: str,
        request_id: str,
        command_id: str,
        members: Mapping[str, object],
        due: int | None,
    ) -> Row:
        key = f"{who}\n{request_id}\n{command_id}"
        return Row(collection, key, 1, self.seal.close(pack(members)), due)


def _interrupted(
    file: OldFile, home: Home, waiting: Iterable[OldOpenCommand]
) -> list[tuple[Event, dict[str, Any]]]:
    """The starts of commands that have no end, in the gateway's events, and do not wait."""
    starts: dict[tuple[str, ...], list[tuple[Event, dict[str, Any]]]] = {}
    for event in file.events(GATEWAY):
        try:
            data = members_of(event.data)
            about = data["metadata"]
            if "command" not in about:
                continue
            key = (data["source"], about["requestId"], about["traceId"])
        except (msgspec.MsgspecError, LookupError, TypeError) as wrong:
            raise _damaged(file, f"event {event.seq} of {event.stream}", wrong) from wrong
        if "durationMs" in data:
            starts.pop(key, None)
        elif data["status"] == "started":
            starts.setdefault(key, []).append((event, data))
    for each in waiting:
        starts.pop(tuple(map(home.redact, (each.who, each.request_id, each.trace_id))), None)
    return sorted((one for each in starts.values() for one in each), key=lambda one: one[0].seq)


def _end(started: Event, data: Mapping[str, Any], *, now: int) -> Append:
    failed = {
        **data,
        "status": "failed",
        "message": data["message"].removesuffix(" started") + " failed",
        "durationMs": max(0, now - started.at),
    }
    return Append(GATEWAY, [NewEvent(started.type, json_of(failed), started.subject)])


# Browser tasks


def _tasks(file: OldFile) -> Iterator[Change]:
    """Give every task run, and its idempotency key, to the operator: 0.1.0 knew no owners."""
    old_keys = {row.key: row for row in file.rows(TASK_KEYS)}
    yield from (Delete(TASK_KEYS, key) for key in old_keys)
    for row in file.rows(TASKS):
        old = _read(file, row, _decode_task)
        new = _read(file, row, members_of)
        new |= {"owner": OPERATOR, "caller": OPERATORS_CALLER}
        yield row._replace(version=row.version + 1, value=json_of(new))
        text = f"{old.template_id}\0{old.idempotency_key}".encode("utf-8", "surrogatepass")
        kept = old_keys.get(hashlib.sha256(text).hexdigest())
        if kept is not None and kept.value.decode() == old.run_id:
            key = key_of(OPERATOR, old.template_id, old.idempotency_key)
            yield kept._replace(key=key)


# Reading


_INTERRUPTED: Final = Problem(
    Code.INTERNAL,
    "the gateway was stopped while this ran",
    outcome=Outcome.MAY_HAVE_EXECUTED,
)
_decode_call: Final = msgspec.json.Decoder(OldCall).decode
_decode_owner: Final = msgspec.json.Decoder(OldOwner).decode
_decode_approval: Final = msgspec.json.Decoder(OldApproval).decode
_decode_task: Final = msgspec.json.Decoder(OldTask).decode
_decode_target: Final = msgspec.json.Decoder(OldTarget).decode
_decode_capability: Final = msgspec.json.Decoder(OldCapability).decode
_decode_open: Final = msgspec.msgpack.Decoder(OldOpenCommand).decode
_decode_state: Final = msgspec.msgpack.Decoder(OldState).decode
_decode_key: Final = msgspec.msgpack.Decoder(OldKey).decode


def _read(file: OldFile, row: Row, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(row.value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise _damaged(file, f"row {row.key!r} of {row.collection}", wrong) from wrong


def _unsealed(file: OldFile, row: Row, seal: Seal, decode: Callable[[bytes], T]) -> T:
    try:
        opened = seal.open(row.value)
    except Damaged as wrong:
        raise _damaged(file, f"row {row.key!r} of {row.collection}", wrong) from wrong
    return _read(file, row._replace(value=opened), decode)


def _record(file: OldFile, event: Event) -> dict[str, Any]:
    try:
        return members_of(record_of(event.data))
    except msgspec.MsgspecError as wrong:
        raise _damaged(file, f"record {event.seq} of the evidence", wrong) from wrong


def _artifacts(record: Mapping[str, Any], event: Event) -> dict[str, Any]:
    """The artifacts that follow a record, by their names; one that is in the blobs is left out."""
    names = [ref.rpartition("/")[2].removesuffix(".json") for ref in record["artifacts"]]
    lines = event.data.split(b"\n")[1:]
    return {
        name: msgspec.json.decode(line) for name, line in zip(names, lines, strict=False) if line
    }


def _damaged(file: OldFile, what: str, wrong: Exception) -> Damaged:
    return Damaged(
        f"{what} in {file.path} cannot be read ({wrong}); the file was not changed:"
        " restore it from a copy, or go on with 0.1.0"
    )
