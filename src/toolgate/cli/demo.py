"""`toolgate demo`: the whole story, step by step, on a Toolgate of its own or on one that runs.

No model and no key: the script agent does what its message spells out, and the pages that the
browser reads are served from here.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import aiohttp
import click
from rich.console import Console
from rich.text import Text

from toolgate import settings as table
from toolgate.adapters.chromium import find_chromium
from toolgate.bootstrap.browser import browser_alone
from toolgate.bootstrap.roles import start_everything
from toolgate.cli.options import with_settings
from toolgate.client.sessions import Disconnected, Refused, Session, connect
from toolgate.contracts import ingress_v1 as wire
from toolgate.domain.errors import Misconfigured, ToolgateError, Unavailable
from toolgate.domain.task_runs import Trust
from toolgate.settings import Secret, Settings
from toolgate.tasks.toolset import Asker, Call

PATIENCE_S: Final = 60.0
READ: Final = "uname -sr && id -un"
CHANGE: Final = "echo 'kept in the sandbox' > note.txt && cat note.txt"
DESTROY: Final = "rm -rf /"
PAGES: Final = {
    "/": "<title>The gate</title><h1>The gate</h1><p>Everything passes here.",
    "/policy": "<title>Policy</title><h1>Policy</h1><p>Deny, ask, allow.",
    "/evidence": "<title>Evidence</title><h1>Evidence</h1><p>Anyone can check it.",
}


Asked = Callable[[wire.ApprovalRequired], Awaitable[None]]


@dataclass(slots=True)
class Teller:
    """Says each step as it happens: for a person, or a JSON line each."""

    as_json: bool
    console: Console = field(default_factory=lambda: Console(highlight=False))
    number: int = 0

    def step(self, title: str) -> None:
        self.number += 1
        if not self.as_json:
            self.console.print(Text(f"\n{self.number}. {title}", "bold"))

    def fact(self, name: str, value: str, *, style: str = "") -> None:
        if self.as_json:
            click.echo(json.dumps({"step": self.number, "fact": name, "value": value}))
            return
        for line in value.splitlines() or [""]:
            self.console.print(Text("   ").append(f"{name:<10}", "dim").append(line, style))
            name = ""


@dataclass(slots=True)
class Operator:
    """The console's API, as a signed-in person uses it."""

    http: aiohttp.ClientSession
    base: str

    @classmethod
    async def sign_in(cls, http: aiohttp.ClientSession, console: str, token: str) -> "Operator":
        operator = cls(http, f"{console}/api")
        await operator.ask("POST", "/sign-in", {"token": token})
        return operator

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        url = self.base + path
        async with self.http.request(method, url, json=body) as answer:
            data = await answer.json()
            if answer.status != 200:
                raise Unavailable(f"{path}: {data.get('error', {}).get('message', answer.status)}")
            return data


@contextlib.asynccontextmanager
async def _instance(settings: Settings, *, use_running: bool) -> AsyncIterator[tuple[Any, str]]:
    """The addresses and the operator's token of a Toolgate to play on."""
    if use_running:
        kept = settings.home / "operator.token"
        token = settings.operator_token.reveal() or (
            kept.read_text().strip() if kept.is_file() else ""
        )
        if not token:
            raise Misconfigured(f"there is no operator's token in {settings.home}; set --home")
        gateway = f"http://{settings.host}:{settings.gateway_port}"
        ws = f"ws://{settings.host}:{settings.ws_port}/ws"
        yield {"ingress_ws": ws, "console": f"{gateway}/console"}, token
        return
    with tempfile.TemporaryDirectory(prefix="toolgate-demo-") as home:
        token = "token-of-the-demo"  # noqa: S105 - of an installation that lives for seconds
        private = replace(
            settings,
            home=Path(home) / "home",
            ws_port=0,
            http_port=0,
            orchestrator_port=0,
            gateway_port=0,
            operator_token=Secret(token),
            policy_file="",
            log_level="error",
        )
        installation = await start_everything(private)
        try:
            yield installation.urls, token
        finally:
            await installation.stop()


@contextlib.contextmanager
def pages_on_this_machine() -> Iterator[str]:
    """Three pages on this machine."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = PAGES.get(self.path)
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            """Nobody wants to read that."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


async def _say(session: Session, message: str, *, asked: Asked) -> str:
    """What the agent answers; `asked` hears of approvals."""
    said: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in session.invoke(message, agent_id="script"):
            match event:
                case wire.Delta():
                    said.append(event.text)
                case wire.ApprovalRequired():
                    await asked(event)
                case wire.Error():
                    raise Unavailable(f"the run failed: {event.code}: {event.message}")
                case _:
                    continue
    return "".join(said).strip()


def _call(tool: str, **arguments: str) -> str:
    return f"[[tool:{tool} {json.dumps(arguments)}]]"


