"""Finds secrets in a text in linear time.

Known ones exactly, in every form they are likely to take (plain, hex, base64 at any alignment,
percent-encoded, escaped); others by how they look. One pass of RE2 over a text says whether there is
anything; only then an Aho-Corasick automaton and the single patterns say where.
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

from toolgate.core.errors import Invalid
from toolgate.secrets.redaction import RedactingStream, Redactor, Span

SHORTEST: Final = 4  # a shorter secret would take half of every text with it
STEM: Final = 8  # how much of a form is searched for; the rest is compared where one is found
ROUNDS: Final = 3  # how often a text is unescaped: %2541, \\u0025
HELD_WORD: Final = 4096
WRAPPED_LINE: Final = 48  # characters of base64 without a gap, before a line's end
VIEWS: Final = 12  # ways of unescaping that a stream's end is looked at in
SEARCH_MEMORY: Final = (
    64 << 20
)  # bytes; RE2 makes its automaton as texts come, and starts over here
STEM_MEMORY: Final = 2048  # bytes; with less than half of it, so many would not compile
CLOSING: Final = "-----END"
KNOWN: Final = "known"
REMEMBERED: Final = 512  # clean texts: a policy's reasons are looked through with every call
REMEMBERED_LENGTH: Final = 256

_NAMES: Final = (
    r"(?:token|secret|passw(?:or)?d|_pass|passphrase|api[_-]?key|private[_-]?key|secret[_-]?key"
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
    "user": r"(?:(?:\A|[\s\x00])-u|--user)[ \t=]+[\"']?[^\s\"':]+:([^\s\"'\x00]+)",
}
_CLOSINGS: Final = {"pem": CLOSING, "header": "\n"}  # and a quote's is the quote
_LEADS: Final = rf"(?i)(?:bearer|{_HEADERS}|{_NAMES}|--user|(?:\A|[\s\x00])-u\b|-----BEGIN)"
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_BACKSLASH: Final = re.compile(
    r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"  # one character above U+FFFF
    r"|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[nrtbf\"'\\/]"
)
_SIGNS: Final = (("%", _PERCENT), ("\\", _BACKSLASH))
_CUT_OFF: Final = re.compile(  # an escape of which only the beginning is there
    r"(?:%[0-9A-Fa-f]?|(?:\\u[dD][89abAB][0-9A-Fa-f]{2})?\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?"
    r"|\\u[dD][89abAB][0-9A-Fa-f]{2}|[\ud800-\udbff]|\r)\Z"
)
_PLAIN_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_HALF_CHARACTER: Final = "\ufffd"  # what becomes of one that was cut
_WRAPPED: Final = re.compile(rf"[A-Za-z0-9+/_-]{{{WRAPPED_LINE}}}\r?\n")
_BREAKS: Final = re.compile(r"\r?\n")

_Escapes = re.Pattern[str]
_Add = Callable[[str, int], None]


class SecretPatterns:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: dict[str, int] = {}
        self._forms: dict[str, frozenset[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._longest = 0
        self._written = ""
        self._automaton = ahocorasick.Automaton()
        self._set: re2.Set | None = None
        self._clean: set[str] = set()  # short texts that were looked through, since the last change
        self._patterns = [(kind, re2.compile(text)) for kind, text in PATTERNS.items()]
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
            self._forms[secret] = forms(secret)
            self._set = None  # built anew when next asked
            self._clean.clear()

    def forget(self, secret: str) -> None:
        count = self._secrets.get(secret, 0)
        if count > 1:
            self._secrets[secret] = count - 1
        elif count:
            del self._secrets[secret], self._forms[secret]
            self._set = None

    def find(self, text: str) -> Sequence[Span]:
        if text in self._clean:
            return ()
        spans = self._look(text)
        if "%" in text or "\\" in text or "\n" in text:
            spans += self._look_behind(text, text, (), seen={text})
        if not spans and len(text) <= REMEMBERED_LENGTH:
            if len(self._clean) >= REMEMBERED:
                self._clean.clear()
            self._clean.add(text)
        return spans

    def is_clean(self, text: str) -> bool:
        """Whether `find` would find nothing; cheaper, where it would find something."""
        if self._look(text):
            return False
        return not ("%" in text or "\\" in text or "\n" in text) or not self._look_behind(
            text, text, (), seen={text}
        )

    def halves(self, text: str) -> Sequence[Span]:
        """Where a text that was cut begins with a known secret's rest, or ends with its beginning."""
        self._built()
        whole = text.rstrip(_HALF_CHARACTER)
        begun = self._begun_anywhere(whole)
        start = len(text) - len(text.lstrip(_HALF_CHARACTER))
        ended = start + self._rest(text[start:])
        spans = [Span(0, ended, KNOWN, 0), Span(begun, len(text), KNOWN, begun)]
        shown = (ended - start, len(whole) - begun)
        return [span for span, size in zip(spans, shown, strict=True) if size >= STEM]

    def _rest(self, text: str) -> int:
        """How far the longest beginning of the text reaches that is the end of a known form."""
        head, longest = text[:STEM], 0
        if len(head) == STEM and head in self._written:
            for forms_ in self._forms.values():
                for form in forms_:
                    at = form.find(head)
                    while at >= 0:
                        if text.startswith(form[at:]):
                            longest = max(longest, len(form) - at)
                        at = form.find(head, at + 1)
        return longest

    def redactor(self) -> Redactor:
        return Redactor(
            self.find, unfinished=self.unfinished, is_clean=self.is_clean, halves=self.halves
        )

    def known_stream(self) -> RedactingStream:
        """For words that must stay readable: what merely looks like a secret is left in them."""
        return RedactingStream(
            self._find_known, unfinished=self._begun_anywhere, look_back=WRAPPED_LINE
        )

    def _find_known(self, text: str) -> list[Span]:
        return [span for span in self.find(text) if span.kind == KNOWN]

    def _look_behind(
        self, original: str, text: str, undone: tuple[_Escapes, ...], *, seen: set[str]
    ) -> list[Span]:
        """Undo one kind of escape at a time: a secret may hold what looks like the other kind."""
        spans: list[Span] = []
        if self._secrets and _WRAPPED.search(text) is not None:
            found = [
                span._replace(anchor=max(0, span.start - WRAPPED_LINE))
                for span in self._known(_BREAKS.sub("", text))
            ]
            spans += _placed(found, original, (*undone, _BREAKS))
        if len(undone) == ROUNDS:
            return spans
        for sign, escapes in _SIGNS:
            if sign in text:
                behind = escapes.sub(_unescaped, text)
                if behind not in seen:
                    seen.add(behind)
                    chain = (*undone, escapes)
                    spans += _placed(self._look(behind), original, chain)
                    spans += self._look_behind(original, behind, chain, seen=seen)
        return spans

    def unfinished(self, text: str) -> int:
        """Hold back the last word, a known secret's beginning, and a line that announces one."""
        last_word = max(text.rfind(" "), text.rfind("\n"), text.rfind("\t")) + 1
        cut = max(last_word, len(text) - HELD_WORD)
        line = max(text.rfind("\n"), text.rfind("\r"), len(text) - HELD_WORD) + 1
        lead = self._leads.search(_replaced(text[line:]))
        if lead is not None:  # from the word it stands in
            cut = min(cut, 1 + max(text.rfind(gap, line, line + lead.start()) for gap in " \t\n\r"))
            cut = max(cut, line)
        return min(cut, self._begun_anywhere(text))

    def _begun_anywhere(self, text: str) -> int:
        """Where the end of the text begins that may be a known secret's beginning."""
        cut = self._begun(text)
        if self._secrets and any(sign in text for sign in "%\\\n"):
            start = max(0, len(text) - HELD_WORD)
            cut = min(cut, start + self._begun_behind(_View(text[start:]), seen=set()))
        return cut

    def _begun_behind(self, view: "_View", *, seen: set[str]) -> int:
        """As `_begun`, for a secret that is escaped or wrapped, and cut off anywhere in that."""
        begun = view.end
        undoable = [escapes for sign, escapes in _SIGNS if sign in view.text]
        if _WRAPPED.search(view.text) is not None:
            undoable.append(_BREAKS)
        for escapes in undoable:
            behind = view.undo(escapes)
            if behind.text in seen or len(seen) > VIEWS:
                continue
            seen.add(behind.text)
            whole = _CUT_OFF.sub("", behind.text)
            start = self._begun(whole)
            if start < len(whole):
                line = WRAPPED_LINE if escapes is _BREAKS else 0  # by which it is known again
                begun = min(begun, behind.origin(max(0, start - line)))
            begun = min(begun, self._begun_behind(behind, seen=seen))
        return begun

    def _begun(self, text: str) -> int:
        """Where the longest end of the text begins that is the beginning of a known form."""
        self._built()
        for start in range(max(0, len(text) - self._longest), len(text)):
            stem = text[start : start + STEM]
            if len(stem) < STEM:
                if self._automaton.match(stem):
                    return start
            elif any(form.startswith(text[start:]) for form in self._by_stem.get(stem, ())):
                return start
        return len(text)

    def _look(self, text: str) -> list[Span]:
        searched = self._set or self._built()
        try:
            numbers = searched.Match(text)
        except UnicodeEncodeError:  # bytes that are no UTF-8 came in as surrogates, one for one
            numbers = searched.Match(_replaced(text))
        if not numbers:
            return []
        spans: list[Span] = []
        for number in numbers:
            if number < len(self._patterns):
                spans += self._matches(number, text)
            else:
                spans += self._known(text)
        return spans

    def _matches(self, number: int, text: str) -> Iterable[Span]:
        kind, pattern = self._patterns[number]
        closing = _CLOSINGS.get(kind, "")
        for match in pattern.finditer(_replaced(text)):
            group = next((g for g in range(1, pattern.groups + 1) if match.group(g)), 0)
            start, end = match.span(group)
            if kind == "quoted":
                closing = text[start - 1]
            yield Span(start, end, kind, match.start(), closing)

    def _known(self, text: str) -> list[Span]:
        self._built()
        if not self._secrets:
            return []
        spans: list[Span] = []
        for last, stem in self._automaton.iter(text):
            start = last + 1 - len(stem)
            for form in self._by_stem[stem]:
                if text.startswith(form, start):
                    spans.append(Span(start, start + len(form), KNOWN, start))
        return spans

    def _built(self) -> "re2.Set":
        if self._set is not None:
            return self._set
        by_stem: dict[str, list[str]] = {}
        for written in self._forms.values():
            for form in written:
                by_stem.setdefault(form[:STEM], []).append(form)
        automaton = ahocorasick.Automaton()
        for stem in by_stem:
            automaton.add_word(stem, stem)
        automaton.make_automaton()
        options = re2.Options()
        options.max_mem = max(SEARCH_MEMORY, STEM_MEMORY * len(by_stem))
        options.never_capture = True
        searched = re2.Set.SearchSet(options)
        for text in PATTERNS.values():
            searched.Add(text)
        if by_stem:  # the number after the patterns'
            searched.Add("|".join(re2.escape(_replaced(stem)) for stem in by_stem))
        searched.Compile()
        self._by_stem, self._automaton, self._set = by_stem, automaton, searched
        self._written = "\0".join(form for all_ in by_stem.values() for form in all_)
        self._longest = max((len(form) for all_ in by_stem.values() for form in all_), default=0)
        return searched


