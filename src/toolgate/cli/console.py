"""`toolgate console`: a link that signs in to the console of a Toolgate that runs here."""

import asyncio
import json
import webbrowser

import aiohttp
import click

from toolgate import settings as table
from toolgate.cli.operator import kept_in
from toolgate.cli.options import host_in_url, known_token, with_settings
from toolgate.core.errors import Unavailable
from toolgate.secrets.own_tokens import TokenKind

TIMEOUT_S: float = 40.0


async def _code(url: str, token: str) -> str:
    limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {token}", "X-Toolgate-Console": "1"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=limit) as http,
            http.post(f"{url}/api/links") as answer,
        ):
            if answer.status == 403:
                raise Unavailable(f"{url}: that is not the operator's token: {kept_in()}")
            if answer.status != 200:
                raise Unavailable(f"{url} answers {answer.status}: is this its home?")
            return str((await answer.json())["code"])
    except (aiohttp.ClientConnectionError, TimeoutError) as failed:
        raise Unavailable(f"{url} does not answer; `toolgate up` starts it") from failed
    except (aiohttp.ClientError, ValueError, TypeError, KeyError) as stranger:
        raise Unavailable(f"{url} is not a console: is this its port?") from stranger


@click.command()
@click.option("--open", "is_opened", is_flag=True, help="Open it in this machine's browser.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_settings
def command(settings: table.Settings, *, is_opened: bool, as_json: bool) -> None:
    """Print a link that signs the operator in, once."""
    token = known_token(settings, TokenKind.OPERATOR)
    url = f"http://{host_in_url(settings)}:{settings.gateway_port}/console"
    link = f"{url}#code={asyncio.run(_code(url, token))}"
    click.echo(json.dumps({"link": link}) if as_json else link)
    if is_opened:
        webbrowser.open(link)
