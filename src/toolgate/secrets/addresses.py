"""The secrets in the addresses of a task: `https://name:password@host`, `?access_token=…`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from toolgate.secrets.redaction import is_sensitive

SHORTEST_TOKEN: Final = 8  # a page's number is called a token too, and stands in every text

# As a browser reads an address, which takes any slashes, and as many as there are.
_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*:[/\\]+)([^/\\?#]*)@", re.IGNORECASE)
_NO_ADDRESS: Final = re.compile(r"(?!data:)()([^/\\?#]*)@", re.IGNORECASE)
_UNSEEN: Final = re.compile(r"[\x00-\x20]")


def without_password(url: str) -> str:
    """The URL as it may be kept and shown: a password in it is a credential."""
    if "@" not in url:
        return url
    seen = _UNSEEN.sub("", url)
    found = _ADDRESS.match(seen) or _NO_ADDRESS.match(seen)
    return f"{found[1]}[redacted]@{seen[found.end() :]}" if found else url


def secrets_in(given: Any) -> Iterator[str]:
    """Those of every address in these inputs."""
    left = [given]  # not by recursion: unknown members may be nested without end
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, str):
            yield from _passwords(value)
            yield from _tokens(value)


def _passwords(text: str) -> Iterator[str]:
    """One with its name, as the address has it, and alone. A name without one is a token."""
    if found := _ADDRESS.match(_UNSEEN.sub("", text)):
        name, _, password = map(unquote, found[2].partition(":"))
        if password:
            yield from (f"{name}:{password}", password)
        elif name:
            yield name


def _tokens(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        members = [*parse_qsl(parts.query), *parse_qsl(parts.fragment)]
    except ValueError:  # no address
        return
    for name, value in members:
        if len(value) >= SHORTEST_TOKEN and is_sensitive(name):
            yield value
