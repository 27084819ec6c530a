"""`toolgate chat`: talk to an agent in the terminal; approvals and tools are asked for inline."""

import asyncio
import contextlib
import getpass
import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import click
import uvloop
from msgspec import UnsetType

from toolgate import settings as table
from toolgate.cli.operator import is_this_machine
from toolgate.cli.options import EXIT_FAILED, client_key, host_in_url, with_settings
from toolgate.cli.terminal import one_line, plain
from toolgate.client.sessions import Disconnected, Refused, Session, connect, retracted
from toolgate.contracts import ingress_v1 as wire
from toolgate.core.enums import RunStatus
from toolgate.core.errors import Misconfigured, Unavailable
from toolgate.secrets.own_tokens import FILES, TokenKind

PROMPT = "> "
CUT = "… [cut: "
_asking = asyncio.Lock()  # an answer is to the one question that is open


@dataclass(frozen=True, slots=True)
class Talk:
    """The agent, the user, and the form of the output."""

    url: str
    agent: str
    user: str
    api_key: str
    session_id: str
    as_json: bool


@dataclass(slots=True)
class _Person:
    """The person at stdin: each line answers the question that was asked last."""

    open: list[tuple[str, asyncio.Future[str]]] = field(default_factory=list)
    is_read: bool = False

    async def answer(self, question: str) -> str:
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.open.append((question, asked))
        self._ask()
        try:
            return await asked
        finally:
            self.open = [one for one in self.open if one[1] is not asked]

    def _ask(self) -> None:
        sys.stdout.write(self.open[-1][0])
        sys.stdout.flush()
        if not self.is_read:
            self.is_read = True
            # Not of the loop's own threads: those are waited for at the end, and this one may never
            # return.
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(loop,), daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            read: tuple[str, Exception | None] = sys.stdin.readline(), None
            read[0].encode()
        except (OSError, ValueError) as wrong:  # such as bytes that are no UTF-8
            read = "", wrong
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(self._tell, *read)

    def _tell(self, line: str, wrong: Exception | None) -> None:
        self.is_read = False
        waiting = [one for one in self.open if not one[1].done()]
        if not waiting:
            return
        (_, asked), self.open = waiting[-1], waiting[:-1]
        if wrong is None:
            asked.set_result(line)
        else:
            asked.set_exception(Unavailable(f"stdin cannot be read: {wrong}"))
        if self.open:
            self._ask()


_people: WeakKeyDictionary[asyncio.AbstractEventLoop, _Person] = WeakKeyDictionary()


async def _line(prompt: str) -> str:
    """A line of stdin; empty at its end."""
    return await _people.setdefault(asyncio.get_running_loop(), _Person()).answer(prompt)


async def _decide(asked: wire.ApprovalRequired) -> bool:
    async with _asking:
        name, summary = one_line(asked.tool_name), one_line(asked.args_summary)
        # Our summaries begin with the name; another's orchestrator may say the arguments alone.
        click.echo(f"\n? {summary}" if summary.startswith(f"{name} ") else f"\n? {name} {summary}")
        if asked.reason:
            click.echo(f"  {one_line(asked.reason)}")
        is_known_whole = not isinstance(asked.args, UnsetType)  # another's orchestrator may cut
        if not is_known_whole and (CUT in summary or summary.endswith("…")):
            click.echo("  this is cut short: its orchestrator has the rest")
        if asked.hidden:
            reveal = f"toolgate approvals show {one_line(asked.approval_id)} --reveal"
            click.echo(
                f"  {asked.hidden} characters are hidden: reveal them first, in the console or with"
            )
            click.echo(f"  {reveal}")
        try:
            answer = await _line("  approve? [y/N] ")
        except asyncio.CancelledError:  # it was decided elsewhere, or the run has ended
            click.echo()
            raise
    return answer.strip().lower() in {"y", "yes"}


