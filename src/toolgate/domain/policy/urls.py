"""URLs and hosts as a policy compares them: one spelling for each, or none at all.

Where two readers of a URL could disagree about the host (backslashes, numeric addresses, letters
that IDNA 2003 and 2008 map differently), it has no spelling, and no allow matches it.
"""

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_URL: Final = 8192

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\\s]+)(?:[/?#][^\s\\]*)?")
_AUTHORITY: Final = re.compile(
    r"(?:([^@]*)@)?(?:\[([0-9A-Fa-f:.]+)\]|([^@:\[\]%]+))(?::([0-9]{1,5}))?"
)
_PLAIN: Final = re.compile(r"(https?)://([a-z0-9.-]+)(?:[/?#][!-\[\]-~]*)?")  # nearly every URL
_NAME: Final = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a last label that makes a name an address
_TWO_READINGS: Final = frozenset("ßςẞ\u200c\u200d")  # IDNA 2003 and 2008 disagree on these
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_HOLDS_IPV4: Final = [  # inside them is an address that may be anything; and documentation
    ipaddress.IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
_PRIVATE_SUFFIXES: Final = frozenset(
    {
        "localhost",
        "local",
        "internal",
        "intranet",
        "lan",
        "home",
        "corp",
        "arpa",
        "onion",
        "test",
        "invalid",
    }
)


class BadUrl(ValueError):
    """A URL whose host cannot be told for certain."""


class Url(NamedTuple):
    scheme: str
    host: str
    port: int
    has_user: bool


def parse_url(text: str) -> Url:
    """Raises BadUrl."""
    plain = _PLAIN.fullmatch(text) if len(text) <= MAX_URL else None
    if plain is not None:
        scheme, authority = plain.groups()
        return Url(scheme, host_name(authority), 443 if scheme == "https" else 80, False)
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
    if number > 65_535:
        raise BadUrl("its port is out of range")
    return Url(scheme, host_name(six or name), number, user is not None)


@functools.lru_cache(maxsize=4096)
def host_name(text: str) -> str:
    """A host in its one spelling: lower case, punycode, no last dot, addresses compressed."""
    name = text if text.isascii() else _punycode(text)
    name = name.lower()
    if name.endswith("."):
        name = name[:-1]
    if ":" in name:
        try:
            return ipaddress.IPv6Address(name).compressed
        except ValueError as bad:
            raise BadUrl("its host is not an address") from bad
    if len(name) > 253 or _NAME.fullmatch(name) is None:
        raise BadUrl("its host is not a name")
    if _NUMERIC.fullmatch(name.rsplit(".", 1)[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as bad:
            raise BadUrl("its host is a number in disguise") from bad
    return name


def _punycode(text: str) -> str:
    if unicodedata.normalize("NFKC", text).lower() != text or not _TWO_READINGS.isdisjoint(text):
        raise BadUrl("its host can be read in two ways")
    try:
        name = text.encode("idna").decode("ascii")
        round_trip = name.encode("ascii").decode("idna")
    except UnicodeError as bad:
        raise BadUrl("its host is not a name") from bad
    if round_trip != text:
        raise BadUrl("its host can be read in two ways")
    return name


def is_public(host: str) -> bool:
    """Whether a host is public by its spelling; what a name resolves to is the client's to check."""
    if ":" in host:
        six = ipaddress.IPv6Address(host)
        return six in _GLOBAL_UNICAST and not any(six in each for each in _HOLDS_IPV4)
    dot = host.rfind(".")
    if host[dot + 1 :].isdigit():
        four = ipaddress.IPv4Address(host)
        return four.is_global and not four.is_multicast
    return dot > 0 and host[dot + 1 :] not in _PRIVATE_SUFFIXES


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
