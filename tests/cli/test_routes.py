"""Commands made from routes: the gateway has each route, and a request carries what was given."""

import ast
import json
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from toolgate import cli
from toolgate.cli.operator import Operator
from toolgate.cli.routes import as_given, command_of, request
from tools.reference import _gateway_routes

COMMANDS = Path(cli.__path__[0])
LEAST = 10  # routes that commands send requests to, or this test looks in the wrong place


def test_every_route_of_a_command_is_in_the_gateways_table() -> None:
    known = {(method, path.strip("`")) for method, path, *_ in _gateway_routes()}
    used = {
        tuple(node.args[0].value.partition("?")[0].split())
        for module in COMMANDS.glob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "request"
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }
    assert len(used) >= LEAST
    assert used <= known


class Recorded(Operator):
    """An operator's way to a gateway that answers each request with itself."""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return {"data": {"items": [{"method": method, "path": path, "body": body}]}}


def sent(route: str, given: dict[str, Any], **more: Any) -> Any:
    @click.command()
    def command() -> None:
        run = request(route, columns={}, **more)
        run(Recorded("http://127.0.0.1", "token"), given, as_json=True)

    (one,) = json.loads(CliRunner().invoke(command, catch_exceptions=False).stdout)
    return one


def test_what_is_given_stands_in_the_path_quoted_and_what_is_not_given_stays_empty() -> None:
    path = "/things/{thingId}?status={status}&limit={limit}"
    found = sent(f"GET {path}", {"thingId": "a/b c", "limit": 5})
    assert (found["path"], found["body"]) == ("/things/a%2Fb%20c?status=&limit=5", None)


def test_a_body_is_made_of_what_is_given() -> None:
    found = sent("POST /things", {"thingId": "é", "level": "read"}, body=as_given)
    assert found["body"] == {"thingId": "é", "level": "read"}


def test_another_request_is_sent_where_its_argument_is_given() -> None:
    printed: list[tuple[str, dict[str, Any]]] = []
    command = command_of(
        "List, or remove one.",
        lambda _, given, *, as_json: printed.append(("list", given)),
        click.argument("thing_id", required=False),
        thing_id=lambda _, given, *, as_json: printed.append(("remove", given)),
    )
    for words in ([], ["x"]):
        ended = CliRunner().invoke(command, [*words, "-s", "OPERATOR_TOKEN=token"])
        assert ended.exit_code == 0, ended.output
    assert printed == [("list", {}), ("remove", {"thingId": "x"})]
