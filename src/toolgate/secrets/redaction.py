"""Removes secrets from values and texts: by the name they stand under, or where `Find` finds them.

One `Redactor` serves evidence, audit, events, logs and traces. How a secret is recognised inside a
text comes in from outside (`Find`); which names hide a value, and how a structure is walked, is
here. A failure to redact is never passed over: what could not be checked is replaced whole.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from toolgate.core.tools import JsonValue

MASK: Final = "[redacted]"
UNCHECKED: Final = "[redacted: could not be checked]"

SENSITIVE_HEADERS: Final = frozenset(
    {  # the executor contract's list, then what is sent to the same end elsewhere
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "x-api-key",
        "x-device-token",
        "x-gateway-token",
        "x-amz-security-token",
        "x-auth-token",
        "x-csrf-token",
    }
)
SENSITIVE_ENDINGS: Final = (  # of a key with its separators taken out
    "token", "secret", "password", "passwd", "passphrase", "apikey", "privatekey", "secretkey",
    "accesskey", "signingkey", "encryptionkey", "mnemonic", "seedphrase", "credential",
    "authorization", "cookie", "bearer",
)  # fmt: skip
SENSITIVE_NAMES: Final = frozenset({"auth", "pass", "pin", "otp", "jwt", "pwd"})  # whole words
USER_FLAGS: Final = frozenset({"-u", "--user"})  # a name and, after a colon, its password
NAME_MEMBERS: Final = ("name", "key", "header", "Name", "Key", "Header")
VALUE_MEMBERS: Final = frozenset({"value", "Value"})  # {"name": "Authorization", "value": ...}

REMEMBERED_NAMES: Final = 4096
LONGEST_REMEMBERED: Final = 128
SHORTEST_CUT: Final = 256  # characters; a member of a value that is shorter was not what was cut
MOST_CUTS: Final = 100  # looked at in one text: each stream is cut once, but may quote others
STREAM_LIMIT: Final = 65_536  # what a stream holds back at most before it gives up on an end
ENTROPY_BITS: Final = 3.6  # per character; random hex has 3.5-4, base64 above 4, words below
_OUR_IDS: Final = re.compile(
    r"[a-z]{1,12}_[0-9a-hjkmnp-tv-z]{26}"  # ids this system makes
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
_SEPARATORS: Final = re.compile(r"[^a-z0-9]")
_FLAG: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]*")
_CLOSED: Final = re.compile(r"-----|\n|.{80}", re.DOTALL)  # the rest of a key block's last line
_LEFT_OUT: Final = re.compile(r"\n\[(?:\d+ bytes left out|cut: [^\]\n]+)\]\n")  # said at a cut
_WORD_END: Final = re.compile(r"[\s\"'<>]")


class Span(NamedTuple):
    """The place of a secret; `anchor` is the start of the text that gives it away."""

    start: int
    end: int
    kind: str
    anchor: int
    closing: str = ""  # what ends it, where no space does: a quote, a key block's last line


Find = Callable[[str], Sequence[Span]]


class _Verdicts(dict[str, bool]):
    """Verdicts by name. Long names are judged each time, so that they cannot fill the memory."""

    def __init__(self, judge: Callable[[str], bool]) -> None:
        super().__init__()
        self._judge = judge

    def __missing__(self, name: str) -> bool:
        verdict = self._judge(name)
        if len(name) <= LONGEST_REMEMBERED:
            if len(self) >= REMEMBERED_NAMES:
                self.clear()
            self[name] = verdict
        return verdict


def is_sensitive(name: str) -> bool:
    """Return True if a value under this name must not be written."""
    return _SENSITIVE[name]


def _is_sensitive(name: str) -> bool:
    words = _SEPARATORS.sub(" ", name.lower()).split()
    flat = "".join(words)
    return flat.endswith(SENSITIVE_ENDINGS) or not SENSITIVE_NAMES.isdisjoint({flat, *words[-1:]})


def _hides_text(name: str) -> bool:
    """A name of several is one of several secrets, where they are no numbers."""
    return is_sensitive(name) or (name[-1:] in ("s", "S") and is_sensitive(name[:-1]))


_SENSITIVE: Final = _Verdicts(_is_sensitive)
_HIDES_TEXT: Final = _Verdicts(_hides_text)


class Redactor:
    def __init__(
        self,
        find: Find,
        *,
        unfinished: Callable[[str], int] | None = None,
        halves: Find | None = None,
    ) -> None:
        self._find = find
        self._unfinished = unfinished or (lambda text: len(text))
        self._halves = halves or (lambda _text: ())

    def text(self, text: str) -> str:
        try:
            return mask(text, self._find(text))
        except Exception:  # noqa: BLE001 -- whatever went wrong, the text is not known to be clean
            return UNCHECKED

    def bytes(self, content: bytes) -> bytes:
        try:
            text = content.decode("utf-8", "surrogateescape")
            return mask(text, self._find(text)).encode("utf-8", "surrogateescape")
        except Exception:  # noqa: BLE001 -- as in text()
            return UNCHECKED.encode()

    def value(self, value: JsonValue) -> JsonValue:
        """The value with its secrets masked; itself, uncopied, where it has none."""
        try:
            return self._value(value)
        except Exception:  # noqa: BLE001 -- as in text()
            return UNCHECKED

    def fields(self, fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """`value` for an object; the result is an object too."""
        clean = self.value(dict(fields))
        return clean if isinstance(clean, dict) else {"redacted": UNCHECKED}

    def headers(
        self, headers: Mapping[str, str] | Iterable[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return [
            (self.text(name), MASK if is_sensitive_header(name) else self.text(value))
            for name, value in pairs
        ]

    def cut(self, text: str) -> str:
        """Redact what is left of a text that a limit has cut, maybe in the middle of a secret."""
        try:
            return mask(text, self._cut_off(text))
        except Exception:  # noqa: BLE001 -- as in text()
            return UNCHECKED

    def cut_value(self, value: JsonValue) -> JsonValue:
        """`cut` for each text in a value; raises RecursionError."""
        match value:
            case str():
                return self.cut(value) if len(value) >= SHORTEST_CUT else value
            case dict():
                return {key: self.cut_value(member) for key, member in value.items()}
            case list():
                return [self.cut_value(item) for item in value]
            case _:
                return value

    def _cut_off(self, text: str) -> list[Span]:
        found = islice(_LEFT_OUT.finditer(text), MOST_CUTS)
        notes = [place for note in found for place in note.span()]
        edges = [0, *notes, len(text)]
        return [
            span._replace(start=span.start + start, end=span.end + start)
            for start, end in zip(edges[::2], edges[1::2], strict=True)
            for span in self._halves(text[start:end])
        ]

    def stream(self) -> "RedactingStream":
        return RedactingStream(self._find, unfinished=self._unfinished)

    def _value(self, value: JsonValue) -> JsonValue:
        texts: list[str] = []
        stripped = strip(value, texts)
        # One search over everything decides most cases; NUL stands in no secret and no pattern.
        if not self._find("\x00".join(texts)):
            return stripped
        return self._map(stripped)

    def _map(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                return mask(value, self._find(value))
            case dict():
                return {mask(k, self._find(k)): self._map(v) for k, v in value.items()}
            case list():
                return [self._map(item) for item in value]
            case int() | float() if not isinstance(value, bool):
                return MASK if self._find(str(value)) else value
            case _:
                return value


class RedactingStream:
    """Masks a text that comes in pieces; what may be the beginning of a secret is held back."""

    def __init__(self, find: Find, *, unfinished: Callable[[str], int], look_back: int = 0) -> None:
        """`look_back` is how much of what was shown tells what comes next, as a long line does."""
        self._find = find
        self._unfinished = unfinished
        self._look_back = look_back
        self._before = ""  # the end of what was shown, as it was
        self._held = ""
        self._closing: str | None = None  # swallowing an endless secret until this (or a space)
        self._failed = False

    def feed(self, chunk: str) -> str:
        """Return what may be shown now."""
        return self._guarded(self._held + chunk, final=False)

    def close(self) -> str:
        """Return what was still held back."""
        return self._guarded(self._held, final=True)

    def _guarded(self, text: str, *, final: bool) -> str:
        if self._failed:
            return ""
        try:
            return self._advance(text, final=final)
        except Exception:  # noqa: BLE001 -- nothing more of this stream can be known to be clean
            self._failed = True
            self._held = ""
            return UNCHECKED

    def _advance(self, text: str, *, final: bool) -> str:
        if self._closing is not None:
            rest = self._swallow(text, self._closing)
            if rest is None:
                return ""
            text, self._closing = rest, None
        known = len(self._before)
        spans = [
            span._replace(
                start=max(0, span.start - known),
                end=span.end - known,
                anchor=max(0, span.anchor - known),
            )
            for span in self._find(self._before + text)
            if span.end > known
        ]
        if final:
            self._held = ""
            self._remember(text)
            return mask(text, spans)
        cut = max(0, self._unfinished(self._before + text) - known)
        # A secret that reaches into what is held back is held back whole, sign and all. Lowering
        # the cut can make another one reach in, so go from the last to the first.
        for span in sorted(spans, key=lambda one: one.end, reverse=True):
            if span.anchor < cut <= span.end:
                cut = span.anchor
        if len(text) - cut <= STREAM_LIMIT:
            self._held = text[cut:]
            self._remember(text[:cut])
            return mask(text[:cut], [span for span in spans if span.end <= cut])
        self._remember(text)
        return self._give_up(text, spans)

    def _remember(self, shown: str) -> None:
        if self._look_back:
            self._before = (self._before + shown)[-self._look_back :]

    def _give_up(self, text: str, spans: Sequence[Span]) -> str:
        """Too much is held back: show it masked, and swallow on where a secret has no end yet."""
        self._held = ""
        open_ended = [span for span in spans if span.end == len(text)]
        shown = mask(text, spans)
        if open_ended:
            self._closing = next((span.closing for span in open_ended if span.closing), "")
        elif not text[-1:].isspace():
            # The last word may still turn out to be one; it is not shown.
            start = max((m.end() for m in _WORD_END.finditer(text)), default=0)
            shown = mask(text[:start], [s for s in spans if s.end <= start]) + MASK
            self._closing = ""
        return shown

    def _swallow(self, text: str, closing: str) -> str | None:
        """Return what comes after the endless secret; None while it goes on."""
        self._held = ""
        if not closing:
            found = _WORD_END.search(text)
            return None if found is None else text[found.start() :]
        start = text.find(closing)
        if len(closing) == 1:
            return None if start < 0 else text[start:]
        if start < 0:
            self._held = text[1 - len(closing) :]  # the closing may be split as well
            return None
        end = _CLOSED.search(text, start + len(closing))
        if end is None:
            self._held = text[start:]
            return None
        return text[end.end() :]


def mask(text: str, spans: Sequence[Span]) -> str:
    """The text with the spans, which may overlap, each replaced by the mask."""
    if not spans:
        return text
    parts: list[str] = []
    shown = 0
    masked_to = -1
    for span in sorted(spans):
        if span.start <= masked_to:
            masked_to = max(masked_to, span.end)
        else:
            parts += [text[shown : span.start], MASK]
            masked_to = span.end
        shown = masked_to
    parts.append(text[shown:])
    return "".join(parts)


def is_sensitive_header(name: str) -> bool:
    return name.lower().strip() in SENSITIVE_HEADERS or is_sensitive(name)


def looks_random(word: str) -> bool:
    if _OUR_IDS.fullmatch(word) or not any(c.isdigit() for c in word) or word.isdigit():
        return False
    counts = Counter(word)
    bits = -sum(n / len(word) * math.log2(n / len(word)) for n in counts.values())
    return bits >= ENTROPY_BITS or (len(word) >= 32 and bits >= 3.0 and "-" not in word)


def without_flagged(words: list[str]) -> list[str]:
    """A command's words, what stands behind a flag that names a secret masked."""
    for word in words:
        if word[:1] == "-" and (word in USER_FLAGS or is_sensitive(word)):
            return [str(shown) for shown in _strip_items([*words], [])]
    return words


