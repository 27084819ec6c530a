"""Taking a run's secrets out of whatever leaves it: results, errors, progress."""

import base64
import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

REDACTED: Final = "[redacted]"
SHORTEST: Final = 3  # a shorter text occurs everywhere by itself


class Scrubber:
    """Knows some texts in the forms they travel in, and removes them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= SHORTEST:
                raw = secret.encode()
                forms |= {
                    secret,
                    quote(secret, safe=""),
                    quote_plus(secret),
                    json.dumps(secret)[1:-1],
                    json.dumps(secret, ensure_ascii=False)[1:-1],
                    base64.b64encode(raw).decode(),
                    base64.urlsafe_b64encode(raw).decode().rstrip("="),
                    raw.hex(),
                }
        self._forms = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, REDACTED)
        return text

    def json(self, encoded: bytes) -> bytes:
        """JSON text in, JSON text out; the names of members stay as they are."""
        if not self._forms:
            return encoded
        return msgspec.json.encode(self.value(msgspec.json.decode(encoded)))

    def value(self, value: Any) -> Any:
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        return value
