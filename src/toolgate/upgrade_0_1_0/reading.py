"""How rows and events of 0.1.0 are read: what cannot be read is named, and ends the upgrade."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from toolgate.core.errors import Conflict, Damaged
from toolgate.evidence.evidence import record_of
from toolgate.journal.journal import Event, Row
from toolgate.journal.sqlite.upgrade import OldFile
from toolgate.policy.model import Policy
from toolgate.runs.records import fact_of, run_stream
from toolgate.runs.state import Fact
from toolgate.secrets.seal import Seal

T = TypeVar("T")

# The errors of a value that was cut, or that is not of the form it had in 0.1.0.
UNREADABLE: Final = (
    msgspec.MsgspecError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    Conflict,
)

OPEN_COMMANDS: Final = "open_commands"
TARGETS: Final = "execution_targets"
SERVERS: Final = "capabilities"

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


@contextlib.contextmanager
def naming(file: OldFile, what: Row | Event) -> Iterator[None]:
    """Raise Damaged with the name of the row or event that cannot be read."""
    try:
        yield
    except UNREADABLE as wrong:
        if isinstance(what, Row):
            name = f"row {what.key!r} of {what.collection}"
        else:
            name = f"event {what.seq} of {what.stream}"
        raise Damaged(
            f"{name} in {file.path} cannot be read ({wrong}); the file was not changed:"
            " restore it from a copy, or go on with 0.1.0"
        ) from wrong


def read(file: OldFile, row: Row, decode: Callable[[bytes], T]) -> T:
    with naming(file, row):
        return decode(row.value)


def unsealed(file: OldFile, row: Row, seal: Seal, decode: Callable[[bytes], T]) -> T:
    with naming(file, row):
        try:
            opened = seal.open(row.value)
        except Damaged as wrong:
            raise ValueError(str(wrong)) from wrong
        return decode(opened)


def facts_of(file: OldFile, run_id: str) -> Iterator[Fact]:
    for event in file.events(run_stream(run_id)):
        with naming(file, event):
            fact = fact_of(event)
        yield fact


def fields_of(file: OldFile, event: Event) -> dict[str, Any]:
    """The fields of a record of the evidence."""
    with naming(file, event):
        return dict(members_of(record_of(event.data))["fields"])


def artifacts_of(file: OldFile, event: Event) -> dict[str, Any]:
    """The artifacts that follow a record, by their names; one that is in the blobs is left out."""
    with naming(file, event):
        refs = members_of(record_of(event.data))["artifacts"]
        names = [ref.rpartition("/")[2].removesuffix(".json") for ref in refs]
        lines = event.data.split(b"\n")[1:]
        kept = [(name, line) for name, line in zip(names, lines, strict=True) if line]
        return {name: msgspec.json.decode(line) for name, line in kept}