def strip(value: JsonValue, texts: list[str]) -> JsonValue:
    """Mask what stands under a sensitive name; collect every text that is left."""
    if isinstance(value, str):
        texts.append(value)
        return value
    if value is None or value is True or value is False:
        return value
    if isinstance(value, dict):
        return _strip_members(value, texts)
    if isinstance(value, list):
        return _strip_items(value, texts)
    texts.append(str(value))
    return value


def _strip_members(value: dict[str, JsonValue], texts: list[str]) -> JsonValue:
    changed: dict[str, JsonValue] = {}
    names_secret = ("value" in value or "Value" in value) and _names_secret(value)
    for key, member in value.items():
        texts.append(key)
        if type(member) is str and not _HIDES_TEXT[key] and not names_secret:
            texts.append(member)  # most members of most values
            continue
        hidden = _hides(key, member) or (names_secret and key in VALUE_MEMBERS)
        after = _hide(member) if hidden else strip(member, texts)
        if after is not member:
            changed[key] = after
    return {**value, **changed} if changed else value


def _names_secret(value: dict[str, JsonValue]) -> bool:
    named_by = next((value[m] for m in NAME_MEMBERS if isinstance(value.get(m), str)), None)
    return isinstance(named_by, str) and is_sensitive(named_by)


def _strip_items(value: list[JsonValue], texts: list[str]) -> list[JsonValue]:
    after: list[JsonValue] = []
    flagged = names_user = False
    for item in value:
        hidden = flagged or (names_user and isinstance(item, str) and ":" in item)
        after.append(_hide(item) if hidden else strip(item, texts))
        flagged = names_user = False
        if isinstance(item, str):
            if item.startswith("-"):  # ["--password", "..."], ["-u", "name:..."]
                names_user = item in USER_FLAGS
                flagged = is_sensitive(item) and _FLAG.fullmatch(item) is not None
            elif len(after) == 1 and len(value) == 2:  # a header as a pair
                flagged = is_sensitive_header(item)
    if all(new is old for new, old in zip(after, value, strict=True)):
        return value
    return after


def _hides(key: str, member: JsonValue) -> bool:
    # "tokens": 12 is a count; "tokens": ["..."] is not
    return _HIDES_TEXT[key] if isinstance(member, str | list | dict) else is_sensitive(key)


def _hide(value: JsonValue) -> JsonValue:
    return value if value is None or isinstance(value, bool) else MASK
