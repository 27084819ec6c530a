"""The executor contract over HTTP: run a tool, fetch evidence, find earlier calls.

The routes are mounted on the gateway's port. Who asks is known by the bearer, never by the body.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolgate.access.devices import Identity, Who
from toolgate.commands.plans import caller_of
from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.errors import Refused, ToolgateError
from toolgate.http import asgi
from toolgate.surfaces.executor.errors import code_of
from toolgate.surfaces.executor.following import Followed, wants_events
from toolgate.surfaces.executor.local import LocalExecutor

log = logging.getLogger(__name__)

Authenticate = Callable[[str], Identity]
Keep = Callable[[bytes], Awaitable[wire.StoredArtifact]]

LARGEST_UPLOAD: Final = 32 * 1024 * 1024  # of a file that is kept (tools/files.py)
FILES: Final = "files/"
JSON_TYPE: Final = "application/json"
BYTES_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ExecutorApi:
    """`keep` takes in a file for later tool calls; without it there is no such route."""

    executor: LocalExecutor
    authenticate: Authenticate
    keep: Keep | None = None

    def app(self) -> Starlette:
        return Starlette(routes=[*self.routes(), Route(wire.HEALTH_PATH, self._health)])

    def routes(self) -> Sequence[Route]:
        """All but /health, which a listener that is shared has of its own."""
        upload = Route(wire.ARTIFACT_PUT_PATH, self._answering(self._upload), methods=["POST"])
        return [
            *([upload] if self.keep is not None else []),
            Route(wire.RUN_PATH, self._answering(self._run), methods=["POST"]),
            Route(wire.ARTIFACT_PATH, self._answering(self._artifact), methods=["GET"]),
            Route(wire.EPISODES_PATH, self._answering(self._episodes), methods=["POST"]),
        ]

    def _answering(self, endpoint: asgi.Endpoint) -> asgi.Endpoint:
        """Check the bearer first, and give every error the contract's shape."""

        async def answer(request: Request) -> Response:
            try:
                identity = self.authenticate(asgi.bearer(request))
                if identity.who is not Who.EXECUTOR and request.url.path != wire.RUN_PATH:
                    raise Refused("this needs the executor's token")
                request.state.caller = identity
                return await endpoint(request)
            except UNREADABLE as unreadable:
                return _refusal(wire.ErrorCode.INVALID_REQUEST, str(unreadable))
            except asgi.BodyTooLarge as too_large:
                return _refusal(wire.ErrorCode.INVALID_REQUEST, str(too_large), status=413)
            except ToolgateError as error:
                return _refusal(code_of(error), str(error))

        return answer

    async def _run(self, request: Request) -> Response:
        asked = wire.decode_request(await asgi.read_body(request))
        executor = self._executor_of(request.state.caller)
        if wants_events(request.headers.get("accept", "")):
            return await Followed.begin(executor, asked, request.receive)
        response = await executor.run_tool(asked)
        denied = response.policy_check.decision is wire.Decision.DENY
        return asgi.Json(response, status_code=403 if denied else 200)

    def _executor_of(self, identity: Identity) -> LocalExecutor:
        if identity.who is Who.EXECUTOR:
            return self.executor
        return replace(self.executor, caller=caller_of(identity, level=identity.scope.tools))

    async def _artifact(self, request: Request) -> Response:
        ref = request.query_params.get("ref", "")
        content = await self.executor.artifact(ref)
        headers = {wire.HEADER_CACHE_CONTROL: wire.NO_STORE}
        if ref.startswith(FILES):  # whatever somebody's command has written
            headers |= {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
        kind = BYTES_TYPE if ref.startswith(FILES) else JSON_TYPE
        return Response(content, media_type=kind, headers=headers)

    async def _upload(self, request: Request) -> Response:
        assert self.keep is not None
        return asgi.Json(await self.keep(await asgi.read_body(request, limit=LARGEST_UPLOAD)))

    async def _episodes(self, request: Request) -> Response:
        search = wire.decode_search(await asgi.read_body(request) or b"{}")
        return asgi.Json(await self.executor.episodes(search))

    async def _health(self, _: Request) -> Response:
        return asgi.Json(await self.executor.health())


def _refusal(code: wire.ErrorCode, message: str, *, status: int | None = None) -> Response:
    body = wire.Refusal(wire.ErrorBody(code, message))
    return asgi.Json(body, status_code=status or wire.ERROR_CODES[code].status or 500)
