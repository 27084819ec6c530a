"""Who may call the console's API, and how what goes wrong looks there.

A request that changes something must come from our own page: a header that a form cannot send, and
an Origin that is ours. The cookie alone proves nothing.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from toolgate.core.errors import (
    Conflict,
    Invalid,
    Misconfigured,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
)
from toolgate.http import asgi
from toolgate.policy.model import InvalidPolicy
from toolgate.surfaces.console.pages import HEADERS
from toolgate.surfaces.console.parts import Handle
from toolgate.surfaces.console.sign_in import COOKIE, SignIn, TooManyAttempts
from toolgate.tasks.state import TaskFailed

log = logging.getLogger(__name__)

MARK: Final = "x-toolgate-console"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_STATUS: Final[Mapping[type[ToolgateError], tuple[int, str]]] = {
    TooManyAttempts: (429, "too_many_attempts"),
    Invalid: (400, "invalid"),
    Refused: (403, "refused"),
    NotFound: (404, "not_found"),
    Conflict: (409, "conflict"),
    Unavailable: (503, "unavailable"),
    Misconfigured: (500, "misconfigured"),
}


def failure(status: int, code: str, message: str, **more: object) -> Response:
    error = {"code": code, "message": message, **more}
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return asgi.Json({"error": error}, status_code=status, headers=headers)


def is_from_our_page(request: Request) -> bool:
    """A page elsewhere cannot send our header without asking, and we answer no such question."""
    if request.headers.get(MARK) != "1":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return origin.partition("://")[2] == request.headers.get("host", "")


@dataclass(frozen=True, slots=True)
class Guard:
    sign_in: SignIn

    def open(self, handle: Handle) -> asgi.Endpoint:
        """For whoever is not signed in yet."""
        return self._wrapped(handle, lambda _: True)

    def signed_in(self, handle: Handle) -> asgi.Endpoint:
        return self._wrapped(handle, self.is_operator)

    def is_operator(self, request: Request) -> bool:
        return self.sign_in.is_open(request.cookies.get(COOKIE, ""))

    def _wrapped(self, handle: Handle, may: Callable[[Request], bool]) -> asgi.Endpoint:
        async def endpoint(request: Request) -> Response:
            if request.method not in SAFE_METHODS and not is_from_our_page(request):
                return failure(403, "cross_site", "this must come from the console's own page")
            if not may(request):
                return failure(401, "signed_out", "sign in first")
            return await _answer(handle, request)

        return endpoint


async def _answer(handle: Handle, request: Request) -> Response:
    try:
        answer = await handle(request)
    except InvalidPolicy as wrong:
        return failure(400, "invalid_policy", str(wrong), problems=list(wrong.problems))
    except TaskFailed as failed:
        return failure(400, failed.error.code.value, failed.error.message)
    except asgi.BodyTooLarge as large:
        return failure(413, "too_large", str(large))
    except ToolgateError as wrong:
        status, code = next(
            (_STATUS[kind] for kind in type(wrong).__mro__ if kind in _STATUS), (500, "failed")
        )
        return failure(status, code, str(wrong))
    except Exception:
        log.exception("console_failed path=%s", request.url.path)
        return failure(500, "failed", "the console failed; the log says why")
    if isinstance(answer, Response):
        answer.headers.update(HEADERS)
        return answer
    return asgi.Json(answer, headers={**HEADERS, "Cache-Control": "no-store"})
