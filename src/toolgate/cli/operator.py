"""The operator's requests to a running gateway, and the tables that show its answers."""

import contextlib
import functools
import http.client
import ipaddress
import json
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NoReturn

import click
from rich.text import Text

from toolgate.cli.options import gateway_url, known_token, with_settings
from toolgate.cli.terminal import one_line, print_table, table_of
from toolgate.core.errors import Refused, Unavailable
from toolgate.secrets.own_tokens import TokenKind
from toolgate.settings import Settings

TIMEOUT_S: Final = 40.0
GATEWAY_HEALTH: Final = frozenset({"ok", "version", "uptime"})
HEALTH_TIMEOUT_S: Final = 2.0  # ours: of this machine, and answered from memory
MOST_HEALTH_BYTES: Final = 64 * 1024  # ours: another program's answer may have no end


@dataclass(frozen=True, slots=True)
class Operator:
    url: str
    token: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The whole answer; raises Refused with the gateway's own words, Unavailable."""
        with self._open(method, path, body) as got:
            answer = json.loads(got.read())
        return answer_of("gateway", self.url, answer)

    def data(self, method: str, path: str, body: Any = None) -> Any:
        return self.ask(method, path, body)["data"]

    def file(self, path: str) -> bytes:
        with self._open("GET", path) as got:
            content: bytes = got.read()
            return content

    def lines(self, path: str) -> Iterator[str]:
        """A stream, line by line, until it ends; an open stream is never silent for TIMEOUT_S."""
        with self._open("GET", path) as got:
            for line in got:
                yield line.decode().rstrip("\n")

    @contextlib.contextmanager
    def _open(self, method: str, path: str, body: Any = None) -> Iterator[Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            request = urllib.request.Request(  # noqa: S310 - the operator's own URL
                self.url + path, data=content, headers=headers, method=method
            )
            with opener_for(self.url).open(request, timeout=TIMEOUT_S) as got:
                yield got
        except urllib.error.HTTPError as refused:
            raise refusal(refused, self.url) from refused
        except (OSError, ValueError, http.client.HTTPException) as silent:
            raise silence("gateway", self.url, silent) from silent


class _NotElsewhere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a gateway sends none, and the token would go with it."""

    def redirect_request(self, *_: object) -> None:
        return None


def opener_for(url: str) -> urllib.request.OpenerDirector:
    """An opener for this address. Loopback is reached directly: no proxy may get the token."""
    host = urllib.parse.urlsplit(url).hostname or ""
    direct = [urllib.request.ProxyHandler({})] if is_this_machine(host) else []
    return urllib.request.build_opener(_NotElsewhere, *direct)


def is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def answers(url: str, members: Set[str] = GATEWAY_HEALTH) -> bool:
    """Tell if a Toolgate listens at this address: its health has these members."""
    try:
        with opener_for(url).open(f"{url}/health", timeout=HEALTH_TIMEOUT_S) as answer:
            health = json.loads(answer.read(MOST_HEALTH_BYTES))
    except (OSError, ValueError, http.client.HTTPException):  # another program, whatever it says
        return False
    return isinstance(health, dict) and members <= health.keys()


class _Answer(dict[str, Any]):
    """The JSON of an answer; a missing member means that the server is not Toolgate."""

    def __init__(self, members: dict[str, Any], stranger: Unavailable) -> None:
        super().__init__(members)
        self._stranger = stranger

    def __missing__(self, _: str) -> NoReturn:
        raise self._stranger


def answer_of(what: str, url: str, answer: Any) -> dict[str, Any]:
    """The members of an answer; raises Unavailable, also later for a missing member."""
    stranger = Unavailable(f"no {what} answers at {url}, but something else: see --url")
    if not isinstance(answer, dict):
        raise stranger
    return _Answer(answer, stranger)


def silence(what: str, url: str, silent: Exception) -> Unavailable:
    """The error for an address where nothing answers."""
    cause = silent.reason if isinstance(silent, urllib.error.URLError) else silent
    why = (cause.strerror if isinstance(cause, OSError) else None) or cause
    return Unavailable(f"no {what} answers at {url} ({why}); `toolgate up` starts one")


def refusal(
    refused: urllib.error.HTTPError,
    url: str,
    *,
    setting: str = "OPERATOR_TOKEN",
) -> Refused | Unavailable:
    """The gateway's refusal as an error of ours."""
    with refused:
        try:
            said = json.loads(refused.read())["error"]["message"]
        except (OSError, ValueError, TypeError, KeyError):
            return Unavailable(f"no gateway answers at {url} ({refused}): see --url")
    return Refused(
        f"{said}: {kept_in(setting)}" if refused.code == HTTPStatus.UNAUTHORIZED else said
    )


def kept_in(setting: str = "OPERATOR_TOKEN") -> str:
    """The advice for a wrong token."""
    return f"set {setting}, or --home to where it is kept"


def as_operator(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an Operator for the gateway of the settings, `--url` and `--json`."""

    @click.option("--url", help="The gateway's address, where it is not that of the settings.")
    @click.option("--json", "as_json", is_flag=True, help="As JSON.")
    @with_settings
    @functools.wraps(command)
    def wrapped(*args: Any, settings: Settings, url: str | None, **kwargs: Any) -> Any:
        operator = Operator(gateway_url(settings, url), known_token(settings, TokenKind.OPERATOR))
        return command(*args, operator=operator, **kwargs)

    return wrapped


def show(
    rows: Sequence[Any],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    none: str = "there are none",
    lines: bool = False,
) -> None:
    """Print a table of these columns, each with its member, or `none` instead of an empty table.

    As JSON: one list, or with `lines` a line for each row.
    """
    if as_json:
        for part in rows if lines else [list(rows)]:
            click.echo(json.dumps(part))
        return
    if not rows:
        click.echo(none)
        return
    shown = table_of(*columns)
    for row in rows:
        cells = (one_line(_cell(name, row.get(name))) for name in columns.values())
        shown.add_row(*map(Text, cells))
    print_table(shown)


def next_command(*words: str) -> str:
    """A command to type next, with the options of this command that say where the gateway is."""
    given = click.get_current_context().params
    where = [
        word
        for option in ("home", "config", "url")
        if given.get(option) is not None
        for word in (f"--{option}", str(given[option]))
    ]
    return one_line(shlex.join(["toolgate", *words, *where]))


def time_of(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("At") and isinstance(value, int):
        return time_of(value)
    if name == "scope" and isinstance(value, dict):  # the level, and what is granted beside it
        return ", ".join([value["tools"], *(key for key, held in value.items() if held is True)])
    if name == "rateLimit" and isinstance(value, dict):
        return f"{value['limit']} in {value['windowMs'] // 1000} s"
    return value if isinstance(value, str) else json.dumps(value)
