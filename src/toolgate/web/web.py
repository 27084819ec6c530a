"""The web, behind the guard: the only way out for tools that ask for a URL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from toolgate.core.errors import Refused
from toolgate.core.tools import JsonValue
from toolgate.core.urls import Url

Granted = Callable[[Url, str], bool]  # asked with the method before each hop, the first one too


def any_host(_url: Url, _method: str) -> bool:
    """For callers whose policy has already spoken; the guard's own table still holds."""
    return True


class Blocked(Refused):
    """Nothing was sent: the target is not one that may be reached."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"{target} is refused: {reason}")
        self.target = target
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WebRequest:
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class WebResponse:
    url: str  # where the last hop led
    status: int
    headers: tuple[tuple[str, str], ...]  # names in lower case
    body: bytes  # decoded, and cut at the limit
    truncated: bool
    hops: tuple[str, ...] = ()  # the URLs before the last

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name.lower()), "")

    def joined_headers(self) -> dict[str, JsonValue]:
        """By name; those of one name, in one."""
        headers: dict[str, JsonValue] = {}
        for name, value in self.headers:
            known = headers.get(name)
            headers[name] = f"{known}, {value}" if known else value
        return headers


class Web(Protocol):
    async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
        """Ask, and follow redirects.

        Raises Invalid for a malformed request, Blocked for a target that may not be reached,
        Unavailable where the other side doesn't answer as it should or in time.
        """
        ...
