"""What the wire modules share: how a model is made, an omitted member, time as text, code tables.

It knows no contract, and no contract knows another.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

import msgspec
from msgspec import UnsetType

Json = Any  # any JSON value; what it holds is for someone else to check

MAX_INT: Final = 2**63 - 1  # what the journal and every client language can hold
Int = Annotated[int, msgspec.Meta(ge=-MAX_INT - 1, le=MAX_INT)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
UnixMs = Annotated[int, msgspec.Meta(ge=-MAX_INT - 1, le=MAX_INT, title="Unix ms")]

MAX_ID_CHARS: Final = 256  # ours: an id becomes a key in the journal
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]
MaybeId = Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)]  # empty where it is left out
Text = Annotated[str, msgspec.Meta(min_length=1)]

# `$` alone would let a trailing line break through.
IsoMs = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$(?!\n)",
        title="ISO 8601 in UTC with milliseconds",
    ),
]

# All that a msgspec decoder raises for a text it cannot read: bytes that are not UTF-8 and nesting
# without end come up as Python's own errors, not as msgspec's.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_AT: Final = re.compile(r" - at `(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]*)`")

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True):
    """A model of one object on the wire; members it does not know are ignored."""


class CamelWire(Wire, rename="camel"):
    """The same, spelt in camelCase on the wire."""


@dataclass(frozen=True, slots=True)
class Code:
    """A row of a code table: what it means, what the one who gets it should do."""

    meaning: str
    action: str
    status: int | None = None  # HTTP status that it comes with, where it has one of its own


def given(value: T | UnsetType, default: T) -> T:
    """The member, or the default where it was left out."""
    return default if isinstance(value, UnsetType) else value


def field_of(unreadable: Exception) -> str:
    """The path of the member that an error is about, as `$.message.role`; `$` for the whole."""
    text = str(unreadable)
    at = _AT.search(text)
    path = at["path"] if at else "$"
    missing = _MISSING.search(text)
    return f"{path}.{missing['name']}" if missing else path


def to_iso_ms(unix_ms: int) -> str:
    seconds, ms = divmod(unix_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def from_iso_ms(text: str) -> int:
    """Unix ms of an ISO 8601 time; one without a zone is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
