"""`toolgate artifact`: files in and out of what an installation keeps."""

import base64
import http.client
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from toolgate.cli.operator import opener_for, refusal, silence
from toolgate.cli.options import gateway_url, known_token, with_settings
from toolgate.core.errors import Invalid, Unavailable
from toolgate.secrets.own_tokens import TokenKind
from toolgate.settings import Settings
from toolgate.tools.files import LARGEST_FILE

TIMEOUT_S: Final = 60.0


@click.group()
def command() -> None:
    """Put files where tools can have them, and get those that tools have kept.

    `file.write {path, artifact: REF}` puts one into a session's workspace; `file.read {path,
    artifact: true}` keeps one and answers its REF.
    """


@command.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--url", help="The gateway's address, where it is not that of the settings.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_settings
def put(settings: Settings, *, file: Path, url: str | None, as_json: bool) -> None:
    """Keep FILE and print its ref."""
    if file.stat().st_size > LARGEST_FILE:  # the gateway would close the connection
        raise Invalid(f"a file that is kept has at most {LARGEST_FILE} bytes", field="file")
    answer = _ask(settings, url, "/artifact/put", content=file.read_bytes())
    try:
        kept = json.loads(answer)
        ref = kept["ref"]
    except (ValueError, TypeError, KeyError) as other:
        raise Unavailable("the answer is not a gateway's: see --url") from other
    click.echo(json.dumps(kept) if as_json else ref)


@command.command()
@click.argument("ref")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Instead of stdout.")
@click.option("--url", help="The gateway's address, where it is not that of the settings.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; the content in base64.")
@with_settings
def get(
    settings: Settings, *, ref: str, output: Path | None, url: str | None, as_json: bool
) -> None:
    """Write what REF names: a file, or a document of the evidence."""
    content = _ask(settings, url, f"/artifact/get?ref={quote(ref, safe='/')}")
    if output is not None:
        try:
            output.write_bytes(content)
        except OSError as wrong:
            raise Unavailable(str(wrong)) from wrong
    if as_json:
        answer: dict[str, str | int] = {"ref": ref, "size": len(content)}
        if output is None:
            answer["content"] = base64.b64encode(content).decode()
        click.echo(json.dumps(answer))
    elif output is None:
        sys.stdout.buffer.write(content)


def _ask(settings: Settings, url: str | None, path: str, *, content: bytes | None = None) -> bytes:
    address = gateway_url(settings, url)
    token = known_token(settings, TokenKind.EXECUTOR)
    request = urllib.request.Request(  # noqa: S310 - the operator's own URL
        address + path, data=content, headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with opener_for(address).open(request, timeout=TIMEOUT_S) as got:
            answer: bytes = got.read()
            return answer
    except urllib.error.HTTPError as refused:
        raise refusal(refused, address, setting="EXECUTOR_TOKEN") from refused
    except (OSError, ValueError, http.client.HTTPException) as silent:
        raise silence("gateway", address, silent) from silent
