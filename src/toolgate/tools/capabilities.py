"""Capabilities: what is registered to be called, whether it may be called now, and how often."""

from dataclasses import dataclass
from typing import Final

from toolgate.access.ratelimit import Rate
from toolgate.core.enums import HealthStatus, Level
from toolgate.core.urls import parse_url
from toolgate.secrets.redaction import is_sensitive_header, looks_random

# The gateway contract's names.
PLAYWRIGHT_CAPABILITY: Final = "mcp.playwright"
PLAYWRIGHT_SCOPE: Final = "browser"
BROWSER_CAPABILITY: Final = "mcp.browser"  # our own browser tasks


@dataclass(frozen=True, slots=True)
class Server:
    """Where an MCP server is: a program on stdio, or a URL."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a URL")
        if self.url:
            parse_url(self.url)  # raises Invalid

    @property
    def secrets(self) -> frozenset[str]:
        """What of its environment and headers is not to be written down: by its name or look."""
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

    def is_expired(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def refusal(self, now: int) -> str:
        """Why it may not be called now; empty where it may."""
        if self.is_expired(now):
            return f"capability {self.capability_id} has expired"
        if self.status is HealthStatus.OFFLINE:
            return f"capability {self.capability_id} is offline"
        return ""


# After how many checks in a row that failed; a server that flaps stays degraded in between.
FAILURES_DEGRADED = 1
FAILURES_OFFLINE = 3


def health_after(failures: int) -> HealthStatus:
    if failures >= FAILURES_OFFLINE:
        return HealthStatus.OFFLINE
    return HealthStatus.DEGRADED if failures >= FAILURES_DEGRADED else HealthStatus.HEALTHY
