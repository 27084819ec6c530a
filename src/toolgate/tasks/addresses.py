"""Which addresses a task may open, by the trust of its caller, before anything is resolved.

What a name resolves to, and where a page goes by itself, is for the guarded proxy to judge.
"""

from typing import Final
from urllib.parse import urlsplit

from toolgate.core.addresses import parse_host, refusal, refused_name
from toolgate.core.enums import TaskCode, TrustLevel
from toolgate.core.errors import Invalid
from toolgate.secrets.addresses import without_password
from toolgate.tasks.state import TaskFailed

SCHEMES: Final = {
    TrustLevel.LOCAL: frozenset({"http", "https", "file", "data", "about", "chrome"}),
    TrustLevel.REMOTE: frozenset({"http", "https"}),
}
LONGEST: Final = 8192


def check_target(url: str, *, trust: TrustLevel) -> None:
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
    if scheme not in SCHEMES[TrustLevel.LOCAL]:
        raise _invalid(url)
    if scheme in {"http", "https"} and not host:
        raise _invalid(url)
    if scheme not in SCHEMES[trust]:
        raise _refused(url, f"{scheme}: is not open to a {trust} caller")
    if trust is TrustLevel.REMOTE and (objection := _objection(host)):
        raise _refused(url, objection)


def _objection(text: str) -> str:
    try:
        host = parse_host(f"[{text}]" if ":" in text else text)
    except Invalid as unreadable:
        return str(unreadable)
    if not host.canonical:
        return f"{host.name} in disguise"
    if host.address is not None:
        return refusal(host.address)
    return "a local name" if refused_name(host.name) else ""


def _invalid(url: str) -> TaskFailed:
    return TaskFailed(
        TaskCode.INVALID_PARAMETER,
        f"not an address that can be opened: {without_password(url)[:200]!r}",
    )


def _refused(url: str, why: str) -> TaskFailed:
    return TaskFailed(
        TaskCode.TRUST_LEVEL_NOT_ALLOWED, f"{without_password(url)[:200]!r} is refused: {why}"
    )
