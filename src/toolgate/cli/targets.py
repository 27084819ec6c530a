"""`toolgate targets`: where tools run."""

import json
from typing import Any, TextIO
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, show
from toolgate.tools.targets.targets import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS

COLUMNS = {
    "target": "targetId",
    "kind": "kind",
    "endpoint": "endpoint",
    "tenant": "tenantId",
    "workspace": "workspaceId",
    "default": "isDefault",
    "enabled": "enabled",
}


@click.group()
def command() -> None:
    """List execution targets, set one, remove one."""


@command.command("list")
@as_operator
def listed(operator: Operator, *, as_json: bool) -> None:
    """The targets that there are, without their tokens."""
    show(operator.data("GET", "/execution-targets")["items"], COLUMNS, as_json=as_json)


@command.command("set")
@click.argument("target_id")
@click.option("--kind", type=click.Choice(["docker-runner", "local-host"]), help="What runs it.")
@click.option("--endpoint", help="A runner's URL, such as http://lab:18081/execute.")
@click.option("--token-file", type=click.File(), help="Holds the runner's token; - is stdin.")
@click.option("--tenant", help="Whose it is. A new one needs it; default: t_default.")
@click.option("--workspace", help="Whose alone. Unset: the whole tenant's.")
@click.option("--default/--no-default", "is_default", default=None, help="Where calls go.")
@click.option("--enabled/--disabled", default=None, help="A disabled one refuses its calls.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(1, MAX_TIMEOUT_MS),
    help=f"How long a call may take; default: {DEFAULT_TIMEOUT_MS}.",
)
@as_operator
def set_one(
    operator: Operator,
    *,
    target_id: str,
    kind: str | None,
    endpoint: str | None,
    token_file: TextIO | None,
    tenant: str | None,
    workspace: str | None,
    is_default: bool | None,
    enabled: bool | None,
    timeout_ms: int | None,
    as_json: bool,
) -> None:
    """Make TARGET_ID, or change what is given and keep the rest."""
    path = f"/execution-targets/{quote(target_id, safe='')}"
    listed = operator.data("GET", "/execution-targets")["items"]
    before = next((one for one in listed if one["targetId"] == target_id), None)
    if before is None:
        tenant, kind = tenant or "t_default", kind or "docker-runner"
    config = {} if before is None else before["config"]  # the gateway takes it as a whole
    change: dict[str, Any] = {
        "tenantId": tenant,
        "workspaceId": workspace,
        "kind": kind,
        "endpoint": endpoint,
        "authToken": _token(token_file) if token_file is not None else None,
        "isDefault": is_default,
        "enabled": enabled,
        "config": {**config, "timeoutMs": timeout_ms} if timeout_ms is not None else None,
    }
    given = {name: value for name, value in change.items() if value is not None}
    target = operator.data("PUT", path, given)
    show([target], COLUMNS, as_json=as_json)


def _token(file: TextIO) -> str:
    try:
        return file.read().strip()
    except UnicodeDecodeError as bad:
        raise click.BadParameter(f"it holds no text: {bad}", param_hint="--token-file") from bad


@command.command()
@click.argument("target_id")
@as_operator
def remove(operator: Operator, *, target_id: str, as_json: bool) -> None:
    """Remove TARGET_ID; calls that name it are refused from then on."""
    gone = operator.data("DELETE", f"/execution-targets/{quote(target_id, safe='')}")
    click.echo(json.dumps(gone) if as_json else f"{target_id} is removed")
