"""The console: the operator's pages under /console, and the API that they read.

The pages are static files; everything they show comes from `/console/api`, behind a session.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from toolgate.core.errors import Refused
from toolgate.http import asgi
from toolgate.surfaces.console.admissions import AdmissionPages
from toolgate.surfaces.console.approvals import ApprovalPages
from toolgate.surfaces.console.browser_tasks import TaskPages
from toolgate.surfaces.console.guard import Guard
from toolgate.surfaces.console.live import Live
from toolgate.surfaces.console.overview import OverviewPage
from toolgate.surfaces.console.pages import STATIC, Pages
from toolgate.surfaces.console.parts import Answer, Handle, Parts, body_of
from toolgate.surfaces.console.policies import PolicyPages
from toolgate.surfaces.console.records import RecordPages
from toolgate.surfaces.console.runs import RunPages
from toolgate.surfaces.console.sign_in import COOKIE, SESSION_MS, SignIn
from toolgate.surfaces.console.targets import TargetPages

BASE: Final = "/console"
API: Final = "/console/api"
FIRST_AGENT: Final = "script"  # what the chat offers first: it needs no model


class Proof(msgspec.Struct):
    token: str = ""
    code: str = ""


class Console:
    def __init__(self, parts: Parts, sign_in: SignIn) -> None:
        self.parts = parts
        self.sign_in = sign_in
        self._guard = Guard(sign_in)
        self.live = Live(parts, self._guard.is_operator)
        self._pages = Pages(chat_port=parts.chat.port)

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
            Route(STATIC + "{path:path}", pages.static, methods=["GET"]),
            Route("/", self._home, methods=["GET"]),
            Route(f"{BASE}/", self._home, methods=["GET"]),
            Route(BASE, pages.page, methods=["GET"]),
            Route(API + "/{path:path}", self._guard.open(self._unknown)),
            Route(f"{BASE}/{{path:path}}", pages.page, methods=["GET"]),
        )

    def table(self) -> Sequence[tuple[str, str, Handle]]:
        """What needs a session: method, path, handler."""
        runs, approvals = RunPages(self.parts), ApprovalPages(self.parts)
        policies, targets = PolicyPages(self.parts), TargetPages(self.parts)
        admissions, records = AdmissionPages(self.parts), RecordPages(self.parts)
        tasks = TaskPages(self.parts)
        return (
            ("GET", "/me", self._me),
            ("POST", "/sign-out", self._sign_out),
            ("GET", "/live", self.live.stream),
            ("GET", "/overview", OverviewPage(self.parts).show),
            ("GET", "/runs", runs.listed),
            ("GET", "/runs/{id}", runs.one),
            ("POST", "/runs/{id}/cancel", runs.cancel),
            ("GET", "/waiting", approvals.waiting),
            ("GET", "/approvals", approvals.listed),
            ("GET", "/approvals/{id}", approvals.one),
            ("POST", "/approvals/{id}/decide", approvals.decide),
            ("POST", "/approvals/{id}/reveal", approvals.reveal),
            ("GET", "/devices", admissions.devices),
            ("POST", "/devices/pair", admissions.pair),
            ("POST", "/devices/revoke", admissions.revoke),
            ("POST", "/devices/turn-down", admissions.turn_down),
            ("PUT", "/tokens/{id}", admissions.make_token),
            ("DELETE", "/tokens/{id}", admissions.end_token),
            ("GET", "/capabilities", admissions.capabilities),
            ("PUT", "/capabilities/{id:path}", admissions.register),
            ("DELETE", "/capabilities/{id:path}", admissions.unregister),
            ("GET", "/targets", targets.listed),
            ("PUT", "/targets/{id}", targets.put),
            ("DELETE", "/targets/{id}", targets.delete),
            ("GET", "/policy", policies.show),
            ("PUT", "/policy", policies.activate),
            ("POST", "/policy/check", policies.check),
            ("POST", "/policy/simulate", policies.simulate),
            ("GET", "/audit", records.audit),
            ("GET", "/evidence", records.evidence),
            ("GET", "/evidence/{index}/proof", records.proof),
            ("POST", "/evidence/verify", records.verify),
            ("GET", "/tasks", tasks.listed),
            ("POST", "/tasks", tasks.start),
            ("GET", "/tasks/{id}", tasks.one),
            ("POST", "/tasks/{id}/cancel", tasks.cancel),
            ("GET", "/artifacts/{id}", tasks.artifact),
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
        await self.parts.note("console.signed_in", ("console", ""))
        answer = asgi.Json({"ok": True}, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=SESSION_MS // 1000,
            path=BASE,
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
        await self.sign_in.end(request.cookies.get(COOKIE, ""))
        answer = asgi.Json({"ok": True})
        answer.delete_cookie(COOKIE, path=BASE, httponly=True, samesite="strict")
        return answer

    async def _me(self, _: Request) -> Answer:
        chat, agents = self.parts.chat, self.parts.runs.agents
        external = [agent.agent_id for agent in await agents.external()]
        names = sorted(agents.builtin, key=lambda name: (name != FIRST_AGENT, name))
        return {
            "version": self.parts.version,
            "chat": {"port": chat.port, "api_key": chat.api_key, "agents": [*names, *external]},
            "has_devices": self.parts.admission is not None,
            "has_tasks": self.parts.tasks is not None,
            "now": self.parts.clock.now_ms(),
        }

    async def _unknown(self, _: Request) -> Answer:
        return Response(status_code=404)

    async def _home(self, _: Request) -> Response:
        return RedirectResponse(BASE, status_code=308)
