"""Reading a body that may mean harm: duplicate members, depth without end, ids with control signs.

Also the canonical form, in which two documents that differ only in order and space are one.
"""

import json
import re
from typing import Any, Final

import msgspec

from toolgate.contracts.wire import MAX_ID_CHARS, UNREADABLE
from toolgate.core.errors import Invalid

MAX_DEPTH: Final = 64  # ours: nothing that means well is deeper
TOO_DEEP: Final = "the body is nested too deep"
canonical: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode
_OPENING: Final = (b"{", b"[")
ID: Final = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{MAX_ID_CHARS}}}")


def parse(raw: bytes) -> Any:
    """Raises Invalid for what is not JSON, says a member twice or is nested too deep."""
    try:
        document = _decode(raw)
    except RecursionError as deep:
        raise Invalid(TOO_DEEP) from deep
    except UNREADABLE as unreadable:
        raise Invalid("the body is not JSON in UTF-8") from unreadable
    if sum(raw.count(sign) for sign in _OPENING) > MAX_DEPTH:
        _check_depth(document, MAX_DEPTH)
    text = canonical(document)
    # A member said twice is gone from the canonical form, with the quotes of its name. Only an
    # escaped quote can add quotes; with one of those the slow way decides.
    if text.count(b'"') != raw.count(b'"') or b"\\u0022" in raw:
        try:
            json.loads(raw, object_pairs_hook=_no_duplicates)
        except ValueError as unreadable:
            raise Invalid("the body is not JSON in UTF-8") from unreadable
    return document


def check_id(name: str, value: str) -> str:
    if ID.fullmatch(value) is None:
        raise Invalid(f"{name} is not an id: 1 to {MAX_ID_CHARS} characters, none a control sign")
    return value


def _check_depth(value: Any, left: int) -> None:
    if left < 0:
        raise Invalid(TOO_DEEP)
    if isinstance(value, dict):
        for member in value.values():
            _check_depth(member, left - 1)
    elif isinstance(value, list):
        for member in value:
            _check_depth(member, left - 1)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Invalid("the body says a member twice")
    return members
