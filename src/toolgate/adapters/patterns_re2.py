"""Finds secrets in a text in linear time.

Known ones exactly, in every form they are likely to take (plain, hex, base64 at any alignment,
percent-encoded, escaped), by an Aho-Corasick automaton over the beginnings of the forms; others by
how they look, by RE2.
"""

import base64
import bisect
import html
import re
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import ahocorasick  # type: ignore[import-not-found]
import re2  # type: ignore[import-untyped]

from toolgate.domain.errors import Invalid
from toolgate.domain.redaction import Span

SHORTEST: Final = 4  # a shorter secret would take half of every text with it
STEM: Final = 8  # how much of a form the automaton knows; a small automaton stays in the cache
ROUNDS: Final = 3  # how often a text is unescaped: %2541, \\u0025
HELD_WORD: Final = 4096
CLOSING: Final = "-----END"

_NAMES: Final = (
    r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|private[_-]?key|secret[_-]?key"
    r"|access[_-]?key|signing[_-]?key|mnemonic|seed[_-]?phrase|credentials?)"
)
_HEADERS: Final = (
    r"(?:authorization|proxy-authorization|cookie|set-cookie|x-api-key|x-device-token"
    r"|x-gateway-token|x-auth-token|x-amz-security-token)"
)
_PRIVATE: Final = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
PATTERNS: Final = {  # group 1, where there is one, is the secret
    "bearer": r"(?i)\bbearer[ \t]+([A-Za-z0-9._~+/=-]{8,})",
    "jwt": r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)*",
    "pem": rf"(?s)-----BEGIN {_PRIVATE}.*?(?:{CLOSING} {_PRIVATE}|\z)",
    "sk": r"\b(?:sk-[A-Za-z0-9_-]{8,}|[sr]k_(?:live|test)_[A-Za-z0-9]{8,})",
    "github": r"\b(?:gh[a-z]_[A-Za-z0-9]{10,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,})",
    "aws": r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}",
    "vendor": r"\b(?:xox[abeprs]-[A-Za-z0-9-]{8,}|AIza[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{30,}"
    r"|hf_[A-Za-z0-9]{30,}|AGE-SECRET-KEY-1[A-Z0-9]{20,})",
    "userinfo": r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/\s?#\"'<>\x00]+)@",
    "query": r"(?i)[?&;#](?:[a-z0-9_.-]*" + _NAMES + r"|[a-z0-9_.-]*signature|sig|key|auth|pwd|jwt)"
    r"=([^&\s#\"'<>\x00]+)",
    "header": rf"(?i)\b{_HEADERS}[\"'\\]*[ \t]*[:=][ \t]*[\"'\\]*([^\s\"'\\\x00\[][^\r\n\"'\\\x00]*)",
    "quoted": rf"(?i){_NAMES}[\"'\\]*[ \t]*(?:=>|[:=])[ \t]*\\*(?:\"([^\"\\\x00]+)|'([^'\\\x00]+))",
    "assigned": rf"(?i){_NAMES}[\"'\\]*[ \t]*(?:=>|[:=])[ \t]*([^\s\"'\\,;&{{}}\[\]\x00]+)",
    "flag": rf"(?i)--?[a-z0-9-]*{_NAMES}[ \t]+[\"']?([^\s\"'\x00-][^\s\"'\x00]*)",
    "user": r"(?:(?:\A|\s)-u|--user)[ \t=]+[\"']?[^\s\"':]+:([^\s\"'\x00]+)",
}
_LEADS: Final = rf"(?i)(?:bearer|{_HEADERS}|{_NAMES}|--user|(?:\A|\s)-u\b|-----BEGIN)"
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_BACKSLASH: Final = re.compile(
    r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"  # one character above U+FFFF
    r"|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[nrtbf\"'\\/]"
)
_PLAIN_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_WRAPPED: Final = re.compile(r"[A-Za-z0-9+/_-]{48}\r?\n")
_BREAKS: Final = re.compile(r"\r?\n")

_Undo = Callable[[str], Iterable[tuple[str, int]]]  # an escape -> (text, how much it stood for)
_Add = Callable[[str, int], None]


