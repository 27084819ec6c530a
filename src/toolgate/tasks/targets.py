"""Which addresses a task may open, by the trust of its caller, before anything is resolved.

What a name resolves to, and where a page goes by itself, is for the guarded proxy to judge.
"""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from toolgate.domain.task_runs import TaskCode, TaskFailed, Trust, without_password

SCHEMES: Final = {
    Trust.LOCAL: frozenset({"http", "https", "file", "data", "about", "chrome"}),
    Trust.REMOTE: frozenset({"http", "https"}),
}
LONGEST: Final = 8192
_NUMERIC: Final = re.compile(r"(0[xX][0-9A-Fa-f]*|[0-9]+)(\.(0[xX][0-9A-Fa-f]*|[0-9]+))*\.?")


def check_target(url: str, *, trust: Trust) -> None:
    """Raises TaskFailed where the address cannot, or may not, be opened."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as broken:
        raise _invalid(url) from broken
    scheme = parts.scheme.lower()
    if not scheme or len(url) > LONGEST or any(ord(letter) < 0x21 for letter in url):
        raise _invalid(url)
    if scheme not in SCHEMES[Trust.LOCAL]:
        raise _invalid(url)
    if scheme in {"http", "https"} and not host:
        raise _invalid(url)
    if scheme not in SCHEMES[trust]:
        raise _refused(url, f"{scheme}: is not open to a {trust} caller")
    if trust is Trust.REMOTE and (objection := _objection(host)):
        raise _refused(url, objection)


def _objection(host: str) -> str:
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
        return "the host is of this network"
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        # Browsers read 2130706433, 0x7f.1 and 0177.0.0.1 as addresses.
        return "the host is a number" if _NUMERIC.fullmatch(name) else ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if mapped is not None or not address.is_global or address.is_multicast:
        return "the address is not a public one"
    return ""


def _invalid(url: str) -> TaskFailed:
    return TaskFailed(
        TaskCode.INVALID_PARAMETER,
        f"not an address that can be opened: {without_password(url)[:200]!r}",
    )


def _refused(url: str, why: str) -> TaskFailed:
    return TaskFailed(
        TaskCode.TRUST_LEVEL_NOT_ALLOWED, f"{without_password(url)[:200]!r} is refused: {why}"
    )
