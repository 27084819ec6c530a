"""Every setting: its name, default, meaning. The only reader of the environment.

The environment comes first, then `toolgate.toml`, then the default. Help, docs and checks are made
from the fields of `Settings`.
"""

import dataclasses
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from toolgate.core.errors import Invalid, Misconfigured
from toolgate.schedules import cron as schedules
from toolgate.secrets.own_tokens import TokenKind

CONFIG_FILE: Final = "toolgate.toml"
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
PREFIX: Final = "TOOLGATE_"
STATE: Final = "~/.local/state"


class Secret:
    """A text that does not show itself."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret('***')" if self._text else "Secret('')"

    __str__ = __repr__


Parse = Callable[[str], Any]


def _text(value: str) -> str:
    return value


def _named(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _directory(value: str) -> Path:
    try:
        return Path(_named(value)).expanduser()  # no shell has done it where a file says it
    except RuntimeError:
        raise ValueError("begins with ~, but whose home that is cannot be told") from None


def _secret(value: str) -> Secret:
    if not value.isprintable():  # no header could hold it, and whoever tried would show it
        raise ValueError("must be one line, without control characters")
    return Secret(value)


def _schedule(value: str) -> str:
    try:
        never = bool(value) and schedules.parse(value).next_after(0) is None
    except Invalid as wrong:
        raise ValueError(f"is no schedule: {wrong}") from wrong
    if never:
        raise ValueError(f"is no schedule: {value!r} is never due")
    return value


def _whole(low: int, high: int) -> Parse:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be from {low} to {high}")
        return number

    return parse


def _one_of(*words: str) -> Parse:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value.lower()

    return parse


def _url(*schemes: str) -> Parse:
    def parse(value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in schemes or not parts.hostname):
            raise ValueError(f"must be a URL that begins with {' or '.join(schemes)}://")
        try:
            parts.port  # noqa: B018 - it is only looked at then
        except ValueError as wrong:
            raise ValueError(f"has no such port: {wrong}") from wrong
        return value.rstrip("/")

    return parse


ANY_KEY: Final = "none"  # of API_KEY
TOKENS: Final = {  # the fields of the tokens that are made if unset
    TokenKind.OPERATOR: "operator_token",
    TokenKind.EXECUTOR: "executor_token",
    TokenKind.INTERNAL: "internal_token",
    TokenKind.API_KEY: "api_key",
}


def _user_directory(variable: str, otherwise: str, environment: Mapping[str, str]) -> str:
    """Our directory below one of the user's (XDG Base Directory: a relative path is ignored)."""
    base = environment.get(variable, "")
    return str(Path(base if Path(base).is_absolute() else otherwise) / "toolgate")


def _state_dir() -> Path:
    return _directory(_user_directory("XDG_STATE_HOME", STATE, os.environ))


_PORT: Final = _whole(0, 65535)
_MS: Final = _whole(0, 7 * 24 * 3600 * 1000)


