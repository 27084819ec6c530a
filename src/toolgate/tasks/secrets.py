"""Taking a run's secrets out of whatever leaves it: results, errors, progress."""

import base64
import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

REDACTED: Final = "[redacted]"
SHORTEST: Final = 3  # a shorter text occurs everywhere by itself


class Scrubber:
    """Knows some texts in the forms they travel in, and removes them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST}
        self.secrets = tuple(sorted(known, key=len, reverse=True))
        forms = [form for secret in self.secrets for form in _forms_of(secret)]
        self._found = re.compile("|".join(forms)) if forms else None

    def text(self, text: str) -> str:
        return text if self._found is None else self._found.sub(REDACTED, text)

    def json(self, encoded: bytes) -> bytes:
        """JSON text in, JSON text out; the names of members stay as they are."""
        if self._found is None:
            return encoded
        return msgspec.json.encode(self.value(msgspec.json.decode(encoded)))

    def value(self, value: Any) -> Any:
        if self._found is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        return value


def _forms_of(secret: str) -> list[str]:
    """As patterns: whole in another alphabet, or each letter in any way that it may be written."""
    raw = secret.encode()
    whole = [
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        raw.hex(),
    ]
    return ["".join(map(_letter, secret)), *map(re.escape, whole)]


def _letter(letter: str) -> str:
    """Plain, escaped in JSON, or in a URL, where each kind of form and script leaves others plain."""
    escaped = "".join(f"%{byte:02X}" for byte in letter.encode())
    plain = {letter, json.dumps(letter)[1:-1], "+" if letter == " " else letter}
    ways = [re.escape(way) for way in sorted(plain, key=len, reverse=True)]
    return f"(?:{'|'.join(ways)}|(?i:{escaped}))"
