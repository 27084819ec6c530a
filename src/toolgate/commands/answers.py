"""The envelope of every answer, and the contract's codes of our errors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolgate.access.devices import TooManyPending
from toolgate.access.refusals import (
    AuthRequired,
    Forbidden,
    InvalidToken,
    KeyConflict,
    RateLimited,
)
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.enums import Outcome
from toolgate.core.errors import (
    Conflict,
    Invalid,
    Misconfigured,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
    code_for,
)
from toolgate.http.asgi import BodyTooLarge
from toolgate.policy.model import InvalidPolicy
from toolgate.tasks.state import TaskFailed
from toolgate.tools.approvals import HiddenArguments

Code = wire.ErrorCode
Headers = tuple[tuple[str, str], ...]


class Reply(msgspec.Struct, frozen=True):
    """An answer: the same over HTTP and WebSocket."""

    status: int
    body: bytes
    headers: Headers = ()


class Problem(Exception):
    """An answer that is an error; `status` if it is not the code's own."""

    def __init__(
        self,
        code: wire.ErrorCode,
        message: str,
        *,
        status: int | None = None,
        data: Any = None,
        headers: Headers = (),
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or wire.ERROR_CODES[code].status or 500
        self.data = data
        self.headers = headers
        self.outcome = outcome


class NotImplementedHere(ToolgateError):
    """No part of this installation does what was asked."""


# The first class of an error's MRO that is here decides.
CODES: Final[Mapping[type[Exception], tuple[wire.ErrorCode, int]]] = {
    AuthRequired: (Code.AUTH_REQUIRED, 401),
    InvalidToken: (Code.INVALID_TOKEN, 401),
    Forbidden: (Code.PERMISSION_DENIED, 403),
    RateLimited: (Code.RATE_LIMITED, 429),
    TooManyPending: (Code.RATE_LIMITED, 429),
    KeyConflict: (Code.IDEMPOTENCY_CONFLICT, 409),
    Refused: (Code.PERMISSION_DENIED, 403),
    NotFound: (Code.INVALID_REQUEST, 404),
    Invalid: (Code.INVALID_REQUEST, 400),
    Conflict: (Code.INVALID_REQUEST, 400),
    BodyTooLarge: (Code.INVALID_REQUEST, 413),
    NotImplementedHere: (Code.NOT_IMPLEMENTED, 501),
    Unavailable: (Code.UNAVAILABLE, 503),
    Misconfigured: (Code.INTERNAL, 500),
    TaskFailed: (Code.INVALID_REQUEST, 400),
    ToolgateError: (Code.INTERNAL, 500),
}


TEMPORARY: Final = frozenset({Code.INTERNAL, Code.UPSTREAM, Code.UNAVAILABLE})
OUTCOME_IN_DATA: Final = frozenset({Code.UPSTREAM, Code.UNAVAILABLE})
EXPECTED: Final = (ToolgateError, Problem, BodyTooLarge, *UNREADABLE)  # what has an answer here


def problem_of(error: Exception) -> Problem:
    """The contract's answer to an error; one that is not expected reveals nothing."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UNREADABLE):
        return Problem(Code.INVALID_REQUEST, _readable(error))
    code, status = code_for(error, CODES, (Code.INTERNAL, 500))
    if code is Code.INTERNAL:
        return Problem(Code.INTERNAL, "the gateway failed; see its log for this traceId")
    return Problem(
        code, str(error), status=status, data=_data_of(error), headers=_headers_of(error)
    )


def _readable(error: Exception) -> str:
    if isinstance(error, msgspec.DecodeError):
        return str(error)
    return "the body is not JSON in UTF-8" if isinstance(error, ValueError) else "nested too deep"


def _data_of(error: Exception) -> Any:
    if isinstance(error, HiddenArguments):
        return {"reason": "hidden_arguments"}
    if isinstance(error, AuthRequired) and error.pending is not None:
        return wire.PairingWanted(code=error.pending.code, expires_at=error.pending.expires_at)
    if isinstance(error, InvalidPolicy):
        return wire.PolicyChecked(problems=list(error.problems))
    return None


def _headers_of(error: Exception) -> Headers:
    match error:
        case RateLimited():
            return (*rate_headers(error.spent), retry_after(error.spent.retry_ms))
        case TooManyPending():
            return (retry_after(error.retry_ms),)
        case AuthRequired() if error.token:
            return ((wire.HEADER_DEVICE_TOKEN, error.token),)
        case _:
            return ()


def retry_after(ms: int) -> tuple[str, str]:
    return (wire.HEADER_RETRY_AFTER, str(max(1, math.ceil(ms / 1000))))


def rate_headers(spent: Any) -> Headers:
    return (
        (wire.HEADER_RATE_LIMIT, str(spent.limit)),
        (wire.HEADER_RATE_REMAINING, str(spent.remaining)),
        (wire.HEADER_RATE_RESET, str(math.ceil(spent.reset_ms / 1000))),
    )


def success(data: Any, trace_id: str, *, status: int = 200, headers: Headers = ()) -> Reply:
    return Reply(status, wire.encode(wire.Answer(ok=True, data=data, trace_id=trace_id)), headers)


def failure(problem: Problem, trace_id: str, *, headers: Headers = ()) -> Reply:
    outcome = problem.outcome if problem.outcome is not None else msgspec.UNSET
    error = wire.ErrorBody(code=problem.code, message=problem.message, outcome=outcome)
    data = problem.data
    if problem.code in OUTCOME_IN_DATA and problem.outcome is not None:
        data = {**(data or {}), "outcome": problem.outcome}
    answer = wire.Answer(ok=False, data=data, trace_id=trace_id, error=error)
    return Reply(problem.status, wire.encode(answer), (*headers, *problem.headers))


@dataclass(frozen=True, slots=True)
class Extra:
    """The status and headers of an answer."""

    status: int = 200
    headers: Headers = ()
    bare: bool = False  # without the envelope: /health, /status, /events/poll


@dataclass(frozen=True, slots=True)
class Result:
    data: Any
    extra: Extra = field(default_factory=Extra)
