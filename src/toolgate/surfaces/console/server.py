"""The console: the operator's pages under /console, signing in, and what happens, live.

The pages are static files. They call the gateway's operator routes, as every other client does; under
`/console/api` is only what the gateway has no route for.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from toolgate.access.sign_in import COOKIE, SESSION_MS, SignIn, cookie_of
from toolgate.core.errors import Refused
from toolgate.http import asgi
from toolgate.surfaces.console.approvals import ApprovalPages
from toolgate.surfaces.console.context import OPERATOR, Answer, ConsoleContext, Handle, body_of
from toolgate.surfaces.console.guard import Guard
from toolgate.surfaces.console.live import Live
from toolgate.surfaces.console.overview import OverviewPage
from toolgate.surfaces.console.pages import STATIC, Pages

BASE: Final = "/console"
API: Final = "/console/api"
FIRST_AGENT: Final = "script"  # what the chat offers first: it needs no model


class Proof(msgspec.Struct):
    token: str = ""
    code: str = ""


class Console:
    def __init__(self, context: ConsoleContext, sign_in: SignIn) -> None:
        self.context = context
        self.sign_in = sign_in
        self._guard = Guard(sign_in)
        self.live = Live(context, self._guard.is_operator)
        self._pages = Pages(chat_port=context.chat.port)

    def link(self, url: str) -> str:
        """An address that signs in once. The code is behind `#`, so that no log gets it."""
        return f"{url}#code={self.sign_in.new_code()}"

    def close(self) -> None:
        self.live.close()

    def routes(self) -> Sequence[Route]:
        """The API's, then every other path below /console, which is the page."""
        pages = self._pages
        return (
            *self._open_routes(),
            *(
                Route(API + path, self._guard.signed_in(handle), methods=[method])
                for method, path, handle in self.table()
            ),
            Route(f"{API}/live", self._guard.signed_in(self.live.stream, stream=True)),
            Route(STATIC + "{path:path}", pages.static, methods=["GET"]),
            Route("/", self._home, methods=["GET"]),
            Route(f"{BASE}/", self._home, methods=["GET"]),
            Route(BASE, pages.page, methods=["GET"]),
            Route(API + "/{path:path}", self._guard.open(self._unknown)),
            Route(f"{BASE}/{{path:path}}", pages.page, methods=["GET"]),
        )

    def table(self) -> Sequence[tuple[str, str, Handle]]:
        """What needs a session: method, path, handler."""
        approvals = ApprovalPages(self.context)
        return (
            ("GET", "/me", self._me),
            ("POST", "/sign-out", self._sign_out),
            ("GET", "/overview", OverviewPage(self.context).show),
            ("GET", "/waiting", approvals.waiting),
            ("GET", "/approvals", approvals.listed),
            ("GET", "/approvals/{id}", approvals.one),
            ("POST", "/approvals/{id}/decide", approvals.decide),
            ("POST", "/approvals/{id}/reveal", approvals.reveal),
        )

    def _open_routes(self) -> Sequence[Route]:
        sign_in = self._guard.open(self._sign_in)
        new_link = self._guard.open(self._new_link)
        return (
            Route(f"{API}/sign-in", sign_in, methods=["POST"]),
            Route(f"{API}/links", new_link, methods=["POST"]),
        )

    async def _sign_in(self, request: Request) -> Answer:
        proof = await body_of(request, Proof)
        by = request.client.host if request.client is not None else ""
        cookie = self.sign_in.open(token=proof.token, code=proof.code, by=by)
        audit = self.context.audit
        note = audit.note("console.signed_in", actor=OPERATOR, resource=("console", ""))
        await self.context.journal.commit(*note)
        answer = asgi.Json({"ok": True}, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=SESSION_MS // 1000,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _new_link(self, request: Request) -> Answer:
        """A code for `toolgate console`, which has the operator's token."""
        if not self.sign_in.is_token(asgi.bearer(request)):
            raise Refused("this needs the operator's token")
        return {"code": self.sign_in.new_code()}

    async def _sign_out(self, request: Request) -> Answer:
        await self.sign_in.end(cookie_of(request.headers))
        answer = asgi.Json({"ok": True})
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    async def _me(self, _: Request) -> Answer:
        chat, agents = self.context.chat, self.context.runs.agents
        external = [agent.agent_id for agent in await agents.external()]
        names = sorted(agents.builtin, key=lambda name: (name != FIRST_AGENT, name))
        return {
            "version": self.context.version,
            "chat": {"port": chat.port, "api_key": chat.api_key, "agents": [*names, *external]},
            "now": self.context.clock.now_ms(),
        }

    async def _unknown(self, _: Request) -> Answer:
        return Response(status_code=404)

    async def _home(self, _: Request) -> Response:
        return RedirectResponse(BASE, status_code=308)
