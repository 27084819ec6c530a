"""What is served beside the contract's routes (MCP), behind the same doors."""

from starlette.responses import Response

from toolgate import asgi
from toolgate.admission.refusals import Forbidden
from toolgate.domain.devices import Who
from toolgate.surfaces.gateway.answers import EXPECTED, failure, problem_of
from toolgate.surfaces.gateway.doors import Doors, text
from toolgate.surfaces.gateway.routes import Access
from toolgate.surfaces.gateway.traces import trace_id_of


class Guarded:
    """An app that only a device with the `mcp` scope, a service or the operator gets to."""

    def __init__(self, app: asgi.App, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        headers = dict(scope["headers"])
        try:
            await self._admit(scope, headers)
        except EXPECTED as refused:
            trace_id = trace_id_of("", text(headers, b"traceparent"))
            reply = failure(problem_of(refused), trace_id)
            refusal = Response(
                reply.body, reply.status, dict(reply.headers), media_type="application/json"
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: asgi.Scope, headers: dict[bytes, bytes]) -> None:
        host = text(headers, b"host")
        if not self._doors.is_same_site(text(headers, b"origin"), host):
            raise Forbidden("this Origin is not one of ours")
        client = scope.get("client")
        identity = await self._doors.identify(
            self._doors.credentials(headers),
            Access.READER,
            ip=client[0] if client else "",
            user_agent=text(headers, b"user-agent"),
        )
        if identity is not None and identity.who is Who.DEVICE and not identity.scope.mcp:
            raise Forbidden("this device may not use MCP; approve it with the scope mcp")