def _show(event: wire.AnySessionEvent) -> None:
    match event:
        case wire.Delta():
            click.echo(plain(event.text), nl=False)
        case wire.ToolRequest():
            click.echo(f"\n[tool {plain(event.tool_name)}]")
        case wire.State(detail={"tool_call_id": str(), "delta": str(delta)}):
            click.echo(plain(delta), nl=False)
        case wire.State():
            back = retracted(event)
            why = f": it starts again, the last {back} characters do not count" if back else ""
            click.echo(f"\n[{plain(event.state.lower())}{why}]")
        case wire.Error():
            click.echo()
            _complain(event)
        case wire.Done():
            click.echo()
        case _:
            pass


def _complain(error: wire.Error) -> None:
    reason = error.detail.get("reason") if isinstance(error.detail, dict) else None
    click.echo(f"toolgate: {plain(str(reason or error.code))}: {plain(error.message)}", err=True)


async def _say(session: Session, said: str, talk: Talk) -> bool:
    """Send one message and show its run; True if the run ended well."""
    is_done = is_cancelled = False
    async for event in session.invoke(said, agent_id=talk.agent):
        if talk.as_json:
            click.echo(wire.encode(event))
            if isinstance(event, wire.Error):
                _complain(event)
        else:
            _show(event)
        is_cancelled |= isinstance(event, wire.State) and event.state == RunStatus.CANCELLED
        is_done = isinstance(event, wire.Done)
    return is_done and not is_cancelled


async def _chat(talk: Talk, once: str) -> bool:
    """Hold the conversation; True if every run ended well."""
    # With --json nobody sits here to be asked: what needs a person waits for one elsewhere.
    decide = None if talk.as_json else _decide
    is_connected = False
    try:
        async with connect(
            talk.url,
            user_id=talk.user,
            api_key=talk.api_key,
            session_id=talk.session_id,
            decide=decide,
        ) as session:
            is_connected = True
            if once:
                return await _say(session, once, talk)
            click.echo(f"session {session.session_id}, agent {talk.agent}; Ctrl-D ends", err=True)
            all_done = True
            while line := await _line("" if talk.as_json else PROMPT):
                if line.strip():
                    all_done = await _say(session, line.strip(), talk) and all_done
            if not talk.as_json:
                click.echo()  # after the prompt: what the shell says next has a line of its own
            return all_done
    except (Disconnected, Refused) as failed:
        never = isinstance(failed, Disconnected) and not is_connected
        hint = "; `toolgate up` starts it, --url says where it is" if never else ""
        if isinstance(failed, Refused) and failed.code == wire.ErrorCode.AUTH_FAILED:
            hint = f": set API_KEY, or --home to where {FILES[TokenKind.API_KEY]} is kept"
        raise Unavailable(f"{talk.url}: {failed}{hint}") from failed


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in a container
        return f"uid-{os.getuid()}"


@click.command()
@click.option("--url", help="The ingress. Unset: the one of this machine's settings.")
@click.option("--agent", default="echo", show_default=True, help="Whom to talk to.")
@click.option("--user", default=_this_user, help="Who talks. Unset: this user.")
@click.option("--session", "session_id", default="", help="Go on with an earlier session.")
@click.option("--json", "as_json", is_flag=True, help="Each event as a line of JSON.")
@click.argument("message", nargs=-1)
@with_settings
def command(
    settings: table.Settings,
    *,
    url: str | None,
    agent: str,
    user: str,
    session_id: str,
    as_json: bool,
    message: tuple[str, ...],
) -> None:
    """Talk to an agent; with a MESSAGE, say just that and end.

    Text streams as it comes. A tool call that needs a person is asked for here. With --json each
    line of stdin is a message, and what needs a person waits for one elsewhere, such as in the
    console. Exits 1 where a run did not end well.
    """
    key = client_key(settings, here=not url or is_this_machine(urlsplit(url).hostname or ""))
    url = url or f"ws://{host_in_url(settings)}:{settings.ws_port}/ws"
    if not url.startswith(("ws://", "wss://")):
        raise Misconfigured(f"--url {url} is not a WebSocket's address, such as ws://HOST:8090/ws")
    # What the session logs is said here anyway.
    logging.getLogger("toolgate").addHandler(logging.NullHandler())
    talk = Talk(url, agent, user, key, session_id, as_json)
    if not uvloop.run(_chat(talk, " ".join(message))):
        sys.exit(EXIT_FAILED)
