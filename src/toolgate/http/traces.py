"""Which trace a request belongs to: as its body says, else its `traceparent`, else a new one."""

import re
import secrets
from typing import Final

from toolgate.http.bodies import check_id

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_id_of(from_body: str, traceparent: str) -> str:
    """Raises Invalid for an id that is none; a `traceparent` that is none is passed over."""
    if from_body:
        return check_id("trace.traceId", from_body)
    found = _TRACEPARENT.match(traceparent) if traceparent else None
    if found is not None and found["trace"].strip("0"):
        return found["trace"]
    return secrets.token_hex(16)
