"""The ways in which a text is written: the forms of a secret, and escapes and layouts undone.

A layout is what stands between the characters of a secret: line breaks in base64, blanks between
groups, offsets and columns of a hex dump. It is removed; an escape is replaced by what it stands for.
"""

import base64
import bisect
import html
import re
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from toolgate.secrets.redaction import Span

SHORTEST: Final = 4  # a shorter secret would take half of every text with it
SHORTEST_SPREAD: Final = 8  # with blanks between its characters: fewer occur in prose
WRAPPED_LINE: Final = 48  # characters of base64 without a gap, before a line's end
WIDEST_GROUP: Final = 8
COLUMN: Final = 20  # characters of a dump's text column: 16, and its frame

Escapes = re.Pattern[str]
_Add = Callable[[str, int], None]

_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_BACKSLASH: Final = re.compile(
    r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"  # one character above U+FFFF
    r"|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[nrtbf\"'\\/]"
)
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,7});")
ESCAPES: Final = (("%", _PERCENT), ("\\", _BACKSLASH), ("&", _ENTITY))
CUT_OFF: Final = re.compile(  # an escape of which only the beginning is there
    r"(?:%[0-9A-Fa-f]?|(?:\\u[dD][89abAB][0-9A-Fa-f]{2})?\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?"
    r"|\\u[dD][89abAB][0-9A-Fa-f]{2}|&#?[A-Za-z0-9]{0,8}|[\ud800-\udbff]|\r)\Z"
)
_PLAIN_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}

BREAKS: Final = re.compile(r"\r?\n")
GAP: Final = r"[ \t,:-]"
GAPS: Final = re.compile(f"{GAP}+")
_NO_GAPS: Final = str.maketrans("", "", " \t,:-")
# From the last byte of a dump's line to the first of the next; and between two bytes.
_COLUMN: Final = rf"(?:[ \t]{{2,}}|[ \t]\|)[^\n]{{0,{COLUMN}}}"
_JOINS: Final = rf"(?:{_COLUMN}|[ \t]*)\r?\n[0-9A-Fa-f]{{6,16}}:?[ \t]+|[ \t]+"
JOINS: Final = re.compile(_JOINS)
OPEN_JOINS: Final = re.compile(  # and where the dump is cut off in its text column or offset
    rf"(?:{_COLUMN})?\r?\n[0-9A-Fa-f]{{0,16}}:?[ \t]*\Z|{_COLUMN}\Z|{_JOINS}"
)
WRAPPED: Final = rf"[A-Za-z0-9+/_-]{{{WRAPPED_LINE}}}\r?\n"
# Finds all that WRAPPED finds. RE2 counts from each place of a text: up to 48 in one set with other
# patterns, it takes five times as long for a line of ids.
WRAPPED_GATE: Final = r"[A-Za-z0-9+/_-]{8}\r?\n"
DUMPED: Final = r"(?:\A|\s)[0-9A-Fa-f]{6,16}:?[ \t]{1,3}[0-9A-Fa-f]{2,8}[ \t]"


def without_gaps(text: str) -> str:
    return text.translate(_NO_GAPS)


def in_groups(text: str) -> bool:
    """Check that all groups have one size; the first and the last may be smaller."""
    first, *inner, last = GAPS.split(text) if GAPS.search(text) else ("", "")
    sizes = {len(group) for group in inner}
    return len(sizes) == 1 and max(len(first), len(last)) <= max(sizes) <= WIDEST_GROUP


def forms(secret: str) -> frozenset[str]:
    """The ways in which a secret may be written; escapes and layouts are undone before the search."""
    raw = secret.encode("utf-8", "surrogateescape")
    written = {secret.strip(), raw.hex(), raw.hex().upper(), *_swapped(raw)}
    written.add(raw.decode("latin-1"))  # its bytes escaped one by one, as in b'\xc3\xa9'
    plus = urllib.parse.quote_plus(secret, errors="surrogateescape")
    written |= {plus, re.sub(r"%..", lambda m: m[0].lower(), plus), secret.replace(" ", "+")}
    for shift in range(3):
        encoded = _aligned(raw, shift, bits=6, encode=base64.b64encode)
        written |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    written |= {_aligned(raw, shift, bits=5, encode=base64.b32encode) for shift in range(5)}
    spread = {without_gaps(form) for form in written}
    written |= {form for form in spread if len(form) >= SHORTEST_SPREAD}
    return frozenset({secret, *(form for form in written if len(form) >= SHORTEST)})


