"""`toolgate task`: browser tasks of a Toolgate that runs, from the terminal."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, show
from toolgate.cli.options import EXIT_FAILED
from toolgate.cli.terminal import plain, progress
from toolgate.core.errors import Unavailable

POLL_S: Final = 0.5
OPEN: Final = frozenset({"queued", "running"})


@click.group()
def command() -> None:
    """Run browser tasks, and see those that have run."""


@command.command("list")
@as_operator
def listed(operator: Operator, *, as_json: bool) -> None:
    """The newest tasks."""
    found = operator.data("GET", "/tasks")["runs"]
    columns = {"task": "runId", "status": "status", "template": "templateId", "begun": "createdAt"}
    show(
        found,
        columns,
        as_json=as_json,
        none="no browser task has run; run one with `toolgate task run TEMPLATE`",
    )


@command.command()
@as_operator
def templates(operator: Operator, *, as_json: bool) -> None:
    """The templates, with the inputs that each requires."""
    found = operator.data("GET", "/tasks/templates")["templates"]
    if not as_json:
        for one in found:
            one["inputs"] = ", ".join(one["inputSchema"].get("required", []))
    columns = {"template": "templateId", "inputs": "inputs", "what it does": "description"}
    show(found, columns, as_json=as_json)


@command.command()
@click.argument("template")
@click.option("--inputs", default="{}", help="What the template wants, as a JSON object.")
@as_operator
def run(operator: Operator, *, template: str, inputs: str, as_json: bool) -> None:
    """Run TEMPLATE and wait for its end; Ctrl-C cancels it. Exits 1 where it fails.

    For instance: toolgate task run screenshot_page --inputs '{"url": "https://example.com/"}'
    """
    try:
        given = json.loads(inputs)
    except ValueError as wrong:
        raise click.UsageError(f"--inputs is not JSON: {wrong}") from wrong
    begun = operator.data("POST", "/tasks", {"templateId": template, "inputs": given})
    path = f"/tasks/{quote(begun['runId'], safe='')}"
    try:
        found = _wait(operator, path, template)
    except KeyboardInterrupt:
        operator.data("POST", f"{path}/cancel")
        raise
    if as_json:
        click.echo(json.dumps(found))
    else:
        _tell(found)
    if found["status"] in {"failed", "canceled"}:
        sys.exit(EXIT_FAILED)


@command.command()
@click.argument("artifact_id")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
@as_operator
def get(operator: Operator, *, artifact_id: str, output: Path, as_json: bool) -> None:
    """Write an artifact, such as a screenshot, to a file."""
    content = operator.file(f"/tasks/artifacts/{quote(artifact_id, safe='')}")
    try:
        output.write_bytes(content)
    except OSError as wrong:
        raise Unavailable(str(wrong)) from wrong
    answer = {"artifactId": artifact_id, "size": len(content), "path": str(output)}
    click.echo(json.dumps(answer) if as_json else f"{len(content)} bytes: {output}")


def _wait(operator: Operator, path: str, what: str) -> Any:
    shown = ""
    with progress(what) as show_progress:
        while (found := operator.data("GET", path))["status"] in OPEN:
            if (message := found.get("message", "")) not in ("", shown):
                click.echo(plain(message), err=True)
                shown = message
            steps = found["progress"]
            show_progress(steps["doneSteps"], steps["totalSteps"])
            time.sleep(POLL_S)
    return found


def _items(result: Any) -> list[Any]:
    """The pages of a result, by whichever name its template has for them."""
    if not isinstance(result, dict):
        return []
    found = [result[name] for name in ("items", "pages", "snapshots") if name in result]
    return [item for items in found for item in items]


def _tell(found: Any) -> None:
    click.echo(f"{found['status']} in {found['metrics']['elapsedMs']} ms: {found['runId']}")
    if found["error"]:
        click.echo(f"{found['error']['errorCode']}: {plain(found['error']['message'])}", err=True)
        click.echo(plain(found["error"]["recoverHint"]), err=True)
    for item in _items(found["result"]):
        if item["success"]:
            click.echo(f"ok      {plain(item['url'])}  {plain(item.get('title', ''))}")
        else:
            error = item["error"]
            click.echo(f"failed  {plain(item['url'])}  {plain(error['message'])}")
            click.echo(f"        {plain(error.get('recoverHint', ''))}")
    for artifact in found["artifacts"]:
        click.echo(f"{artifact['artifactId']}  {artifact['size']:>9}  {plain(artifact['name'])}")
