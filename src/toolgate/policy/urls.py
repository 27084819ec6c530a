"""URLs and hosts as a policy compares them: one spelling for each, or none at all.

Where two readers of a URL could disagree about the host (backslashes, numeric addresses, letters
that IDNA 2003 and 2008 map differently), it has no spelling, and no allow matches it.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable
from typing import Final, NamedTuple

from toolgate.core.addresses import parse_host, refusal, refused_name
from toolgate.core.errors import Invalid

MAX_URL: Final = 8192

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\\s]+)(?:[/?#][^\s\\]*)?")
_AUTHORITY: Final = re.compile(
    r"(?:([^@]*)@)?(?:\[([0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\]|([^@:\[\]%]+))(?::([0-9]{1,5}))?"
)
_PLAIN: Final = re.compile(r"(https?)://([a-z0-9.-]+)(?:[/?#][!-\[\]-~]*)?")  # nearly every URL
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
_PRIVATE_SUFFIXES: Final = frozenset({"lan", "home", "corp", "intranet", "arpa", "test", "invalid"})


class BadUrl(ValueError):
    """A URL whose host cannot be told for certain."""


class PolicyUrl(NamedTuple):
    scheme: str
    host: str
    port: int
    has_user: bool


def parse_url(text: str) -> PolicyUrl:
    """Raises BadUrl."""
    plain = _PLAIN.fullmatch(text) if len(text) <= MAX_URL else None
    if plain is not None:
        scheme, authority = plain.groups()
        return PolicyUrl(scheme, host_name(authority), 443 if scheme == "https" else 80, False)
    if len(text) > MAX_URL or not text.isprintable():
        raise BadUrl("it is too long or holds characters that do not print")
    found = _URL.fullmatch(text)
    if found is None:
        raise BadUrl("it is not an absolute URL")
    scheme, authority = found.groups()
    scheme = scheme.lower()
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise BadUrl("its host cannot be told")
    user, six, name, port = parts.groups()
    number = int(port) if port else _DEFAULT_PORTS.get(scheme, 0)
    if number > 65_535 or (port and number == 0):
        raise BadUrl("its port is out of range")
    return PolicyUrl(scheme, host_name(six or name), number, user is not None)


@functools.lru_cache(maxsize=4096)
def host_name(text: str) -> str:
    """A host in its one spelling: lower case, punycode, no last dot, addresses compressed."""
    if not text.isascii() and not _has_one_reading(text):
        raise BadUrl("its host can be read in two ways")
    try:
        host = parse_host(f"[{text}]" if ":" in text else text)
    except Invalid as bad:
        raise BadUrl("its host is not a name") from bad
    if not host.canonical:
        raise BadUrl("its host is a number in disguise")
    return host.name


def _has_one_reading(text: str) -> bool:
    """Whether an international name folds to itself: the editions of IDNA differ on the others."""
    if unicodedata.normalize("NFKC", text).lower() != text:
        return False
    try:
        return text.encode("idna").decode("idna") == text
    except UnicodeError:
        return False


def is_public(host: str) -> bool:
    """Whether a host is public by its spelling; what a name resolves to is the client's to check."""
    address = parse_host(f"[{host}]" if ":" in host else host).address
    if address is not None:
        return not refusal(address)
    name, dot, last = host.rpartition(".")
    return bool(dot and name) and last not in _PRIVATE_SUFFIXES and not refused_name(host)


class HostSet:
    """Hosts and `*.suffixes`; a lookup costs one step per label, however many there are."""

    __slots__ = ("_all", "_exact", "_suffixes", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(dict.fromkeys(canonical_host_pattern(each) for each in patterns))
        self._all = "*" in self.patterns
        self._exact = frozenset(each for each in self.patterns if not each.startswith("*"))
        self._suffixes = frozenset(each[2:] for each in self.patterns if each.startswith("*."))

    def __contains__(self, host: str) -> bool:
        if self._all or host in self._exact:
            return True
        if self._suffixes:
            dot = host.find(".")
            while dot >= 0:
                if host[dot + 1 :] in self._suffixes:
                    return True
                dot = host.find(".", dot + 1)
        return False


def canonical_host_pattern(text: str) -> str:
    """A host, `*.suffix` (any subdomain, not the suffix itself) or `*`; raises BadUrl."""
    if text == "*":
        return text
    if text.startswith("*."):
        return "*." + host_name(text[2:])
    return host_name(text)
