"""`toolgate approvals`: calls that wait for a person; show them whole, approve or reject them."""

import json
import os
import select
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, next_command, time_of
from toolgate.cli.routes import Members, command_of, request
from toolgate.cli.terminal import exact, one_line, plain, print_facts
from toolgate.core.errors import Refused
from toolgate.core.system_clock import SystemClock

POLL_S: Final = 1.0
MOST: Final = 500  # approvals on a page
PENDING: Final = "PENDING"
STATUSES: Final = ("pending", "approved", "rejected", "expired")
CUT: Final = "… [cut: "
PLACE: Final = {"tenant": "tenantId", "workspace": "workspaceId", "session": "sessionId"}
QUESTION: Final = "approve? [y]es, [n]o, [s]kip: "
REVEAL: Final = "reveal it first? [r]eveal, [n]o (reject), [s]kip: "


def _decide(decision: str) -> Any:
    return request(
        "POST /approvals/{approvalId}/decide",
        body=lambda _, given: {"decision": decision, "reason": given.get("reason", "")},
        done=lambda _, members: f"{members['approvalId']} is {members['status'].lower()}",
    )


ID: Final = click.argument("approval_id")
REASON: Final = click.option("--reason", help="Why; it goes on record.")
command = click.Group(
    help="Show the calls that wait for a person, and answer them.",
    commands={
        "list": command_of(
            "List approvals that wait; --status lists others.",
            request(
                "GET /approvals?status={status}&limit={limit}&cursor={cursor}",
                columns={
                    "approval": "approvalId",
                    "status": "status",
                    "asked by": "askedBy",
                    "expires": "expiresAt",
                    "call": "argsSummary",
                },
                none="no approvals; `toolgate approvals watch` shows the next call that waits",
                lines=True,
            ),
            click.option(
                "--status",
                type=click.Choice([*STATUSES, "any"]),
                default="pending",
                show_default=True,
                callback=lambda _, __, value: None if value == "any" else value,
                help="Only approvals of this status.",
            ),
            click.option("--limit", type=click.IntRange(1, MOST), help="How many. [50]"),
            click.option("--cursor", help="Only approvals below this one, as the last page said."),
        ),
        "approve": command_of("Approve APPROVAL_ID.", _decide("approve"), ID, REASON),
        "reject": command_of("Reject APPROVAL_ID.", _decide("reject"), ID, REASON),
    },
)


@command.command()
@ID
@click.option("--reveal", is_flag=True, help="Show hidden characters too; this goes on record.")
@as_operator
def show(operator: Operator, *, approval_id: str, reveal: bool, as_json: bool) -> None:
    """Show the whole call that APPROVAL_ID is about.

    The commands that answer it are printed too.
    Characters that cannot be seen are printed as <U+200B>.
    """
    one = _revealed(operator, approval_id) if reveal else _one(operator, approval_id)
    if as_json:
        click.echo(json.dumps(one))
    else:
        _print(one, hints=one["status"] == PENDING)


@command.command()
@as_operator
def watch(operator: Operator, *, as_json: bool) -> None:
    """Show each call that waits, as it comes, until Ctrl-C.

    In a terminal you are asked for each: y approves, n rejects, s leaves it open. What becomes of a
    call is shown too. With --json each change is a line.
    """
    asks = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    seen: dict[str, Members] = {}
    click.echo("watching for calls that wait; Ctrl-C ends", err=True)
    while True:
        waiting = {one["approvalId"]: one for one in reversed([*pending(operator)])}
        for name in [name for name in seen if name not in waiting]:
            _tell(_one(operator, name), as_json=as_json, hints=False)
        for name in [name for name in waiting if name not in seen]:
            _tell(waiting[name], as_json=as_json, hints=not asks)
            if asks:
                _ask(operator, waiting[name])
        seen = waiting
        time.sleep(POLL_S)


def pending(operator: Operator) -> Iterator[Members]:
    """The approvals that wait, newest first, page by page."""
    path = more = f"/approvals?status={PENDING}&limit={MOST}"
    while more:
        page = operator.data("GET", more)
        yield from page["items"]
        more = f"{path}&cursor={quote(page['nextCursor'])}" if "nextCursor" in page else ""


