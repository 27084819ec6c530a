"""Which addresses the world may be reached at, and what the many spellings of a host mean.

Our own table, because the standard library's `is_global` lets through what a gate must not (6to4,
NAT64, relays, a cloud's metadata address in public space). Whatever is not plainly public is
refused. Nothing here resolves a name.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from toolgate.core.errors import Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_NAME: Final = 253  # RFC 1035, without the root's dot

_V4_RANGES: Final = (
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata"),  # Azure's wire server, in public space
    ("169.254.0.0/16", "link-local or metadata"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments or metadata"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "AS112"),
    ("192.52.193.0/24", "multicast tunnelling"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "AS112"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved or broadcast"),
)

_V6_RANGES: Final = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("::/96", "IPv4-compatible"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("100::/64", "discard"),
    ("2001::/32", "Teredo"),
    ("2001:2::/48", "benchmarking"),
    ("2001:10::/28", "ORCHID"),
    ("2001:20::/28", "ORCHID"),
    ("2001::/23", "protocol assignments"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("2620:4f:8000::/48", "AS112"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "unique local"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)

_V4: Final = tuple((ipaddress.IPv4Network(net), why) for net, why in _V4_RANGES)
_V6: Final = tuple((ipaddress.IPv6Network(net), why) for net, why in _V6_RANGES)
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")  # all that has ever been allocated

# Names that mean this machine or this network wherever they are looked up.
_LOCAL_NAMES: Final = ("localhost", "localdomain", "local", "internal", "home.arpa", "onion")

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_OCTET: Final = re.compile(r"0|[1-9][0-9]{0,2}")


@dataclass(frozen=True, slots=True)
class Host:
    """A host as it will be connected to: a lower-case ASCII name, or an address."""

    name: str  # the address in its canonical spelling where it is one
    address: Address | None = None
    canonical: bool = True  # false where the address came in a disguise

    @property
    def bracketed(self) -> str:
        return f"[{self.name}]" if isinstance(self.address, ipaddress.IPv6Address) else self.name


def refusal(address: Address) -> str:
    """Why an address is not part of the public internet; empty where it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((why for net, why in _V4 if address in net), "")
    if address.scope_id:
        return "zone id"
    for net, why in _V6:
        if address in net:
            return why
    if address not in _GLOBAL_V6:
        return "not allocated"
    return next(
        (
            f"{form} of {inner} ({why})"
            for form, inner in embedded(address)
            if (why := refusal(inner))
        ),
        "",
    )


def embedded(address: ipaddress.IPv6Address) -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    """Every IPv4 address that a transition mechanism could see in an IPv6 one."""
    number = int(address)
    low = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if number >> 32 in {0, 0xFFFF, 0xFFFF0000}:
        yield "IPv4-mapped", low
    if number >> 32 == 0x0064FF9B << 64 or number >> 80 == 0x0064FF9B0001:
        yield "NAT64", low
    if number >> 112 == 0x2002:
        yield "6to4", ipaddress.IPv4Address((number >> 80) & 0xFFFFFFFF)
    if number >> 96 == 0x20010000:
        yield "Teredo server", ipaddress.IPv4Address((number >> 64) & 0xFFFFFFFF)
        yield "Teredo client", ipaddress.IPv4Address(int(low) ^ 0xFFFFFFFF)
    if (number >> 32) & 0xFFFFFFFF in {0x00005EFE, 0x02005EFE}:
        yield "ISATAP", low


def refused_name(name: str) -> bool:
    """Whether a name means something local by its very spelling."""
    return any(name == local or name.endswith(f".{local}") for local in _LOCAL_NAMES)


def parse_host(text: str) -> Host:
    """Read a host as the most lenient of clients would; raises Invalid for what none should.

    Every numeric form that some client takes for an address is taken for one here, and marked as
    not canonical, so that a disguise can be refused whatever it hides.
    """
    if text.startswith("["):
        return _parse_v6(text)
    if not text or any(char in "%@\\/?#:[]<>^|`{}\"'" or char.isspace() for char in text):
        raise Invalid(f"not a host: {text[:100]!r}", field="host")
    name = _to_ascii(text)
    stripped = name.removesuffix(".")
    labels = stripped.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        address = _parse_v4(labels, text)
        return Host(str(address), address, canonical=text == str(address))
    if len(stripped) > MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise Invalid(f"not a host name: {text[:100]!r}", field="host")
    return Host(stripped)


def _to_ascii(text: str) -> str:
    if any(char < "!" or char == "\x7f" for char in text):
        raise Invalid("a host has no control characters", field="host")
    folded = unicodedata.normalize("NFKC", text).lower()
    try:
        return folded.encode("idna").decode("ascii") if not folded.isascii() else folded
    except UnicodeError as error:
        raise Invalid(f"not an international host name: {text[:100]!r}", field="host") from error


def _parse_v4(labels: list[str], text: str) -> ipaddress.IPv4Address:
    """Dotted, short, decimal, octal and hexadecimal, each part by itself, as inet_aton has it."""
    if len(labels) > 4:
        raise Invalid(f"not an address: {text[:100]!r}", field="host")
    *leading, last = [_number(label, text) for label in labels]
    if any(part > 255 for part in leading) or last >= 256 ** (4 - len(leading)):
        raise Invalid(f"not an address: {text[:100]!r}", field="host")
    return ipaddress.IPv4Address(
        sum(part << (24 - 8 * place) for place, part in enumerate(leading)) + last
    )


def _number(label: str, text: str) -> int:
    # int() alone would take signs and underscores too.
    if len(label) > 64 or not _NUMERIC.fullmatch(label):
        raise Invalid(f"not an address: {text[:100]!r}", field="host")
    try:
        if label.startswith("0x"):
            return int(label[2:] or "0", 16)
        if _OCTET.fullmatch(label) or not label.startswith("0"):
            return int(label, 10)
        return int(label, 8)
    except ValueError as error:
        raise Invalid(f"not an address: {text[:100]!r}", field="host") from error


def _parse_v6(text: str) -> Host:
    if not text.endswith("]") or "%" in text:
        raise Invalid(f"not an IPv6 host: {text[:100]!r}", field="host")
    try:
        address = ipaddress.IPv6Address(text[1:-1])
    except ValueError as error:
        raise Invalid(f"not an IPv6 host: {text[:100]!r}", field="host") from error
    return Host(address.compressed, address)
