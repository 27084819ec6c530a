"""The options that many commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from toolgate import settings as table
from toolgate.core.errors import Misconfigured
from toolgate.secrets.own_tokens import FILES, TokenKind, kept_token

EXIT_FAILED: Final = 1


def host_in_url(settings: table.Settings) -> str:
    """The host of this machine's listeners, as written in a URL."""
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read here, not bound
    host = anywhere.get(settings.host, settings.host)
    return f"[{host}]" if ":" in host else host


def known_token(settings: table.Settings, kind: TokenKind) -> str:
    """A token that is set, or that Toolgate has made and kept in home; raises Misconfigured."""
    found, path = _set_or_kept(settings, kind), settings.home / FILES[kind]
    if not found:
        raise Misconfigured(
            f"{path} is not there: set {table.TOKENS[kind].upper()}, or --home to where Toolgate"
            " keeps its data"
        )
    return found


def client_key(settings: table.Settings, *, here: bool) -> str:
    """The `api_key` for a client; the key in the home is sent only to a Toolgate that is `here`."""
    if settings.any_key or (not here and not settings.api_key):
        return ""
    return _set_or_kept(settings, TokenKind.API_KEY)


def _set_or_kept(settings: table.Settings, kind: TokenKind) -> str:
    path = settings.home / FILES[kind]
    try:
        return settings.token(kind) or kept_token(path)
    except OSError as unreadable:
        raise Misconfigured(
            f"{path} cannot be read ({unreadable.strerror}): set {table.TOKENS[kind].upper()}, or"
            " ask as its owner"
        ) from unreadable


def gateway_url(settings: table.Settings, given: str | None) -> str:
    """The gateway's address, from --url or the settings; raises Misconfigured."""
    url = given or f"http://{host_in_url(settings)}:{settings.gateway_port}"
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise Misconfigured(f"--url {url} is not a gateway's address, such as http://HOST:8787")
    return url.rstrip("/")


def _pair(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[name] = text
    return pairs


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the settings in force."""

    @click.option("--home", help="Where all data is kept (TOOLGATE_HOME).", metavar="DIR")
    @click.option("--config", type=click.Path(path_type=Path), help="Instead of toolgate.toml.")
    @click.option(
        "--set",
        "-s",
        "pairs",
        multiple=True,
        callback=_pair,
        metavar="NAME=VALUE",
        help="Set any setting; `toolgate settings` lists them.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, home: str | None, config: Path | None, pairs: dict[str, str], **kwargs: Any
    ) -> Any:
        if home is not None:  # an empty one is refused, as in the environment
            pairs = {**pairs, "TOOLGATE_HOME": home}
        return command(*args, settings=table.load(pairs, config=config), **kwargs)

    return wrapped
