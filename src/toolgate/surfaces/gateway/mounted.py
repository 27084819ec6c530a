"""An app that is served beside the contract's routes (MCP), behind the same authentication."""

from typing import Final

from starlette.authentication import SimpleUser
from starlette.responses import Response

from toolgate.access.devices import Identity, Who
from toolgate.access.refusals import Forbidden, InvalidToken
from toolgate.commands.answers import EXPECTED, failure, problem_of
from toolgate.commands.plans import caller_of, granted_level
from toolgate.core.concurrency import Stopped, unless
from toolgate.core.enums import CommandKind, Level
from toolgate.http import asgi
from toolgate.http.traces import trace_id_of
from toolgate.surfaces.gateway.authentication import Doors, text
from toolgate.surfaces.gateway.routes import Access

REMEDY: Final = (
    "`toolgate token make NAME --kind agent --tools write --mcp` prints one of the client's own"
)


class Guarded:
    """An app for devices and named tokens with the `mcp` scope.

    It finds who asks in the scope: the name as `user`, the gate's caller as CALLER. It is cut off
    when that one is revoked.
    """

    def __init__(self, app: asgi.App, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        headers = dict(scope["headers"])
        try:
            identity = await self._admit(scope, headers)
        except EXPECTED as refused:
            await _refuse(refused, scope, receive, send)
            return
        level = granted_level(identity, CommandKind.MCP, Level.WRITE)
        known = {
            "user": SimpleUser(f"{identity.who}:{identity.name}"),
            asgi.CALLER: caller_of(identity, level=level),
        }
        await self._until_cut(identity, {**scope, **known}, receive, send)

    async def _until_cut(
        self, identity: Identity, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        began = False

        async def noting(message: asgi.Message) -> None:
            nonlocal began
            began = True
            await send(message)

        with self._doors.registry.watch(identity.name) as cut:
            try:
                return await unless(cut.wait(), self._app(scope, receive, noting))
            except Stopped:
                pass
        if began:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await _refuse(InvalidToken("the token was revoked"), scope, receive, send)
        return None

    async def _admit(self, scope: asgi.Scope, headers: dict[bytes, bytes]) -> Identity:
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
        assert identity is not None, "only what is open to anyone has no identity"
        if identity.who is Who.OPERATOR:
            raise Forbidden(f"the operator's token is not for MCP clients: {REMEDY}")
        if not identity.scope.mcp:
            remedy = "approve it with the scope mcp" if identity.who is Who.DEVICE else REMEDY
            raise Forbidden(f"{identity.name} may not use MCP: {remedy}")
        return identity


async def _refuse(
    refused: Exception, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
) -> None:
    trace_id = trace_id_of("", text(dict(scope["headers"]), b"traceparent"))
    reply = failure(problem_of(refused), trace_id)
    refusal = Response(reply.body, reply.status, dict(reply.headers), media_type="application/json")
    await refusal(scope, receive, send)