def _tell(one: Members, *, as_json: bool, hints: bool) -> None:
    if as_json:
        click.echo(json.dumps(one))
    elif one["status"] == PENDING:
        click.echo()
        _print(one, hints=hints)
    else:
        by = f" by {one_line(one['decidedBy'])}" if "decidedBy" in one else ""
        click.echo(f"{one_line(one['approvalId'])} is {one['status'].lower()}{by}")


def _one(operator: Operator, name: str) -> Members:
    found: Members = operator.data("GET", f"/approvals/{quote(name, safe='')}")
    return found


def _revealed(operator: Operator, name: str) -> Members:
    one = _one(operator, name)
    one.update(operator.data("POST", f"/approvals/{quote(name, safe='')}/reveal", {}))
    return one


def _is_hidden(one: Members) -> bool:
    return bool(one.get("hidden")) and not one.get("revealed")


def _ask(operator: Operator, one: Members) -> None:
    """Ask the person at the terminal, until they answer or the approval is not open any more."""
    name = one["approvalId"]
    while one["status"] == PENDING:
        answer = _typed(operator, name, REVEAL if _is_hidden(one) else QUESTION)
        try:
            match answer:
                case "y" | "yes" if not _is_hidden(one):
                    _answer(operator, name, "approve")
                    return
                case "n" | "no":
                    _answer(operator, name, "reject")
                    return
                case "r" | "reveal" if _is_hidden(one):
                    one = _revealed(operator, name)
                    _print(one, hints=False)
                case "s" | "skip" | None:
                    return
                case _:
                    pass
        except Refused as refused:  # such as one that was decided in the meantime
            click.echo(plain(str(refused)), err=True)
            one = _one(operator, name)


def _answer(operator: Operator, name: str, decision: str) -> None:
    path = f"/approvals/{quote(name, safe='')}/decide"
    operator.data("POST", path, {"decision": decision, "reason": ""})


def _typed(operator: Operator, name: str, question: str) -> str | None:
    """A line from the terminal; None once the approval is not open any more."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed earlier answers nothing
    click.echo(question, nl=False)
    try:
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            if _one(operator, name)["status"] != PENDING:
                click.echo()
                return None
        typed = os.read(sys.stdin.fileno(), 1024).decode(errors="replace")
    except KeyboardInterrupt:
        click.echo()
        raise
    if not typed:  # Ctrl-D
        click.echo()
        click.get_current_context().exit()
    return typed.strip().lower()


def _print(one: Members, *, hints: bool) -> None:
    """Print the whole approval; `hints`: and the commands that answer it."""
    name, is_open = one["approvalId"], one["status"] == PENDING
    places = (f"{word} {one[key]}" for word, key in PLACE.items() if one.get(key))
    summary = one.get("argsSummary", "")
    print_facts(
        {
            "approval": one_line(name),
            "status": one["status"].lower(),
            "tool": one_line(one["tool"]),
            "arguments": exact(one["args"]) if one.get("args") else one_line(summary),
            "place": one_line(", ".join(places)),
            "rule": one_line(one.get("ruleId", "")),
            "reason": one_line(one["reason"]),
            "asked by": one_line(one["askedBy"]),
            "run": one_line(one.get("runId", "")),
            "asked": time_of(one["createdAt"]),
            "expires": f"{time_of(one['expiresAt'])}{_left(one)}" if is_open else "",
            "decided by": one_line(one.get("decidedBy", "")),
        }
    )
    if "args" not in one and CUT in summary:
        click.echo("These arguments are cut short: an earlier version asked, and kept no more.")
    if is_open and _is_hidden(one):
        click.echo(f"{one['hidden']} characters are hidden: reveal them before you decide.")
    verbs = (["show", "--reveal"] if _is_hidden(one) else ["approve"], ["reject"])
    for verb, *more in verbs if hints else ():
        click.echo(f"  {next_command('approvals', verb, name, *more)}")


def _left(one: Members) -> str:
    seconds = max(0, one["expiresAt"] // 1000 - SystemClock().now_ms() // 1000)
    return f" (in {seconds // 60} min {seconds % 60} s)"