def _setting(name: str, default: Any, meaning: str, parse: Parse) -> Any:
    return dataclasses.field(
        default=default, metadata={"name": name, "meaning": meaning, "parse": parse}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    home: Path = _setting(
        "TOOLGATE_HOME",
        Path(".toolgate"),
        "Where all data is kept.",
        _directory,
    )
    state_dir: Path = dataclasses.field(
        default_factory=_state_dir,
        metadata={
            "name": "STATE_DIR",
            "meaning": "Where the marks are kept, outside every home: how far each home has come.",
            "parse": _directory,
        },
    )
    host: str = _setting("HOST", "127.0.0.1", "The address every listener binds.", _named)
    ws_port: int = _setting("WS_PORT", 8090, "Ingress: WebSocket for clients. 0: any.", _PORT)
    http_port: int = _setting("HTTP_PORT", 8091, "Ingress: internal HTTP. 0: any.", _PORT)
    orchestrator_port: int = _setting("ORCHESTRATOR_PORT", 8081, "Orchestrator's API.", _PORT)
    gateway_port: int = _setting("GATEWAY_PORT", 8787, "Gateway, console, executor, MCP.", _PORT)
    runner_port: int = _setting("RUNNER_PORT", 18081, "The runner's API.", _PORT)
    orchestrator_url: str = _setting(
        "ORCHESTRATOR_URL",
        "",
        "Where a lone ingress finds its orchestrator.",
        _url("http", "https"),
    )
    orchestrator_timeout_ms: int = _setting(
        "ORCHESTRATOR_TIMEOUT_MS",
        10_000,
        "How long its orchestrator may take to answer.",
        _whole(1, 3_600_000),
    )
    ingress_url: str = _setting(
        "INGRESS_URL", "", "Where a lone orchestrator pushes events.", _url("http", "https")
    )
    api_key: Secret = _setting(
        "API_KEY",
        Secret(),
        "What clients say in hello. Unset: made and kept in home. none: any, on loopback only.",
        _secret,
    )
    internal_token: Secret = _setting(
        "INTERNAL_TOKEN",
        Secret(),
        "Bearer between ingress and orchestrator. Unset: made and kept in home.",
        _secret,
    )
    operator_token: Secret = _setting(
        "OPERATOR_TOKEN", Secret(), "The operator's bearer. Unset: made and kept in home.", _secret
    )
    gateway_token: Secret = _setting(
        "GATEWAY_TOKEN", Secret(), "X-Gateway-Token that every device must send as well.", _secret
    )
    executor_token: Secret = _setting(
        "EXECUTOR_TOKEN", Secret(), "Bearer of /tool/run. Unset: made and kept in home.", _secret
    )
    runner_auth_token: Secret = _setting(
        "RUNNER_AUTH_TOKEN", Secret(), "Bearer of the runner's /execute.", _secret
    )
    ws_ping_interval_ms: int = _setting(
        "WS_PING_INTERVAL_MS", 30_000, "Time between pings to a client.", _whole(10, 3_600_000)
    )
    ws_pong_wait_ms: int = _setting(
        "WS_PONG_WAIT_MS", 60_000, "Silence after which a client is gone.", _whole(10, 3_600_000)
    )
    ws_write_wait_ms: int = _setting(
        "WS_WRITE_WAIT_MS", 10_000, "How long one write may take.", _whole(10, 3_600_000)
    )
    ws_max_message_bytes: int = _setting(
        "WS_MAX_MESSAGE_BYTES", 65_536, "The largest message of a client.", _whole(1024, 1 << 26)
    )
    resume_window_ms: int = _setting(
        "RESUME_WINDOW_MS", 30_000, "How long a session may be away. 0: not at all.", _MS
    )
    on_disconnect: str = _setting(
        "ON_DISCONNECT",
        "cancel",
        "What becomes of a session's runs then.",
        _one_of("cancel", "keep"),
    )
    tool_timeout_ms: int = _setting(
        "TOOL_TIMEOUT_MS", 60_000, "How long a device may take for a tool.", _whole(1, 86_400_000)
    )
    approval_timeout_ms: int = _setting(
        "APPROVAL_TIMEOUT_MS", 600_000, "How long a person may take.", _whole(1, 604_800_000)
    )
    audit_keep_days: int = _setting(
        "AUDIT_KEEP_DAYS",
        0,
        "How long audit rows are kept; their hashes stay in the evidence. 0: for ever.",
        _whole(0, 36_500),
    )
    mcp_hold_ms: int = _setting(
        "MCP_HOLD_MS",
        50_000,
        "How long an MCP call waits for a person's approval before it is answered as async.",
        _whole(0, 3_600_000),
    )
    agent_timeout_ms: int = _setting(
        "AGENT_TIMEOUT_MS", 300_000, "How long an agent may take.", _whole(1, 86_400_000)
    )
    gateway_rate: int = _setting(
        "GATEWAY_RATE", 60, "Commands a minute, per device.", _whole(1, 1_000_000)
    )
    gateway_auto_approve: str = _setting(
        "GATEWAY_AUTO_APPROVE", "off", "Pair devices of this machine unasked.", _one_of("on", "off")
    )
    allowed_hosts: str = _setting(
        "ALLOWED_HOSTS", "", "Names the gateway may be called by, with commas; * is any.", _text
    )
    heartbeat: str = _setting("HEARTBEAT", "@every 1m", "A cron line; empty: none.", _schedule)
    schedule_file: str = _setting("SCHEDULE_FILE", "", "Cron entries, as YAML.", _text)
    mcp_file: str = _setting("MCP_FILE", "", "MCP servers upstream: JSON, mcpServers.", _text)
    search_provider: str = _setting(
        "SEARCH_PROVIDER", "", "Of web.search: searxng or brave.", _one_of("", "searxng", "brave")
    )
    search_url: str = _setting("SEARCH_URL", "", "Where the SearXNG is.", _url("http", "https"))
    search_key: Secret = _setting("SEARCH_KEY", Secret(), "The key for Brave.", _secret)
    policy_file: str = _setting("POLICY_FILE", "", "The policy. Unset: the one we ship.", _text)
    database_url: str = _setting(
        "DATABASE_URL",
        "",
        "For PostgreSQL. Not in this version: refused.",
        _url("postgresql", "postgres"),
    )
    nats_url: str = _setting(
        "NATS_URL", "", "For NATS. Not in this version: refused.", _url("nats", "tls")
    )
    chromium: str = _setting("CHROMIUM", "", "The browser's program. Unset: look for one.", _text)
    model: str = _setting(
        "TOOLGATE_MODEL", "", "The assistant's model, such as openai:NAME.", _text
    )
    log_level: str = _setting(
        "LOG_LEVEL", "info", "How much is logged.", _one_of("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "LOG_FORMAT", "text", "key=value lines or JSON lines.", _one_of("text", "json")
    )

    @property
    def on_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def any_key(self) -> bool:
        """True if clients may say any key."""
        return self.api_key.reveal() == ANY_KEY

    def token(self, kind: TokenKind) -> str:
        """A token that was set; empty if the one that is kept in home counts."""
        given: Secret = getattr(self, TOKENS[kind])
        return given.reveal()

    def secrets(self) -> dict[str, str]:
        """Every secret that was set, for the redactor to know, each with the name of its setting."""
        values = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        found = {
            value.reveal(): field.metadata["name"]
            for field, value in values.items()
            if isinstance(value, Secret) and value
        }
        if self.any_key:
            del found[ANY_KEY]
        return found


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table, for help and docs."""

    name: str
    default: str
    meaning: str


def table() -> Iterator[Entry]:
    for field in dataclasses.fields(Settings):
        default = "" if isinstance(field.default, Secret) else str(field.default)
        if field.default is dataclasses.MISSING:
            default = f"{STATE}/toolgate"
        yield Entry(field.metadata["name"], default, field.metadata["meaning"])


def load(
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
    in_user_data: bool = False,
) -> Settings:
    """The settings in force; Misconfigured, with what to do, where one is wrong.

    With `in_user_data`, a home that nobody has set is in the user's data directory.
    """
    given = dict(os.environ if environment is None else environment)
    fields = {field.metadata["name"]: field for field in dataclasses.fields(Settings)}
    for name in given:
        if name.startswith(PREFIX) and name not in fields:
            raise Misconfigured(f"unknown setting {name} in the environment{_like(name, fields)}")
    for name in overrides or {}:
        if name not in fields:
            raise Misconfigured(f"unknown setting {name}{_like(name, fields)}")
    data = _user_directory("XDG_DATA_HOME", "~/.local/share", given)
    sources = [
        ("on the command line", dict(overrides or {})),
        ("in the environment", given),
        _config_file(config, fields),
        ("by default", {"TOOLGATE_HOME": data} if in_user_data else {}),
    ]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        for source, mapping in sources:
            if name in mapping:
                values[field.name] = _parse(name, mapping[name], field.metadata["parse"], source)
                break
    return Settings(**values)


def _config_file(config: Path | None, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    path = config or Path(CONFIG_FILE)
    source = f"in {path}"
    if config is None and not path.exists():
        return source, {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as unreadable:
        raise Misconfigured(f"cannot read {path}: {unreadable}") from unreadable
    except tomllib.TOMLDecodeError as broken:
        raise Misconfigured(f"{path} is not TOML: {broken}") from broken
    found: dict[str, str] = {}
    for name, value in document.items():
        if name not in fields:
            raise Misconfigured(f"unknown setting {name} {source}{_like(name, fields)}")
        if not isinstance(value, str | int | bool):
            raise Misconfigured(f"{name} {source} must be a text, a number or true/false")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return source, found


def _parse(name: str, text: str, parse: Parse, source: str) -> Any:
    try:
        return parse(text)
    except ValueError as wrong:
        raise Misconfigured(f"{name} {source} {wrong}") from wrong


def _like(name: str, fields: Mapping[str, Any]) -> str:
    import difflib  # noqa: PLC0415 - only for a mistake

    near = difflib.get_close_matches(name.upper(), fields, n=1)
    return f"; did you mean {near[0]}?" if near else "; `toolgate settings` lists them"
