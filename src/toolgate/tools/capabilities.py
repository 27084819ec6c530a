"""Capabilities: registered tools and MCP servers, with their level, health and rate."""

from dataclasses import dataclass
from posixpath import normpath
from typing import Final

from toolgate.core.enums import HealthStatus, Isolation, Level
from toolgate.core.errors import Invalid, Misconfigured
from toolgate.core.rates import Rate
from toolgate.core.urls import parse_url
from toolgate.sandbox.egress_hosts import allows
from toolgate.secrets.redaction import is_sensitive_header, looks_random

# The gateway contract's names.
PLAYWRIGHT_CAPABILITY: Final = "mcp.playwright"
PLAYWRIGHT_SCOPE: Final = "browser"
BROWSER_CAPABILITY: Final = "mcp.browser"  # our own browser tasks


READ_ONLY: Final = "ro"
READ_WRITE: Final = "rw"
# A mount there would hide the sandbox's own system from the program.
SYSTEM: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "run")
KERNEL: Final = ("proc", "sys", "dev")


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of this machine that a sandboxed server sees: `HOST:INSIDE[:ro|rw]`."""

    host: str
    inside: str
    writable: bool = False

    @classmethod
    def parse(cls, text: str) -> "Mount":
        """Raises Invalid."""
        host, _, rest = text.partition(":")
        inside, colon, mode = rest.partition(":")
        if colon and mode not in (READ_ONLY, READ_WRITE):
            raise _bad_mount(text, f"the mode must be {READ_ONLY} or {READ_WRITE}")
        for path in (host, inside):
            if not path.startswith("/") or normpath(path) != path or not path.isprintable():
                raise _bad_mount(text, "HOST and INSIDE must be absolute paths without . and ..")
        if host.split("/")[1] in ("", *KERNEL):
            raise _bad_mount(text, f"{host} cannot be mounted; name a directory in it")
        if inside.split("/")[1] in ("", *SYSTEM, *KERNEL) or inside in ("/tmp", "/workspace"):  # noqa: S108
            raise _bad_mount(text, f"INSIDE must not be {inside}, which the sandbox has already")
        return cls(host, inside, mode == READ_WRITE)

    def __str__(self) -> str:
        return f"{self.host}:{self.inside}:{READ_WRITE if self.writable else READ_ONLY}"


def _bad_mount(text: str, why: str) -> Invalid:
    return Invalid(f"mount {text!r}: {why} (HOST:INSIDE[:ro|rw])", field="server.mounts")


@dataclass(frozen=True, slots=True)
class Server:
    """The place of an MCP server: a program on stdio, or a URL."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    egress: tuple[str, ...] = ()
    isolation: Isolation = Isolation.SANDBOX

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a URL")
        if self.url:
            parse_url(self.url)  # raises Invalid
        if (self.url or self.isolation is Isolation.NONE) and (self.mounts or self.egress):
            raise Invalid(
                "mounts and egress are for programs in the sandbox; leave them out",
                field="server.mounts" if self.mounts else "server.egress",
            )
        if self.url and self.isolation is Isolation.NONE:
            raise Invalid("isolation is for programs; leave it out", field="server.isolation")
        inside = [mount.inside for mount in self.mounts]
        if len(set(inside)) != len(inside):
            raise Invalid("two mounts have the same INSIDE path", field="server.mounts")
        try:
            allows(self.egress)
        except Misconfigured as wrong:
            raise Invalid(str(wrong), field="server.egress") from wrong

    @property
    def secrets(self) -> frozenset[str]:
        """The values in its environment and headers that are secrets, by their name or look."""
        values = [
            value
            for name, value in (*self.env, *self.headers)
            if is_sensitive_header(name) or looks_random(value)
        ]
        return frozenset(values).union(value.split()[-1] for value in values if value.strip())


@dataclass(frozen=True, slots=True)
class Capability:
    capability_id: str
    scope: str
    level: Level
    updated_at: int
    rate: Rate | None = None
    version: str = ""
    owner: str = ""
    expires_at: int | None = None
    status: HealthStatus = HealthStatus.HEALTHY
    server: Server | None = None
    reason: str = ""  # why its server is not healthy, as the last check found; in memory only

    @property
    def isolation(self) -> Isolation | None:
        """The isolation of its server's program; None if it has no program."""
        return self.server.isolation if self.server is not None and self.server.command else None

    def is_expired(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def refusal(self, now: int) -> str:
        """The reason why it may not be called now; empty if it may."""
        if self.is_expired(now):
            return f"capability {self.capability_id} has expired"
        if self.status is HealthStatus.OFFLINE:
            because = f" ({self.reason})" if self.reason else ""
            return f"capability {self.capability_id} is offline{because}"
        return ""


# Failed checks in a row. A server that flaps stays degraded in between.
FAILURES_DEGRADED = 1
FAILURES_OFFLINE = 3


def health_after(failures: int) -> HealthStatus:
    if failures >= FAILURES_OFFLINE:
        return HealthStatus.OFFLINE
    return HealthStatus.DEGRADED if failures >= FAILURES_DEGRADED else HealthStatus.HEALTHY