class SecretPatterns:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: dict[str, int] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._longest = 0
        self._automaton: ahocorasick.Automaton | None = None
        self._set = re2.Set.SearchSet()
        self._patterns = [(kind, re2.compile(text)) for kind, text in PATTERNS.items()]
        for text in PATTERNS.values():
            self._set.Add(text)
        self._set.Compile()
        self._leads = re2.compile(_LEADS)
        for secret in secrets:
            self.learn(secret)

    def __repr__(self) -> str:
        return f"SecretPatterns({len(self._secrets)} known)"

    def learn(self, secret: str) -> None:
        """Know a secret from now on; learnt twice, it must be forgotten twice."""
        if not secret:
            return
        if len(secret) < SHORTEST:
            raise Invalid(f"a secret has at least {SHORTEST} characters", field="secret")
        count = self._secrets.get(secret, 0)
        self._secrets[secret] = count + 1
        if count == 0:
            self._automaton = None  # built anew when next asked

    def forget(self, secret: str) -> None:
        count = self._secrets.get(secret, 0)
        if count > 1:
            self._secrets[secret] = count - 1
        elif count:
            del self._secrets[secret]
            self._automaton = None

    def find(self, text: str) -> Sequence[Span]:
        spans = self._look(text)
        if "%" in text or "\\" in text or "\n" in text:
            spans += self._look_behind(_View(text), rounds=ROUNDS, seen={text})
        return spans

    def _look_behind(self, view: "_View", *, rounds: int, seen: set[str]) -> list[Span]:
        """Undo one kind of escape at a time: a secret may hold what looks like the other kind."""
        spans: list[Span] = []
        if self._secrets and _WRAPPED.search(view.text) is not None:
            unwrapped = view.replace(_BREAKS, _nothing)
            spans += map(unwrapped.original, self._known(unwrapped.text))
        if rounds == 0:
            return spans
        for sign, escapes in (("%", _PERCENT), ("\\", _BACKSLASH)):
            if sign in view.text:
                behind = view.replace(escapes, _undo)
                if behind.text not in seen:
                    seen.add(behind.text)
                    spans += map(behind.original, self._look(behind.text))
                    spans += self._look_behind(behind, rounds=rounds - 1, seen=seen)
        return spans

    def unfinished(self, text: str) -> int:
        """Hold back the last word, a known secret's beginning, and a line that announces one."""
        last_word = max(text.rfind(" "), text.rfind("\n"), text.rfind("\t")) + 1
        cut = max(last_word, len(text) - HELD_WORD)
        line = max(text.rfind("\n"), text.rfind("\r"), len(text) - HELD_WORD) + 1
        lead = self._leads.search(text[line:].encode("utf-8", "replace").decode())
        if lead is not None:  # from the word it stands in
            cut = min(cut, 1 + max(text.rfind(gap, line, line + lead.start()) for gap in " \t\n\r"))
            cut = max(cut, line)
        return min(cut, self._begun(text))

    def _begun(self, text: str) -> int:
        """Where the longest end of the text begins that is the beginning of a known form."""
        automaton = self._built()
        for start in range(max(0, len(text) - self._longest), len(text)):
            stem = text[start : start + STEM]
            if len(stem) < STEM:
                if automaton is not None and automaton.match(stem):
                    return start
            elif any(form.startswith(text[start:]) for form in self._by_stem.get(stem, ())):
                return start
        return len(text)

    def _look(self, text: str) -> list[Span]:
        spans = self._known(text) if self._secrets else []
        try:
            numbers = self._set.Match(text)
        except UnicodeEncodeError:  # bytes that are no UTF-8 came in as surrogates, one for one
            text = text.encode("utf-8", "replace").decode()
            numbers = self._set.Match(text)
        for number in numbers or ():
            kind, pattern = self._patterns[number]
            closing = CLOSING if kind == "pem" else ""
            for match in pattern.finditer(text):
                group = next((g for g in range(1, pattern.groups + 1) if match.group(g)), 0)
                start, end = match.span(group)
                spans.append(Span(start, end, kind, match.start(), closing))
        return spans

    def _known(self, text: str) -> list[Span]:
        automaton = self._built()
        if automaton is None:
            return []
        spans: list[Span] = []
        for last, stem in automaton.iter(text):
            start = last + 1 - len(stem)
            for form in self._by_stem[stem]:
                if text.startswith(form, start):
                    spans.append(Span(start, start + len(form), "known", start))
        return spans

    def _built(self) -> "ahocorasick.Automaton | None":
        if self._automaton is None and self._secrets:
            automaton = ahocorasick.Automaton()
            by_stem: dict[str, list[str]] = {}
            for secret in self._secrets:
                for form in forms(secret):
                    by_stem.setdefault(form[:STEM], []).append(form)
            for stem in by_stem:
                automaton.add_word(stem, stem)
            automaton.make_automaton()
            self._by_stem = by_stem
            self._longest = max(len(form) for all_ in by_stem.values() for form in all_)
            self._automaton = automaton
        return self._automaton if self._secrets else None


