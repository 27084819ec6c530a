"""`toolgate runs`: agents' runs; list them, show one, cancel one."""

import json
from typing import Final
from urllib.parse import quote

import click

from toolgate.cli.approvals import MOST, pending
from toolgate.cli.operator import Operator, as_operator, next_command, time_of
from toolgate.cli.routes import command_of, request
from toolgate.cli.terminal import one_line, print_facts

ENDED: Final = {"DONE", "FAILED", "CANCELLED"}

RUN: Final = click.argument("run_id")
command = click.Group(
    help="List agents' runs, show one, cancel one.",
    commands={
        "list": command_of(
            "List runs, newest first.",
            request(
                "GET /runs?limit={limit}&cursor={cursor}",
                columns={
                    "run": "runId",
                    "status": "status",
                    "agent": "agentId",
                    "user": "userId",
                    "begun": "createdAt",
                    "message": "preview",
                },
                none="no runs; `toolgate chat hello` begins one",
                lines=True,
            ),
            click.option("--limit", type=click.IntRange(1, MOST), help="How many. [50]"),
            click.option("--cursor", help="Only runs below this one, as the last page said."),
        ),
        "cancel": command_of(
            "Cancel RUN_ID, and the calls of it that run or wait.",
            request(
                "POST /runs/{runId}/cancel",
                body=lambda _, given: {"reason": given.get("reason", "")},
                done="{runId} is cancelled",
            ),
            RUN,
            click.option("--reason", help="Why; it goes on record."),
        ),
    },
)


@command.command()
@RUN
@as_operator
def show(operator: Operator, *, run_id: str, as_json: bool) -> None:
    """Show RUN_ID, what it waits for, and the commands that go on from there."""
    one = operator.data("GET", f"/runs/{quote(run_id, safe='')}")
    if as_json:
        click.echo(json.dumps(one))
        return
    is_open = one["status"] not in ENDED
    print_facts(
        {
            "run": one_line(one["runId"]),
            "status": one["status"].lower(),
            "agent": one_line(one["agentId"]),
            "user": one_line(one["userId"]),
            "session": one_line(one["sessionId"]),
            "message": one_line(one["preview"]),
            "begun": time_of(one["createdAt"]),
            "ended": "" if is_open else time_of(one["updatedAt"]),
            "tokens": str(one["totalTokens"] or ""),
            "error": one_line(" ".join(filter(None, (one["code"], one["message"])))),
        }
    )
    for waits in pending(operator) if is_open else ():
        if waits.get("runId") == run_id:
            click.echo(f"  {next_command('approvals', 'show', waits['approvalId'])}")
    if is_open:
        click.echo(f"  {next_command('runs', 'cancel', run_id)}")
