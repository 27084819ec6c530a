"""Taking a run's secrets out of whatever leaves it: results, errors, progress."""

import base64
import contextlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from toolgate.policy.inputs import URL_ARGUMENTS

REDACTED: Final = "[redacted]"
SHORTEST: Final = 3  # a shorter text occurs everywhere by itself

_ESCAPES: Final = "%\\+"  # with which a letter begins that is not written plainly
_ESCAPED: Final = re.compile(f"[{re.escape(_ESCAPES)}]")
_IN_URL: Final = re.compile("(?:%[0-9A-Fa-f]{2}){1,4}")
_IN_JSON: Final = re.compile(
    r'\\(?:u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|["\\/bfnrt])'
)


class Scrubber:
    """Knows some texts in the forms they travel in, and removes them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST}
        self.secrets = tuple(sorted(known, key=len, reverse=True))
        forms = {form for secret in self.secrets for form in _forms_of(secret)}
        # By how they begin, and not as one pattern: a caller may give thousands, or one of megabytes.
        self._forms: dict[str, list[str]] = {}
        for form in sorted(forms, key=len, reverse=True):
            self._forms.setdefault(form[:SHORTEST], []).append(form)
        first = {form[0] for form in forms} | set(_ESCAPES)
        self._found = re.compile(f"[{re.escape(''.join(first))}]") if forms else None

    def text(self, text: str) -> str:
        if self._found is None:
            return text
        kept, at = [], 0
        signs = [found.start() for found in _ESCAPED.finditer(text)]
        for found in self._found.finditer(text):
            begin = found.start()
            if begin >= at and (end := self._end(text, begin, signs)):
                kept += [text[at:begin], REDACTED]
                at = end
        return "".join([*kept, text[at:]])

    def _end(self, text: str, begin: int, signs: Sequence[int]) -> int:
        """Return the end of the longest form that begins there, 0 if none does."""
        forms = [form for head in _heads(text, begin) for form in self._forms.get(head, ())]
        for form in sorted(forms, key=len, reverse=True) if len(forms) > 1 else forms:
            if end := _end_of(form, text, begin, signs):
                return end
        return 0

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


def without_secrets(inputs: Any, secrets: Iterable[str], *, key: str = "") -> Any:
    """A template's inputs for the gate: a text that is a secret as a whole is replaced.

    Addresses stay as they are: the policy decides by them.
    """
    if isinstance(inputs, dict):
        return {name: without_secrets(part, secrets, key=name) for name, part in inputs.items()}
    if isinstance(inputs, list):
        return [without_secrets(part, secrets, key=key) for part in inputs]
    is_secret = isinstance(inputs, str) and inputs in secrets and key not in URL_ARGUMENTS
    return REDACTED if is_secret else inputs


def _forms_of(secret: str) -> list[str]:
    """Whole in another alphabet, besides its own."""
    raw = secret.encode()
    return [
        secret,
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        raw.hex(),
    ]


def _heads(text: str, begin: int) -> Iterable[str]:
    """Return the letters that a form there may begin with."""
    plain = text[begin : begin + SHORTEST]
    if not any(sign in plain for sign in _ESCAPES):
        return (plain,)
    read = {("", begin)}
    for _ in range(SHORTEST):
        read = {(head + letter, end) for head, at in read for letter, end in _letters_at(text, at)}
    return {head for head, _ in read}


def _end_of(form: str, text: str, begin: int, signs: Sequence[int]) -> int:
    """Return the end of a form that begins there, its letters written plainly or escaped."""
    left, tried = [(begin, 0)], set()
    while left:
        at, done = left.pop()
        found = bisect_left(signs, at)
        plain = min((signs[found] if found < len(signs) else len(text)) - at, len(form) - done)
        if not text.startswith(form[done : done + plain], at):
            continue
        at, done = at + plain, done + plain
        if done == len(form):
            return at
        if (at, done) not in tried:
            tried.add((at, done))
            left += [(end, done + 1) for one, end in _letters_at(text, at) if one == form[done]]
    return 0


def _letters_at(text: str, at: int) -> Iterator[tuple[str, int]]:
    """Plain, escaped in JSON, or in a URL, where each kind of form and script leaves others plain."""
    plain = text[at : at + 1]
    if plain == "%" and (found := _IN_URL.match(text, at)):
        raw = bytes.fromhex(found[0].replace("%", ""))
        for size in range(1, len(raw) + 1):
            with contextlib.suppress(UnicodeDecodeError):
                yield raw[:size].decode(), at + 3 * size
                break
    if plain:
        yield plain, at + 1
    if plain == "+":
        yield " ", at + 1
    elif plain == "\\" and (found := _IN_JSON.match(text, at)):
        yield json.loads(f'"{found[0]}"'), found.end()
