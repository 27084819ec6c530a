"""A call's arguments as an approver sees them, and the copy of that which may lie on the disk.

The approver sees everything but exact known secrets, which are named (`[secret: deploy-token]`), and
other runs that may be secrets: token-shaped words, and known secrets in an encoding. Those are counted
(`[hidden: 40 characters]`), and must be revealed before the call can be approved. Invisible characters
are escaped (`core/visible.py`), and so is a text that looks like one of these marks: two different calls
never look alike.

The stored copy has, besides, `[redacted]` for what a telling name announces, up to where a command
could begin. It is written down in the clear; the view is made from the original, which lies sealed.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from toolgate.core.tools import JsonValue
from toolgate.core.visible import UNSEEN, escaped
from toolgate.secrets.patterns import KNOWN, RANDOM, TOKEN, SecretPatterns
from toolgate.secrets.redaction import MASK, Span, looks_random, strip

HIDDEN: Final = "[hidden: {} characters]"
_SHAPED: Final = frozenset({TOKEN, RANDOM, "jwt"})
_WORD: Final = re.compile(r"[A-Za-z0-9._~+/=!@:$%-]+")  # no escape, no blank, no quote
_ESCAPED: Final = re.compile(rf"[{UNSEEN}]|<(?=U\+)|\[(?=secret:|hidden:)")
# A command may begin behind each of these; what stands before may be masked on the disk.
_COMMAND: Final = re.compile(r"[;|&`\n\r<>]|\$[({]")
_PAIR: Final = re.compile(r";\s*[A-Za-z0-9._-]+=([^\s;|&`$<>()]+)")  # another cookie
_KEY_LINES: Final = re.compile(  # of a private key; the last may be short
    r"([A-Za-z0-9+/]{20,})={0,2}"
    r"(?:(?:\s|\\n)+(?=[a-z]*[A-Z0-9+/=])[A-Za-z0-9+/]+={0,2}(?=(?:\s|\\n)*-----END))?"
)

Piece = tuple[int, int, str]  # of a text: start, end, and what is shown in its place
_Show = Callable[[str], str]


class Shown(NamedTuple):
    """Arguments as they are shown; `hidden` characters of them are not."""

    args: dict[str, JsonValue]
    hidden: int = 0


class ApproverView:
    def __init__(self, patterns: SecretPatterns) -> None:
        self._patterns = patterns

    def show(self, args: Mapping[str, JsonValue], *, reveal: bool = False) -> Shown:
        """The arguments for an approver; with `reveal` only exact known secrets are masked.

        Raises RecursionError.
        """
        shown = _mapped(args, self._revealed if reveal else self._shown)
        return Shown(shown, 0 if reveal else sum(map(self._hidden, _texts(dict(args)))))

    def store(self, args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The copy for the disk."""
        plain = dict(args)
        return self._stored_members(plain, strip(plain, []))

    def _shown(self, text: str) -> str:
        named, hidden = self._masked(text)
        return _assembled(text, sorted(named + hidden))

    def _revealed(self, text: str) -> str:
        named, _ = self._masked(text)
        return _assembled(text, named)

    def _hidden(self, text: str) -> int:
        _, hidden = self._masked(text)
        return sum(end - start for start, end, _ in hidden)

    def _masked(self, text: str) -> tuple[list[Piece], list[Piece]]:
        """The pieces that are masked for an approver: by name, and counted."""
        named = _apart(sorted(self._patterns.exact(text), key=lambda one: (one[0], -one[1])))
        counted = [
            (span.start, span.end, "")
            for span in self._patterns.find(text)
            if span.kind == KNOWN
            or (span.kind in _SHAPED and _WORD.fullmatch(text, span.start, span.end))
        ]
        marked = [(start, end, f"[secret: {_visible(name)}]") for start, end, name in named]
        hidden = _without(_apart(sorted(counted)), marked)
        return marked, [(start, end, HIDDEN.format(end - start)) for start, end, _ in hidden]

    def _stored(self, value: JsonValue, stripped: JsonValue, *, secret: bool = False) -> JsonValue:
        """`stripped` is the value with a mask in the place of what stands under a telling name."""
        secret = secret or (stripped == MASK and value != MASK)
        match value:
            case dict():
                return self._stored_members(value, stripped, secret=secret)
            case list():
                beside = stripped if isinstance(stripped, list) else value
                pairs = zip(value, beside, strict=True)
                return [self._stored(item, after, secret=secret) for item, after in pairs]
            case str():
                return self._text(value, secret=secret)
            case int() | float() if not isinstance(value, bool):
                return MASK if secret else _number(value, self._text)
            case _:
                return value

    def _stored_members(
        self, value: dict[str, JsonValue], stripped: JsonValue, *, secret: bool = False
    ) -> dict[str, JsonValue]:
        beside = stripped if isinstance(stripped, dict) else value
        return _unique(
            (self._text(key), self._stored(member, beside[key], secret=secret))
            for key, member in value.items()
        )

    def _text(self, text: str, *, secret: bool = False) -> str:
        named, hidden = self._masked(text)
        spans = [Span(0, len(text), "", 0)] if secret else self._patterns.find(text)
        masked = [
            (start, end, MASK)
            for span in spans
            for start, end in _without_commands(text, span)
            if start < end
        ]
        before = sorted(named + hidden)
        return _assembled(text, sorted(before + _without(_apart(sorted(masked)), before)))


