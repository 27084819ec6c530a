"""Our errors as the executor contract's codes."""

from typing import Final

from toolgate.contracts import executor_v0 as wire
from toolgate.core.errors import Invalid, NotFound, Refused, ToolgateError, code_for

CODES: Final[dict[type[Exception], wire.ErrorCode]] = {
    Invalid: wire.ErrorCode.INVALID_REQUEST,
    NotFound: wire.ErrorCode.NOT_FOUND,
    Refused: wire.ErrorCode.UNAUTHORIZED,
    ToolgateError: wire.ErrorCode.INTERNAL_ERROR,
}


def code_of(error: ToolgateError) -> wire.ErrorCode:
    return code_for(error, CODES, wire.ErrorCode.INTERNAL_ERROR)
