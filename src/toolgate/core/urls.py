"""A web address, read strictly: what two readers could read in two ways is refused.

The host that the policy saw, the host that was resolved and the host that is asked are the same
string, because all three come from here.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from toolgate.core.addresses import Host, parse_host
from toolgate.core.errors import Invalid

MAX_URL: Final = 8192
PORTS: Final = {"http": 80, "https": 443}

_FORBIDDEN: Final = re.compile(r"[\x00-\x20\\\x7f-\xa0\ud800-\udfff]")
_SHAPE: Final = re.compile(r"(?i)(https?)://([^/?#]*)([^#]*)")
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]{1,5}))?")
# The marks of the sentence around an address are no part of it.
_IN_TEXT: Final = re.compile(r"https?://[^\s<>\"')\]]*[^\s<>\"')\].,;:!?]")
# Everything that a path or query may hold as it is; the rest is percent-encoded.
_KEPT: Final = "!$&'()*+,;=:@/?%-._~"


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str
    host: Host
    port: int
    target: str  # path and query, in ASCII

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        standard = PORTS[self.scheme] == self.port
        return self.host.bracketed if standard else f"{self.host.bracketed}:{self.port}"

    @property
    def endpoint(self) -> str:
        """host:port, always with the port."""
        return f"{self.host.bracketed}:{self.port}"

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


def parse_url(text: str) -> Url:
    """Raises Invalid for anything but an unambiguous http or https address without userinfo."""
    if len(text) > MAX_URL:
        raise Invalid(f"a URL has at most {MAX_URL} characters", field="url")
    if _FORBIDDEN.search(text):
        raise Invalid("a URL has no spaces, control characters or backslashes", field="url")
    shape = _SHAPE.match(text)
    if shape is None:
        raise Invalid("a URL begins with http:// or https://", field="url")
    scheme, authority, rest = shape[1].lower(), shape[2], shape[3]
    if "@" in authority:
        raise Invalid("a URL carries no user or password", field="url")
    host, port = split_authority(authority, default_port=PORTS[scheme])
    target = quote(rest if rest.startswith("/") else f"/{rest}", safe=_KEPT)
    return Url(scheme, host, port, target)


def urls_in(text: str) -> list[str]:
    """The web addresses that a text of people's words names, as they stand there."""
    return _IN_TEXT.findall(text)


def split_authority(text: str, *, default_port: int = 0) -> tuple[Host, int]:
    """host[:port]; without a default, the port must be there."""
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        raise Invalid(f"not a host and port: {text[:100]!r}", field="url")
    port = int(parts[2]) if parts[2] else default_port
    if not 0 < port < 65536:
        raise Invalid("a port is from 1 to 65535", field="url")
    return parse_host(parts[1]), port


def join(base: Url, location: str) -> Url:
    """Where a redirect leads: absolute, relative to the scheme, the host or the path."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location):
        return parse_url(location)
    if location.startswith("//"):
        return parse_url(f"{base.scheme}:{location}")
    path, _, _ = base.target.partition("?")
    if location.startswith("/"):
        return parse_url(f"{base.origin}{location}")
    if location.startswith("?"):
        return parse_url(f"{base.origin}{path}{location}")
    if not location or location.startswith("#"):
        return base
    folder = path.rpartition("/")[0]
    return parse_url(f"{base.origin}{_without_dots(f'{folder}/{location}')}")


def _without_dots(target: str) -> str:
    path, mark, query = target.partition("?")
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            kept = kept[:-1]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept) + mark + query
