"""`toolgate targets`: where tools run."""

from typing import Any, Final, TextIO

import click

from toolgate.cli.operator import Operator
from toolgate.cli.routes import command_of, request
from toolgate.tools.targets.targets import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS

COLUMNS: Final = {
    "target": "targetId",
    "kind": "kind",
    "endpoint": "endpoint",
    "tenant": "tenantId",
    "workspace": "workspaceId",
    "default": "isDefault",
    "enabled": "enabled",
}
NEW: Final = {"tenantId": "t_default", "kind": "docker-runner"}


def _change(operator: Operator, given: dict[str, Any]) -> dict[str, Any]:
    if "authToken" in given:
        given["authToken"] = _text(given["authToken"])
    listed = operator.data("GET", "/execution-targets")["items"]
    target_id = given.pop("targetId")
    before = next((one for one in listed if one["targetId"] == target_id), None)
    if "timeoutMs" in given:  # the gateway takes `config` as a whole
        config = {} if before is None else before["config"]
        given["config"] = {**config, "timeoutMs": given.pop("timeoutMs")}
    return {**NEW, **given} if before is None else given


def _text(file: TextIO) -> str:
    try:
        return file.read().strip()
    except UnicodeDecodeError as bad:
        raise click.BadParameter(f"it holds no text: {bad}", param_hint="--token-file") from bad


TARGET: Final = click.argument("target_id")
command = click.Group(
    help="List execution targets, set one, remove one.",
    commands={
        "list": command_of(
            "The targets that there are, without their tokens.",
            request("GET /execution-targets", columns=COLUMNS),
        ),
        "set": command_of(
            "Make TARGET_ID, or change what is given and keep the rest.",
            request("PUT /execution-targets/{targetId}", body=_change, columns=COLUMNS, rows=""),
            TARGET,
            click.option(
                "--kind", type=click.Choice(["docker-runner", "local-host"]), help="What runs it."
            ),
            click.option("--endpoint", help="A runner's URL, such as http://lab:18081/execute."),
            click.option(
                "--token-file",
                "auth_token",
                type=click.File(),
                help="Holds the runner's token; - is stdin.",
            ),
            click.option(
                "--tenant", "tenant_id", help="Whose it is. A new one needs it; default: t_default."
            ),
            click.option(
                "--workspace", "workspace_id", help="Whose alone. Unset: the whole tenant's."
            ),
            click.option(
                "--default/--no-default", "is_default", default=None, help="Where calls go."
            ),
            click.option(
                "--enabled/--disabled", default=None, help="A disabled one refuses its calls."
            ),
            click.option(
                "--timeout-ms",
                type=click.IntRange(1, MAX_TIMEOUT_MS),
                help=f"How long a call may take; default: {DEFAULT_TIMEOUT_MS}.",
            ),
        ),
        "remove": command_of(
            "Remove TARGET_ID; calls that name it are refused from then on.",
            request("DELETE /execution-targets/{targetId}", done="{targetId} is removed"),
            TARGET,
        ),
    },
)
