"""The guard of the console's own API: the session, our own page, and the answers to errors."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from toolgate.access.sign_in import SAFE_METHODS, SignIn, TooManyAttempts, check_own_page
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
from toolgate.http import asgi
from toolgate.surfaces.console.context import Handle
from toolgate.surfaces.console.pages import HEADERS

log = logging.getLogger(__name__)

_STATUS: Final[Mapping[type[ToolgateError], tuple[int, str]]] = {
    TooManyAttempts: (429, "too_many_attempts"),
    Invalid: (400, "invalid"),
    Refused: (403, "refused"),
    NotFound: (404, "not_found"),
    Conflict: (409, "conflict"),
    Unavailable: (503, "unavailable"),
    Misconfigured: (500, "misconfigured"),
}


def failure(status: int, code: str, message: str) -> Response:
    error = {"code": code, "message": message}
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return asgi.Json({"error": error}, status_code=status, headers=headers)


@dataclass(frozen=True, slots=True)
class Guard:
    sign_in: SignIn

    def open(self, handle: Handle) -> asgi.Endpoint:
        """For whoever is not signed in yet; `toolgate console`, which asks here, has no Origin."""

        async def endpoint(request: Request) -> Response:
            return await _answer(handle, request, changes=False)

        return endpoint

    def signed_in(self, handle: Handle, *, stream: bool = False) -> asgi.Endpoint:
        """`stream`: the browser's EventSource reads it, which sends no header of ours."""

        async def endpoint(request: Request) -> Response:
            if not self.is_operator(request):
                return failure(401, "signed_out", "sign in first")
            changes = None if stream else request.method not in SAFE_METHODS
            return await _answer(handle, request, changes=changes)

        return endpoint

    def is_operator(self, request: Request) -> bool:
        return self.sign_in.has_session(request.headers)


async def _answer(handle: Handle, request: Request, *, changes: bool | None) -> Response:
    """`changes` as `check_own_page` has it; None for a request that is not checked."""
    try:
        if changes is not None:
            check_own_page(request.headers, changes=changes)
        answer = await handle(request)
    except asgi.BodyTooLarge as large:
        return failure(413, "too_large", str(large))
    except ToolgateError as wrong:
        status, code = code_for(wrong, _STATUS, (500, "failed"))
        return failure(status, code, str(wrong))
    except Exception:
        log.exception("console_failed path=%s", request.url.path)
        return failure(500, "failed", "the console failed; the log says why")
    if isinstance(answer, Response):
        answer.headers.update(HEADERS)
        return answer
    return asgi.Json(answer, headers={**HEADERS, "Cache-Control": "no-store"})
