"""`toolgate demo`: the whole story, step by step, on a Toolgate of its own or on one that runs.

No model and no key: the script agent does what its message spells out, and the pages that the
browser reads are Toolgate's own. Everything goes through the doors that anybody uses, so that it
is in the console afterwards.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.browser.chromium import INSTALL
from toolgate.browser.sample_pages import PAGES
from toolgate.cli.operator import Operator
from toolgate.cli.options import client_key, host_in_url, known_token, with_settings
from toolgate.client.sessions import Disconnected, Refused, Session, connect
from toolgate.contracts import ingress_v1 as wire
from toolgate.core.errors import Unavailable
from toolgate.secrets.own_tokens import TokenKind, new_token
from toolgate.settings import Secret, Settings

PATIENCE_S: Final = 60.0
READ: Final = "uname -sr && id -un"
CHANGE: Final = "echo 'kept in the sandbox' > note.txt && cat note.txt"
DESTROY: Final = "rm -rf /"
BATCH: Final = "browser.batch_extract_pages"


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
        row = Table.grid()
        row.add_column(width=13, no_wrap=True)
        row.add_column(overflow="fold")
        row.add_row(Text(f"   {name}", "dim"), Text(value, style))
        self.console.print(row)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Something turns in a terminal while this goes on."""
        if self.as_json or not self.console.is_terminal:
            yield
            return
        with self.console.status(Text(what, "dim")):
            yield


@contextlib.asynccontextmanager
async def _instance(
    settings: Settings, *, use_running: bool
) -> AsyncIterator[tuple[Any, Operator, str]]:
    """The addresses of a Toolgate to play on, its operator, and the clients' key."""
    if use_running:
        token = known_token(settings, TokenKind.OPERATOR)
        gateway = f"http://{host_in_url(settings)}:{settings.gateway_port}"
        ws = f"ws://{host_in_url(settings)}:{settings.ws_port}/ws"
        operator = Operator(gateway, token)
        await asyncio.to_thread(
            operator.data, "GET", "/policy"
        )  # refuses a wrong token, with a hint
        yield {"ingress_ws": ws}, operator, client_key(settings, here=True)
        return
    with tempfile.TemporaryDirectory(prefix="toolgate-demo-") as home:
        token, key = new_token(TokenKind.OPERATOR), new_token(TokenKind.API_KEY)
        private = replace(
            settings,
            home=Path(home) / "home",
            state_dir=Path(home) / "state",
            ws_port=0,
            http_port=0,
            orchestrator_port=0,
            gateway_port=0,
            operator_token=Secret(token),
            api_key=Secret(key),
            policy_file="",
            log_level="error",
        )
        starting = asyncio.create_task(start_everything(private))
        try:
            urls = (await asyncio.shield(starting)).urls
            yield urls, Operator(urls["gateway"], token), key
        finally:
            # Also where Ctrl-C came while it began: what is half begun would go on writing into a
            # directory that is about to be removed.
            await (await starting).stop()


async def _say(session: Session, message: str, *, asked: Asked) -> str:
    """The agent's answer; `asked` is called with each approval."""
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


def _call(tool: str, **arguments: Any) -> str:
    return f"[[tool:{tool} {json.dumps(arguments)}]]"


async def _unasked(event: wire.ApprovalRequired) -> None:
    raise Unavailable(
        f"the policy in force asks about {event.tool_name} here; `toolgate demo --private` plays on"
        " the policy that ships"
    )


async def _play(settings: Settings, tell: Teller, *, use_running: bool) -> None:
    async with (
        _instance(settings, use_running=use_running) as (urls, operator, key),
        connect(urls["ingress_ws"], user_id="demo", api_key=key) as session,
    ):
        tell.step("A client connects")
        tell.fact("ingress", urls["ingress_ws"])
        tell.fact("session", session.session_id)
        await _calls(session, operator, tell)
        await _browse(session, tell)
        tell.step("Anyone can check the evidence")
        found = await asyncio.to_thread(operator.data, "POST", "/evidence/verify")
        if found["problems"]:
            raise Unavailable(f"the evidence does not fit: {found['problems'][0]}")
        count = f"{found['size']} records, {found['artifacts']} artifacts"
        tell.fact("verified", f"{count} in {found['tookMs']} ms", style="green")


async def _calls(session: Session, operator: Operator, tell: Teller) -> None:
    tell.step("An agent reads: the policy allows it, the sandbox runs it")
    tell.fact("shell", READ, style="cyan")
    tell.fact("output", await _say(session, _call("shell", command=READ), asked=_unasked))

    tell.step("An agent wants to change something: the policy asks a person")
    tell.fact("shell", CHANGE, style="cyan")

    async def approve(event: wire.ApprovalRequired) -> None:
        tell.fact("asks", event.reason, style="yellow")
        path = f"/approvals/{event.approval_id}/decide"
        answer = {"decision": "approve", "reason": "it is only a demo"}
        await asyncio.to_thread(operator.data, "POST", path, answer)
        tell.fact("approved", "by the operator, for exactly this call, once", style="green")

    said = await _say(session, _call("shell", command=CHANGE), asked=approve)
    tell.fact("output", said)

    tell.step("An agent wants to destroy something: the policy denies it")
    tell.fact("shell", DESTROY, style="cyan")
    tell.fact(
        "answer", await _say(session, _call("shell", command=DESTROY), asked=_unasked), style="red"
    )


async def _browse(session: Session, tell: Teller) -> None:
    tell.step("An agent hands a task to the browser: pages are read")
    call = _call(BATCH, urls=list(PAGES))
    for url in PAGES:
        tell.fact("page", url, style="cyan")
    with tell.waiting("the browser starts with its first task"):
        said = await _say(session, call, asked=_unasked)
    _, brace, rest = said.partition("{")
    run: dict[str, Any] = json.loads(brace + rest) if brace else {"error": said}
    if run.get("error"):
        why = str(run["error"]).splitlines()[0]
        tell.fact("skipped", why, style="yellow")
        tell.fact("install", f"as root on Debian: {INSTALL}", style="dim")
        tell.fact("look", "`toolgate doctor` tries what is here", style="dim")
        return
    for item in run["result"]["items"]:
        text = item["content"]["sections"][1]["text"]
        tell.fact("read", f"{item['title']}: {text}")
    tell.fact("task", run["runId"])
    tell.fact("status", run["status"], style="green")


def _answers(settings: Settings, *, within_s: float) -> bool:
    """Tell if a Toolgate with these settings is running here."""

    async def look() -> bool:
        url = f"http://{host_in_url(settings)}:{settings.gateway_port}/console/api/me"
        timeout = aiohttp.ClientTimeout(total=within_s)
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
    is_meant = is_private is False
    use_running = not is_private and _answers(settings, within_s=PATIENCE_S if is_meant else 1.0)
    if is_meant and not use_running:
        where = f"{host_in_url(settings)}:{settings.gateway_port}"
        raise Unavailable(f"no Toolgate answers at {where}; `toolgate up` starts one")
    tell = Teller(as_json)
    try:
        asyncio.run(_play(settings, tell, use_running=use_running))
    except (aiohttp.ClientError, Disconnected, Refused, TimeoutError) as failed:
        raise Unavailable(f"the story stopped: {failed}") from failed
    if not as_json:
        where = (
            "It is all in the console now; `toolgate console` prints a link to it."
            if use_running
            else "Go on with `toolgate up`, and its console."
        )
        tell.console.print(Text(f"\n{where}", "bold green"))
