"""How rows and events of 0.1.0 are read: what cannot be read is named, and ends the upgrade."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from toolgate.core.errors import Damaged
from toolgate.evidence.evidence import record_of
from toolgate.journal.journal import Event, Row
from toolgate.journal.sqlite.upgrade import OldFile
from toolgate.policy.model import Policy
from toolgate.secrets.seal import Seal

T = TypeVar("T")

json_of: Final = msgspec.json.Encoder().encode
members_of: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Home:
    """What the rows alone do not say. The functions are called if rows need them."""

    now: int
    seal: Callable[[Sequence[bytes]], Seal | None]  # opens these; None: the key was given up
    policy: Callable[[], Policy]  # the one that will be in force
    commitment: Callable[[], Callable[[bytes], str]]
    redact: Callable[[str], str]


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


decode_open: Final = msgspec.msgpack.Decoder(OldOpenCommand).decode


def read(file: OldFile, row: Row, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(row.value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise damaged(file, f"row {row.key!r} of {row.collection}", wrong) from wrong


def unsealed(file: OldFile, row: Row, seal: Seal, decode: Callable[[bytes], T]) -> T:
    try:
        opened = seal.open(row.value)
    except Damaged as wrong:
        raise damaged(file, f"row {row.key!r} of {row.collection}", wrong) from wrong
    return read(file, row._replace(value=opened), decode)


def record_in(file: OldFile, event: Event) -> dict[str, Any]:
    try:
        return members_of(record_of(event.data))
    except msgspec.MsgspecError as wrong:
        raise damaged(file, f"record {event.seq} of the evidence", wrong) from wrong


def artifacts_of(record: Mapping[str, Any], event: Event) -> dict[str, Any]:
    """The artifacts that follow a record, by their names; one that is in the blobs is left out."""
    names = [ref.rpartition("/")[2].removesuffix(".json") for ref in record["artifacts"]]
    lines = event.data.split(b"\n")[1:]
    return {
        name: msgspec.json.decode(line) for name, line in zip(names, lines, strict=False) if line
    }


def damaged(file: OldFile, what: str, wrong: Exception) -> Damaged:
    return Damaged(
        f"{what} in {file.path} cannot be read ({wrong}); the file was not changed:"
        " restore it from a copy, or go on with 0.1.0"
    )