def summary_of(tool: str, args: Mapping[str, JsonValue]) -> str:
    """A call in one line; the arguments are those of a view."""
    return f"{tool} {json.dumps(dict(args), ensure_ascii=False)}"


def _mapped(args: Mapping[str, JsonValue], shown: _Show) -> dict[str, JsonValue]:
    return _unique((shown(key), with_texts(member, shown)) for key, member in args.items())


def with_texts(value: JsonValue, shown: _Show) -> JsonValue:
    """The value with each text, name and number as the function shows it."""
    match value:
        case str():
            return shown(value)
        case dict():
            return _mapped(value, shown)
        case list():
            return [with_texts(item, shown) for item in value]
        case int() | float() if not isinstance(value, bool):
            return _number(value, shown)
        case _:
            return value


def _texts(value: JsonValue) -> Iterator[str]:
    """Each text, name and number of a value."""
    match value:
        case dict():
            for key, member in value.items():
                yield key
                yield from _texts(member)
        case list():
            for item in value:
                yield from _texts(item)
        case str():
            yield value
        case int() | float() if not isinstance(value, bool):
            yield str(value)
        case _:
            pass


def _number(value: int | float, shown: _Show) -> JsonValue:
    text = str(value)
    return value if (after := shown(text)) == text else after


def _unique(members: Iterable[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """The members under names that stay apart: two masked names may be equal."""
    found: dict[str, JsonValue] = {}
    for key, member in members:
        name, number = key, 1
        while name in found:
            number += 1
            name = f"{key} ({number})"
        found[name] = member
    return found


def _visible(text: str) -> str:
    return _ESCAPED.sub(escaped, text)


def _assembled(text: str, pieces: Sequence[Piece]) -> str:
    parts: list[str] = []
    position = 0
    for start, end, shown in pieces:
        parts += [_visible(text[position:start]), shown]
        position = end
    return "".join([*parts, _visible(text[position:])])


def _apart(pieces: Sequence[Piece]) -> list[Piece]:
    """Sorted pieces without what an earlier one covers."""
    found: list[Piece] = []
    position = 0
    for start, end, shown in pieces:
        if end > position:
            found.append((max(start, position), end, shown))
            position = end
    return found


def _without(pieces: Sequence[Piece], others: Sequence[Piece]) -> list[Piece]:
    """The parts of the pieces that none of the others covers; both are sorted and apart."""
    found: list[Piece] = []
    at = 0
    for start, end, shown in pieces:
        while at < len(others) and others[at][1] <= start:
            at += 1
        beside = at
        while beside < len(others) and others[beside][0] < end:
            other_start, other_end, _ = others[beside]
            beside += 1
            if start < other_start:
                found.append((start, other_start, shown))
            start = other_end
        if start < end:
            found.append((start, end, shown))
    return found


def _without_commands(text: str, span: Span) -> list[tuple[int, int]]:
    """The places in a span that hold a value, and no command that could follow it."""
    if span.kind == KNOWN or span.kind in _SHAPED:
        return [(span.start, span.end)]
    value = text[span.start : span.end]
    if span.kind == "pem":
        lines = [m.span() for m in _KEY_LINES.finditer(value) if looks_random(m[1])]
        return [(span.start + start, span.start + end) for start, end in lines]
    command = _COMMAND.search(value)
    end = len(value) if command is None else command.start()
    places = [(0, len(value[:end].rstrip()))]
    if span.kind == "header" and command is not None:
        places += [pair.span(1) for pair in _PAIR.finditer(value, end)]
    return [(span.start + start, span.start + end) for start, end in places]
