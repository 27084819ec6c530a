"""Once per key: what a request with an Idempotency-Key means, given what is known of the key."""

from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

KEPT_MS: Final = 600_000  # gateway contract: 600 s after the answer
# A command that waits for a person keeps its key; they may be given a week (APPROVAL_TIMEOUT_MS).
UNFINISHED_KEPT_MS: Final = 8 * 24 * 3600 * 1000


class Known(NamedTuple):
    """A key that was used: by which request, as which command, and its answer once there is one."""

    request_hash: str
    command_id: str
    request_id: str
    at: int
    expires_at: int
    done: bool = False
    status: int = 0
    body: bytes = b""
    # How its end is told of, should we be stopped before it; empty where an end was told of.
    kind: str = ""
    name: str = ""
    trace_id: str = ""


class Verdict(StrEnum):
    FIRST = "first"  # run it
    REPLAY = "replay"  # give the answer again
    UNFINISHED = "unfinished"  # it was begun: wait for it, or go on with it
    CONFLICT = "conflict"  # the key belongs to another request


def judge(known: Known | None, request_hash: str, *, now: int) -> Verdict:
    if known is None or now >= known.expires_at:
        return Verdict.FIRST
    if known.request_hash != request_hash:
        return Verdict.CONFLICT
    return Verdict.REPLAY if known.done else Verdict.UNFINISHED


def request_hash(method: str, path: str, canonical_body: bytes) -> str:
    return sha256(f"{method} {path}\n".encode() + canonical_body).hexdigest()