def forms(secret: str) -> set[str]:
    """The ways in which a secret may be written; escaped ones are undone before the search."""
    raw = secret.encode("utf-8", "surrogateescape")
    written = {secret, secret.strip(), raw.hex(), raw.hex().upper(), html.escape(secret)}
    plus = urllib.parse.quote_plus(secret, errors="surrogateescape")
    written |= {plus, re.sub(r"%..", lambda m: m[0].lower(), plus), secret.replace(" ", "+")}
    for shift, mixed in ((0, 0), (1, 2), (2, 3)):  # bytes before it, characters they share with it
        whole = (shift + len(raw)) * 8 // 6  # the character after may hold bits of what follows
        encoded = base64.b64encode(bytes(shift) + raw).decode()[mixed:whole]
        written |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return {form for form in written if len(form) >= SHORTEST}


class _View:
    """A text with its escapes undone, that knows where each part stood in the original."""

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
        self._end = end if end >= 0 else len(text)

    def original(self, span: Span) -> Span:
        return span._replace(
            start=self._origin(span.start),
            end=self._origin(span.end),
            anchor=self._origin(span.anchor),
        )

    def _origin(self, position: int) -> int:
        if position >= len(self.text):
            return self._end
        part = bisect.bisect_right(self._starts, position) - 1
        return self._origins[part] + position - self._starts[part]

    def replace(self, pattern: "re.Pattern[str]", undo: _Undo) -> "_View":
        pieces: list[str] = []
        starts: list[int] = []
        origins: list[int] = []
        length = position = 0

        def add(text: str, at: int) -> None:
            nonlocal length
            starts.append(length)
            origins.append(self._origin(at))
            pieces.append(text)
            length += len(text)

        for match in pattern.finditer(self.text):
            self._copy(position, match.start(), add)
            at = match.start()
            for text, width in undo(match[0]):
                add(text, at)
                at += width
            position = match.end()
        self._copy(position, len(self.text), add)
        return _View("".join(pieces), starts=starts or (0,), origins=origins or (0,), end=self._end)

    def _copy(self, start: int, end: int, add: _Add) -> None:
        """Take over a stretch, part by part, so that positions inside it stay right."""
        while start < end:
            part = bisect.bisect_right(self._starts, start)
            stop = min(end, self._starts[part]) if part < len(self._starts) else end
            add(self.text[start:stop], start)
            start = stop


def _nothing(_: str) -> Iterable[tuple[str, int]]:
    return ()


def _undo(escape: str) -> Iterable[tuple[str, int]]:
    if escape[0] == "%":
        raw = bytes.fromhex(escape.replace("%", ""))
        for character in raw.decode("utf-8", "surrogateescape"):
            yield character, 3 * len(character.encode("utf-8", "surrogateescape"))
    elif len(escape) == 12:
        pair = bytes.fromhex(escape.replace("\\u", ""))
        yield pair.decode("utf-16-be"), 12
    elif escape[1] in "ux":
        yield chr(int(escape[2:], 16)), len(escape)
    else:
        yield _PLAIN_ESCAPES.get(escape[1], escape[1]), 2