async def _unasked(event: wire.ApprovalRequired) -> None:
    raise Unavailable(f"nobody expected to be asked about {event.tool_name}")


async def _play(settings: Settings, tell: Teller, *, use_running: bool) -> None:
    async with (
        _instance(settings, use_running=use_running) as (urls, token),
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),  # a step may outlast a kept one
            cookie_jar=aiohttp.CookieJar(unsafe=True),
            headers={"X-Toolgate-Console": "1"},
        ) as http,
        connect(urls["ingress_ws"], user_id="demo", api_key=settings.api_key.reveal()) as session,
    ):
        operator = await Operator.sign_in(http, urls["console"], token)
        tell.step("A client connects")
        tell.fact("ingress", urls["ingress_ws"])
        tell.fact("session", session.session_id)
        await _calls(session, operator, tell)
        await _browse(settings, tell)
        tell.step("Anyone can check the evidence")
        found = await operator.ask("POST", "/evidence/verify", {})
        if found["problems"]:
            raise Unavailable(f"the evidence does not fit: {found['problems'][0]}")
        count = f"{found['size']} records, {found['artifacts']} artifacts"
        tell.fact("verified", f"{count} in {found['took_ms']} ms", style="green")


async def _calls(session: Session, operator: Operator, tell: Teller) -> None:
    tell.step("An agent reads: the policy allows it, the sandbox runs it")
    tell.fact("shell", READ, style="cyan")
    tell.fact("output", await _say(session, _call("shell", command=READ), asked=_unasked))

    tell.step("An agent wants to change something: the policy asks a person")
    tell.fact("shell", CHANGE, style="cyan")

    async def approve(event: wire.ApprovalRequired) -> None:
        tell.fact("asks", event.reason, style="yellow")
        await operator.ask(
            "POST",
            f"/approvals/{event.approval_id}/decide",
            {"approve": True, "reason": "it is only a demo"},
        )
        tell.fact("approved", "by the operator, for exactly this call, once", style="green")

    said = await _say(session, _call("shell", command=CHANGE), asked=approve)
    tell.fact("output", said)

    tell.step("An agent wants to destroy something: the policy denies it")
    tell.fact("shell", DESTROY, style="cyan")
    tell.fact(
        "answer", await _say(session, _call("shell", command=DESTROY), asked=_unasked), style="red"
    )


async def _browse(settings: Settings, tell: Teller) -> None:
    tell.step("A browser task reads pages")
    try:
        find_chromium(settings.chromium)
    except ToolgateError as missing:
        tell.fact("skipped", f"{missing}; `toolgate doctor` says how to get it", style="yellow")
        return
    with (
        tempfile.TemporaryDirectory(prefix="toolgate-demo-") as home,
        pages_on_this_machine() as site,
    ):
        async with browser_alone(settings, [Path(home)]) as toolset:
            urls = [site + path for path in PAGES]
            arguments = {"templateId": "batch_extract_pages", "inputs": {"urls": urls}}
            call = Call(Asker(Trust.LOCAL, client="demo"))
            async with asyncio.timeout(PATIENCE_S):
                run = await toolset.call("run_task_template", arguments, call)
            for item in run["result"]["items"]:
                tell.fact("read", f"{item['url']}  {item.get('title', '')}")
            tell.fact("status", run["status"], style="green")


def _answers(settings: Settings) -> bool:
    """Whether a Toolgate with these settings runs here."""

    async def look() -> bool:
        url = f"http://{settings.host}:{settings.gateway_port}/console/api/me"
        timeout = aiohttp.ClientTimeout(total=1)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as answer:
                return answer.status == 401
        except (aiohttp.ClientError, TimeoutError):
            return False

    return bool(settings.gateway_port) and asyncio.run(look())


@click.command()
@click.option(
    "--private/--running",
    "is_private",
    default=None,
    help="On a Toolgate of its own, or on the one that runs here. Unset: whichever there is.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per fact.")
@with_settings
def command(settings: table.Settings, *, is_private: bool | None, as_json: bool) -> None:
    """Play the whole story: connect, ask, approve, run, browse, verify.

    Nothing of yours is touched: what it runs is run in the sandbox, and a Toolgate of its own is
    gone when it ends.
    """
    use_running = _answers(settings) if is_private is None else not is_private
    tell = Teller(as_json)
    try:
        asyncio.run(_play(settings, tell, use_running=use_running))
    except (aiohttp.ClientError, Disconnected, Refused, TimeoutError) as failed:
        raise Unavailable(f"the story stopped: {failed}") from failed
    if not as_json:
        where = "in the console" if use_running else "with `toolgate up`, and its console"
        tell.console.print(Text(f"\nGo on {where}.", "bold green"))
