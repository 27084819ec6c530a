"""What a record of the evidence is: its text, the artifacts behind it, the file that proves it.

An event's data is the record on one line and, each on its own, the artifacts that it names; an
empty line stands for one that is in the blobs.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from toolgate.core.errors import Damaged, Invalid
from toolgate.core.tools import JsonValue
from toolgate.evidence import checkpoints
from toolgate.evidence import tree as evidence
from toolgate.evidence.checkpoints import Checkpoint, VerifierKey
from toolgate.evidence.evidence import STREAM, Scalar
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.journal import Event, NewEvent

RECORD_VERSION: Final = 1
LOG_DIRECTORY: Final = "evidence"  # in a home
PROOF_FORMAT: Final = "toolgate-evidence-proof/1"
LARGEST_INTEGER: Final = 2**53 - 1  # what RFC 8785 can write exactly
_PLAIN: Final = frozenset({str, bool, type(None)})
_KIND: Final = re.compile(r"[a-z][a-z0-9_.]{0,63}")
_FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

_encode = msgspec.json.Encoder(order="sorted").encode
_encode_as_it_stands = msgspec.json.Encoder().encode  # in half the time


class Record(msgspec.Struct):
    """In the order of the names, as the canonical form has it."""

    artifacts: dict[str, str]
    at: int
    fields: object
    kind: str
    subject: str
    v: int = RECORD_VERSION


def check_fields(fields: Mapping[str, JsonValue]) -> None:
    """Only what has one canonical form; raises Invalid naming the field that hasn't."""
    _check_names(tuple(fields))
    if set(map(type, fields.values())) <= _PLAIN:
        return
    for name, value in fields.items():
        if not isinstance(value, str) and not _is_plain(value):
            raise Invalid(f"{name} is no text, whole number, true, false or null", field=name)


@lru_cache(maxsize=1024)
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if _FIELD.fullmatch(name) is None:
            raise Invalid(f"not a field's name: {name}", field=name)


@lru_cache(maxsize=256)
def is_kind(kind: str) -> bool:
    return _KIND.fullmatch(kind) is not None


def _is_plain(value: JsonValue) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST_INTEGER
    return value is None


def canonical(value: object) -> bytes:
    """RFC 8785 for what we write: sorted, and every text valid Unicode."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_without_surrogates(msgspec.to_builtins(value)))


def in_order(record: Record) -> bytes:
    """The same, of what is in order already."""
    try:
        return _encode_as_it_stands(record)
    except UnicodeEncodeError:
        return canonical(record)


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


def index_in(events: Sequence[Event]) -> int:
    """The index, in the log, of the record among a commit's events."""
    return next(event.seq - 1 for event in events if event.stream == STREAM)


def artifacts_of(record: bytes) -> dict[str, str]:
    """The artifacts that a record names: ref -> digest."""
    return msgspec.convert(msgspec.json.decode(record)["artifacts"], dict[str, str])


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_content(ref: str, digest: str, content: bytes) -> None:
    if digest_of(content) != digest:
        raise Damaged(f"artifact {ref} is not what was recorded")


def subject_of(ref: str) -> str:
    """Whose artifact it is; empty where the ref is none."""
    parts = ref.split("/")
    return parts[1] if parts[0] == "requests" and len(parts) > 2 else ""


def find_artifact(data: bytes, ref: str, digest: str = "") -> tuple[str, bytes | None] | None:
    """(digest, content) of an artifact in the data of an event; None where the record names none.

    The content is None where it is in the blobs. Raises Damaged where it is not what was recorded.
    """
    record, *contents = data.split(b"\n")
    try:
        named = artifacts_of(record)
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError):
        return None  # no record: whoever checks the log says so
    if ref not in named or digest not in ("", named[ref]):
        return None
    if len(contents) != len(named):
        raise Damaged(f"artifact {ref} is not what was recorded")
    content = contents[sorted(named).index(ref)]
    if not content:
        return named[ref], None
    check_content(ref, named[ref], content)
    return named[ref], content


def parse_note(note: str) -> Checkpoint:
    """The checkpoint in a note whose signature is not checked."""
    return Checkpoint.parse(note.partition("\n\n")[0] + "\n")


def size_of(note: str) -> int:
    return parse_note(note).size


def plain_record(kind: str, fields: Mapping[str, Scalar], *, at: int) -> NewEvent:
    """A record without artifacts or subject; `fields` are in the order of their names."""
    return NewEvent(kind, in_order(Record({}, at, fields, kind, "")))


def make_proof(
    files: TileFiles,
    *,
    note: str,
    key: VerifierKey,
    index: int,
    record: bytes,
    artifacts: Mapping[str, bytes],
) -> bytes:
    size = size_of(note)
    proof = evidence.inclusion_proof(index, size=size, hash_at=files.hash_at(size))
    document = {
        "artifacts": {ref: content.decode() for ref, content in artifacts.items()},
        "checkpoint": note,
        "format": PROOF_FORMAT,
        "index": index,
        "key": str(key),
        "proof": checkpoints.encode_hashes(proof),
        "record": record.decode(),
    }
    return _encode(document) + b"\n"
