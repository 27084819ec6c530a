"""Commands that send one request to a route of the gateway: verb, path, columns.

A route is spelt as in the gateway's table; after `?` stand the parameters that a command sends.
Nothing of the gateway is imported, so that a command starts fast.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, show
from toolgate.cli.terminal import one_line

Members = dict[str, Any]
Run = Callable[..., None]  # with the operator and the members that are given, as_json
FromMembers = Callable[[Operator, Members], Any]


def request(
    route: str,
    *,
    body: FromMembers | None = None,
    columns: Mapping[str, str] | None = None,
    rows: str = "items",
    none: str = "there are none",
    lines: bool = False,
    done: str | FromMembers = "",
) -> Run:
    """Send one request, and print the `rows` of its answer as a table, or the sentence `done`.

    Names in braces, in `route` and in `done`, are members of what is given and of the answer.
    """
    method, path = route.split()

    def run(operator: Operator, given: Members, *, as_json: bool) -> None:
        quoted = {name: quote(str(value), safe="") for name, value in given.items()}
        sent = body and body(operator, given)
        answer = operator.ask(method, path.format_map(defaultdict(str, quoted)), sent)
        data = answer.get("data", answer)
        if columns is not None:
            found = data[rows] if rows else [data]
            show(found, columns, as_json=as_json, none=none, lines=lines)
            if "nextCursor" in data:
                click.echo(f"more: --cursor {data['nextCursor']}", err=True)
        elif as_json:
            click.echo(json.dumps(data))
        else:
            members = {**given, **data}
            text = done.format_map(members) if isinstance(done, str) else done(operator, members)
            click.echo(one_line(text))

    return run


def command_of(text: str, run: Run, *params: Any, **others: Run) -> click.Command:
    """The command with this help; `others` are run instead where the argument of their name is given."""

    @as_operator
    def made(operator: Operator, *, as_json: bool, **given: Any) -> None:
        chosen = next((other for name, other in others.items() if given[name]), run)
        members = {
            re.sub("_(.)", lambda found: found[1].upper(), name): value
            for name, value in given.items()
            if value not in (None, ())
        }
        chosen(operator, members, as_json=as_json)

    decorated: Any = made
    for parameter in reversed(params):
        decorated = parameter(decorated)
    return click.command(help=text)(decorated)


def as_given(_: Operator, given: Members) -> Members:
    return given