def grouped_forms(secret: str) -> Iterable[str]:
    """The forms that are searched for with gaps between their characters; those are left out."""
    raw = secret.encode("utf-8", "surrogateescape")
    spread = (without_gaps(secret), raw.hex(), raw.hex().upper(), *_swapped(raw))
    return [form for form in spread if len(form) >= SHORTEST_SPREAD]


def _aligned(raw: bytes, shift: int, *, bits: int, encode: Callable[[bytes], bytes]) -> str:
    """The characters of an encoding that are the secret's alone when `shift` bytes stand before it."""
    mixed = -(-shift * 8 // bits)
    whole = (shift + len(raw)) * 8 // bits  # the character after may hold bits of what follows
    return encode(bytes(shift) + raw).decode()[mixed:whole]


def _swapped(raw: bytes) -> Iterable[str]:
    """The hex of `hexdump`: words of two bytes, the second first."""
    for shift in range(2):
        whole = raw[shift : len(raw) - (len(raw) - shift) % 2]
        yield b"".join(whole[at : at + 2][::-1] for at in range(0, len(whole), 2)).hex()


class View:
    """A text with its escapes undone, and where each part stands in the original."""

    def __init__(
        self,
        text: str,
        *,
        starts: Sequence[int] = (0,),
        origins: Sequence[int] = (0,),
        end: int = -1,
    ) -> None:
        self.text = text
        self._starts = starts  # in this text, of each part
        self._origins = origins  # in the original
        self.end = end if end >= 0 else len(text)

    def original(self, span: Span) -> Span:
        return span._replace(
            start=self.origin(span.start),
            end=self.origin(span.end),
            anchor=self.origin(span.anchor),
        )

    def origin(self, position: int) -> int:
        if position >= len(self.text):
            return self.end
        part = bisect.bisect_right(self._starts, position) - 1
        return self._origins[part] + position - self._starts[part]

    def undo(self, escapes: Escapes) -> "View":
        pieces: list[str] = []
        starts: list[int] = []
        origins: list[int] = []
        length = position = 0

        def add(text: str, at: int) -> None:
            nonlocal length
            starts.append(length)
            origins.append(self.origin(at))
            pieces.append(text)
            length += len(text)

        for match in escapes.finditer(self.text):
            self._copy(position, match.start(), add)
            at = match.start()
            for text, width in _undo(match[0]):
                add(text, at)
                at += width
            position = match.end()
        self._copy(position, len(self.text), add)
        return View("".join(pieces), starts=starts or (0,), origins=origins or (0,), end=self.end)

    def _copy(self, start: int, end: int, add: _Add) -> None:
        """Take over a stretch, part by part, so that positions inside it stay right."""
        while start < end:
            part = bisect.bisect_right(self._starts, start)
            stop = min(end, self._starts[part]) if part < len(self._starts) else end
            add(self.text[start:stop], start)
            start = stop


def placed(spans: Sequence[Span], original: str, undone: Sequence[Escapes]) -> list[Span]:
    """The spans of an unescaped text as spans of the original."""
    if not spans or not undone:
        return list(spans)
    view = View(original)
    for escapes in undone:
        view = view.undo(escapes)
    return [view.original(span) for span in spans]


def unescaped(match: "re.Match[str]") -> str:
    escape = match[0]
    if escape[0] == "%":
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "surrogateescape")
    if escape[0] == "&":
        return html.unescape(escape)
    if len(escape) == 2:
        return _PLAIN_ESCAPES.get(escape[1], escape[1])
    return "".join(text for text, _ in _undo(escape))


def _undo(escape: str) -> Iterable[tuple[str, int]]:
    """The characters that an escape stands for, each with its share of the escape; a layout has none."""
    if escape[0] == "&":
        yield html.unescape(escape), len(escape)
    elif escape[0] == "%":
        raw = bytes.fromhex(escape.replace("%", ""))
        for character in raw.decode("utf-8", "surrogateescape"):
            yield character, 3 * len(character.encode("utf-8", "surrogateescape"))
    elif escape[0] == "\\" and len(escape) == 12:
        pair = bytes.fromhex(escape.replace("\\u", ""))
        yield pair.decode("utf-16-be"), 12
    elif escape[0] == "\\" and escape[1] in "ux":
        yield chr(int(escape[2:], 16)), len(escape)
    elif escape[0] == "\\":
        yield _PLAIN_ESCAPES.get(escape[1], escape[1]), 2