def _replaced(text: str) -> str:
    """With what has no UTF-8 replaced, character for character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def forms(secret: str) -> frozenset[str]:
    """The ways in which a secret may be written; escaped ones are undone before the search."""
    raw = secret.encode("utf-8", "surrogateescape")
    written = {secret, secret.strip(), raw.hex(), raw.hex().upper(), html.escape(secret)}
    written.add(raw.decode("latin-1"))  # its bytes escaped one by one, as in b'\xc3\xa9'
    plus = urllib.parse.quote_plus(secret, errors="surrogateescape")
    written |= {plus, re.sub(r"%..", lambda m: m[0].lower(), plus), secret.replace(" ", "+")}
    for shift, mixed in ((0, 0), (1, 2), (2, 3)):  # bytes before it, characters they share with it
        whole = (shift + len(raw)) * 8 // 6  # the character after may hold bits of what follows
        encoded = base64.b64encode(bytes(shift) + raw).decode()[mixed:whole]
        written |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return frozenset(form for form in written if len(form) >= SHORTEST)


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

    def undo(self, escapes: _Escapes) -> "_View":
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
        return _View("".join(pieces), starts=starts or (0,), origins=origins or (0,), end=self.end)

    def _copy(self, start: int, end: int, add: _Add) -> None:
        """Take over a stretch, part by part, so that positions inside it stay right."""
        while start < end:
            part = bisect.bisect_right(self._starts, start)
            stop = min(end, self._starts[part]) if part < len(self._starts) else end
            add(self.text[start:stop], start)
            start = stop


def _placed(spans: Sequence[Span], original: str, undone: Iterable[_Escapes]) -> list[Span]:
    """Where the spans of an unescaped text stand in the original; worked out only if there are any."""
    if not spans:
        return []
    view = _View(original)
    for escapes in undone:
        view = view.undo(escapes)
    return [view.original(span) for span in spans]


def _unescaped(match: "re.Match[str]") -> str:
    escape = match[0]
    if escape[0] == "%":
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "surrogateescape")
    if len(escape) == 2:
        return _PLAIN_ESCAPES.get(escape[1], escape[1])
    return "".join(text for text, _ in _undo(escape))


def _undo(escape: str) -> Iterable[tuple[str, int]]:
    """What an escape stands for, and how much of it each character takes up."""
    if escape[0] in "\r\n":
        return
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
