"""Taking a run's secrets out of whatever leaves it: results, errors, progress."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from toolgate.policy.inputs import URL_ARGUMENTS
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import MASK, mask

SHORTEST: Final = 3  # a shorter text occurs everywhere by itself


class Scrubber:
    """Removes some texts and nothing else, in every form that the redactor of the system knows."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST}
        self.secrets = tuple(sorted(known, key=len, reverse=True))
        self._patterns = SecretPatterns(self.secrets, looks=False, shortest=SHORTEST)

    def text(self, text: str) -> str:
        return mask(text, self._patterns.find(text)) if self.secrets else text

    def json(self, encoded: bytes) -> bytes:
        """JSON text in, JSON text out; the names of members stay as they are."""
        if not self.secrets:
            return encoded
        return msgspec.json.encode(self.value(msgspec.json.decode(encoded)))

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        return value


def without_secrets(inputs: Any, secrets: Iterable[str], *, key: str = "") -> Any:
    """A template's inputs for the gate: a text that is a secret as a whole is replaced.

    Addresses stay as they are: the policy decides by them.
    """
    if isinstance(inputs, dict):
        return {name: without_secrets(part, secrets, key=name) for name, part in inputs.items()}
    if isinstance(inputs, list):
        return [without_secrets(part, secrets, key=key) for part in inputs]
    is_secret = isinstance(inputs, str) and inputs in secrets and key not in URL_ARGUMENTS
    return MASK if is_secret else inputs
