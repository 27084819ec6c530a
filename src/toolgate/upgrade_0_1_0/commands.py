"""The commands of 0.1.0: one row each, by caller, request and command."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from toolgate.commands.answers import Code, Problem, failure
from toolgate.core.enums import Outcome
from toolgate.journal.journal import Append, Delete, Event, NewEvent, Row
from toolgate.journal.sqlite.upgrade import Change, OldFile
from toolgate.secrets.seal import Seal
from toolgate.upgrade_0_1_0.reading import (
    OPEN_COMMANDS,
    Home,
    OldOpenCommand,
    decode_open,
    json_of,
    members_of,
    naming,
    unsealed,
)

log = logging.getLogger(__name__)

COMMANDS: Final = "commands"
KEYS: Final = "idempotency"
UNTOLD: Final = "untold_ends"
GATEWAY: Final = "gateway"  # the stream of /events/poll
KEY_KEPT_MS: Final = 600_000
ANSWER_KEPT_MS: Final = 24 * 3600 * 1000

_INTERRUPTED: Final = Problem(
    Code.INTERNAL,
    "the gateway was stopped while this ran",
    outcome=Outcome.MAY_HAVE_EXECUTED,
)
pack: Final = msgspec.msgpack.Encoder().encode


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


_decode_state: Final = msgspec.msgpack.Decoder(OldState).decode
_decode_key: Final = msgspec.msgpack.Decoder(OldKey).decode


def commands(file: OldFile, home: Home, seal: Seal | None) -> Iterator[Change]:
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
            waiting.append(unsealed(file, row, seal, decode_open))
            yield new.open(waiting[-1], due=row.due)
        are_open = {command.command_id for command in waiting}
        for row in rows[KEYS]:
            key = unsealed(file, row, seal, _decode_key)
            who, _, name = row.key.partition("\n")
            uses = _row_key(who, key.request_id, key.command_id)
            yield Row(KEYS, row.key, 1, uses.encode(), None)
            if key.command_id not in are_open:
                ended.add((who, key.request_id))
                yield new.ended_with_key(who, name, key)
        for row in rows[COMMANDS]:
            who, _, request_id = row.key.partition("\n")
            state = unsealed(file, row, seal, _decode_state)
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
            "is_unnamed": old.request_id == old.command_id,
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
        key = _row_key(who, request_id, command_id)
        return Row(collection, key, 1, self.seal.close(pack(members)), due)


def _row_key(who: str, request_id: str, command_id: str) -> str:
    return f"{who}\n{request_id}\n{command_id}"


def _interrupted(
    file: OldFile, home: Home, waiting: Iterable[OldOpenCommand]
) -> list[tuple[Event, dict[str, Any]]]:
    """The starts of commands that have no end, in the gateway's events, and do not wait."""
    starts: dict[tuple[str, ...], list[tuple[Event, dict[str, Any]]]] = {}
    for event in file.events(GATEWAY):
        with naming(file, event):
            data = members_of(event.data)
            about = data["metadata"]
            if "command" not in about:
                continue
            key = (data["source"], about["requestId"], about["traceId"])
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
