"""Token formats of vendors: facts from token_formats.json, compiled into patterns.

`form` is what follows from the vendor's documentation (`source`): prefix, characters, length; a group
in it is the secret part. `random` marks a form without a telling prefix: a whole word of that form is a
token only if its characters look random.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import re2  # type: ignore[import-untyped]

_WORD: Final = "A-Za-z0-9+/_-"
_HASH_NAME: Final = re.compile(r"(?:\b(?:sha[0-9]{1,3}|md5|h1)|integrity)[-=:]\Z", re.IGNORECASE)
_HASH_NAME_LENGTH: Final = 12
_WRAPPED_BEFORE: Final = re.compile(rf"[{_WORD}]{{20}}\r?\n\Z")
_WRAPPED_AFTER: Final = re.compile(rf"\r?\n[{_WORD}]{{20}}")
_HEX: Final = re.compile(r"[0-9a-f-]+|[0-9A-F-]+")
_CHANGES: Final = 0.4  # of kind (upper, lower, digit, sign) per character; random: 0.6, words: 0.3
_DISTINCT: Final = 0.75  # of the different characters that a random word of that length has
_ONE_CASE_CHANGES: Final = 0.15
_SHORTEST_RANDOM_PART: Final = 12
GATE_COUNT: Final = 3
SEARCH_MEMORY: Final = 64 << 20  # bytes; RE2 builds its automaton as texts come, within this
MOST_COUNTED: Final = 16  # characters: RE2 needs memory for each of each form
LEADING_COUNT: Final = 9  # of a form without a prefix; more than the first group of a UUID
_LED_BY_CLASS: Final = re.compile(r"^\[[^\]]+\]\{[0-9]+\}(?=(?:\\[.+])?[A-Za-z]{3,})")
_COUNT: Final = re.compile(r"\{([0-9]+)(?:,[0-9]*)?\}")


class TokenFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vendor: str
    form: str
    source: str
    random: bool = False


FORMATS: Final = msgspec.json.decode(
    Path(__file__).with_name("token_formats.json").read_bytes(), type=tuple[TokenFormat, ...]
)


def _gate(form: str) -> str:
    """A form that finds all that this one finds, and compiles and runs faster."""
    if (infix := _LED_BY_CLASS.sub("", form)) != form:
        return _lowered(infix, GATE_COUNT)
    return r"\b" + _lowered(form, LEADING_COUNT if form[0] == "[" else GATE_COUNT)


def _lowered(form: str, most: int) -> str:
    """The form with counts above `most` lowered to that: a cut token is one too."""
    return _COUNT.sub(lambda n: f"{{{most},}}" if int(n[1]) > most else n[0], form)


_PREFIXED: Final = [one.form for one in FORMATS if not one.random]
_SHAPES: Final = [one.form for one in FORMATS if one.random]
_ONE_CASE: Final = "|".join(form for form in _SHAPES if "A-Za-z" not in form)
TOKENS_GATE: Final = "|".join(map(_gate, _PREFIXED))
TOKENS: Final = rf"\b(?:{'|'.join(_lowered(form, MOST_COUNTED) for form in _PREFIXED)})"
_WORDS: Final = rf"[{_WORD}]{{25,}}={{0,2}}"
_SHAPE: Final = "|".join(_SHAPES)
RANDOM_WORDS: Final = (  # an upper-case letter soon: the digests of records have none
    rf"(?:\A|[^A-Za-z0-9+_-])(?:[a-z0-9_-]{{0,9}}[A-Z][{_WORD}]{{19,}}"
    rf"|(?:{_ONE_CASE})(?:\z|[^A-Za-z0-9+_-]))"
)


@functools.cache
def compiled(pattern: str) -> "re2._Regexp":
    """The pattern, compiled when a text first needs it."""
    options = re2.Options()
    options.max_mem = SEARCH_MEMORY
    return re2.compile(pattern, options)


def random_words(text: str) -> Iterator[tuple[int, int]]:
    """The words that have a vendor's form and look random, but no hashes and no wrapped base64."""
    for match in compiled(_WORDS).finditer(text):
        start, end = match.span()
        for part_start, part_end in _parts(match[0]):
            if _looks_random(match[0][part_start:part_end]) and not _explained(text, start, end):
                yield start + part_start, start + part_end


def _parts(word: str) -> Iterator[tuple[int, int]]:
    """The word, or a segment of a path, that has a form; no segment of what may be base64."""
    if compiled(_SHAPE).fullmatch(word) is not None:
        yield 0, len(word)
    elif "/" in word and "+" not in word:
        segments = word.split("/")
        mixed = [len(one) >= _SHORTEST_RANDOM_PART and _is_mixed(one) for one in segments]
        if sum(mixed) > 1:
            return
        start = 0
        for segment in segments:
            if compiled(_SHAPE).fullmatch(segment) is not None:
                yield start, start + len(segment)
            start += len(segment) + 1


def _is_mixed(word: str) -> bool:
    return not word.islower() and not word.isupper() and not word.isalpha()


def _looks_random(word: str) -> bool:
    body = word.rstrip("=")
    if _HEX.fullmatch(body) is not None or body.isalpha() or body.isdigit():
        return False
    kinds = [_kind(character) for character in body]
    changes = sum(one != next_ for one, next_ in itertools.pairwise(kinds)) / len(body)
    letters = 62
    if "l" not in kinds or "u" not in kinds:  # one case: words joined by signs are no token
        letters = 36
        if "s" in kinds or kinds.count("d") < 3 or changes < _ONE_CASE_CHANGES:
            return False
    elif "d" not in kinds or changes < _CHANGES:
        return False
    expected = letters * (1 - (1 - 1 / letters) ** len(body))
    return len(set(body)) >= _DISTINCT * expected


def _kind(character: str) -> str:
    if character.isdigit():
        return "d"
    if character.isalpha():
        return "u" if character.isupper() else "l"
    return "s"


def _explained(text: str, start: int, end: int) -> bool:
    """Check for a hash's name before the word, and for lines of wrapped base64 around it."""
    before = text[max(0, start - 24) : start]
    return (
        _HASH_NAME.search(before[-_HASH_NAME_LENGTH:]) is not None
        or _WRAPPED_BEFORE.search(before) is not None
        or _WRAPPED_AFTER.match(text, end) is not None
    )
