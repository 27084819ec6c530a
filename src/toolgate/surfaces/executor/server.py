"""The executor contract over HTTP: run a tool, fetch evidence, find earlier calls.

The routes are mounted on the gateway's port. Who asks is known by the bearer, never by the body.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolgate import asgi
from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import UNREADABLE
from toolgate.domain.errors import Invalid, NotFound, Refused, ToolgateError
from toolgate.ports.executor import Executor

log = logging.getLogger(__name__)

CODES: Final[dict[type[Exception], wire.ErrorCode]] = {
    Invalid: wire.ErrorCode.INVALID_REQUEST,
    NotFound: wire.ErrorCode.NOT_FOUND,
    Refused: wire.ErrorCode.UNAUTHORIZED,
    ToolgateError: wire.ErrorCode.INTERNAL_ERROR,
}


@dataclass(frozen=True, slots=True)
class ExecutorApi:
    executor: Executor
    token: str

    def app(self) -> Starlette:
        return Starlette(routes=[*self.routes(), Route(wire.HEALTH_PATH, self._health)])

    def routes(self) -> Sequence[Route]:
        """All but /health, which a listener that is shared has of its own."""
        return [
            Route(wire.RUN_PATH, self._answering(self._run), methods=["POST"]),
            Route(wire.ARTIFACT_PATH, self._answering(self._artifact), methods=["GET"]),
            Route(wire.EPISODES_PATH, self._answering(self._episodes), methods=["POST"]),
        ]

    def _answering(self, endpoint: asgi.Endpoint) -> asgi.Endpoint:
        """Check the bearer first, and give every error the contract's shape."""

        async def answer(request: Request) -> Response:
            try:
                if not self.token or not asgi.same_secret(asgi.bearer(request), self.token):
                    raise Refused("the bearer token is missing or wrong")
                return await endpoint(request)
            except UNREADABLE as unreadable:
                return _refusal(wire.ErrorCode.INVALID_REQUEST, str(unreadable))
            except asgi.BodyTooLarge as too_large:
                return _refusal(wire.ErrorCode.INVALID_REQUEST, str(too_large), status=413)
            except ToolgateError as error:
                kinds = (kind for kind in type(error).__mro__ if kind in CODES)
                return _refusal(CODES[next(kinds)], str(error))

        return answer

    async def _run(self, request: Request) -> Response:
        asked = wire.decode_request(await asgi.read_body(request))
        response = await self.executor.run_tool(asked)
        denied = response.policy_check.decision is wire.Decision.DENY
        return asgi.Json(response, status_code=403 if denied else 200)

    async def _artifact(self, request: Request) -> Response:
        ref = request.query_params.get("ref", "")
        content = await self.executor.artifact(ref)
        return Response(
            content,
            media_type="application/json",
            headers={wire.HEADER_CACHE_CONTROL: wire.NO_STORE},
        )

    async def _episodes(self, request: Request) -> Response:
        search = wire.decode_search(await asgi.read_body(request) or b"{}")
        return asgi.Json(wire.EpisodePage(list(await self.executor.episodes(search))))

    async def _health(self, _: Request) -> Response:
        return asgi.Json(await self.executor.health())


def _refusal(code: wire.ErrorCode, message: str, *, status: int | None = None) -> Response:
    body = wire.Refusal(wire.ErrorBody(code, message))
    return asgi.Json(body, status_code=status or wire.ERROR_CODES[code].status or 500)
