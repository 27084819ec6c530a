"""`toolgate chat`: talk to an agent in the terminal; approvals and tools are asked for inline."""

import asyncio
import getpass
import sys

import click
import uvloop

from toolgate import settings as table
from toolgate.cli.options import with_settings
from toolgate.client.sessions import Disconnected, Refused, Session, connect
from toolgate.contracts import ingress_v1 as wire
from toolgate.domain.errors import Unavailable

PROMPT = "> "


async def _line(prompt: str) -> str:
    """A line of the terminal's, or of whatever stands in for it; empty at its end."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    return await asyncio.to_thread(sys.stdin.readline)


async def _decide(asked: wire.ApprovalRequired) -> bool:
    click.echo(f"\n? {asked.tool_name} {asked.args_summary}")
    if asked.reason:
        click.echo(f"  {asked.reason}")
    answer = await _line("  approve? [y/N] ")
    return answer.strip().lower() in {"y", "yes"}


async def _talk(session: Session, agent: str, said: str) -> None:
    async for event in session.invoke(said, agent_id=agent):
        match event:
            case wire.Delta():
                click.echo(event.text, nl=False)
            case wire.ToolRequest():
                click.echo(f"\n[tool {event.tool_name}]")
            case wire.State():
                click.echo(f"\n[{event.state.lower()}]")
            case wire.Error():
                click.echo(f"\n[{event.code}: {event.message}]")
            case wire.Done():
                click.echo()
            case _:
                pass


async def _chat(url: str, *, agent: str, user: str, key: str, session_id: str, once: str) -> None:
    try:
        async with connect(
            url, user_id=user, api_key=key, session_id=session_id, decide=_decide
        ) as session:
            if once:
                await _talk(session, agent, once)
                return
            click.echo(f"session {session.session_id}, agent {agent}; Ctrl-D ends", err=True)
            while line := await _line(PROMPT):
                if line.strip():
                    await _talk(session, agent, line.strip())
    except (Disconnected, Refused) as failed:
        raise Unavailable(f"{url}: {failed}") from failed


@click.command()
@click.option("--url", help="The ingress. Unset: the one of this machine's settings.")
@click.option("--agent", default="echo", show_default=True, help="Whom to talk to.")
@click.option("--user", default=getpass.getuser, help="Who talks. Unset: this user.")
@click.option("--session", "session_id", default="", help="Go on with an earlier session.")
@click.argument("message", nargs=-1)
@with_settings
def command(
    settings: table.Settings,
    *,
    url: str | None,
    agent: str,
    user: str,
    session_id: str,
    message: tuple[str, ...],
) -> None:
    """Talk to an agent; with a MESSAGE, say just that and end.

    Text streams as it comes. A tool call that needs a person is asked for here.
    """
    url = url or f"ws://{settings.host}:{settings.ws_port}/ws"
    key = settings.api_key.reveal()
    once = " ".join(message)
    uvloop.run(_chat(url, agent=agent, user=user, key=key, session_id=session_id, once=once))
