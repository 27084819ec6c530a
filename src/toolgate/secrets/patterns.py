"""Finds secrets in a text in linear time.

Known ones exactly, in every form of `writings.py`; others by a vendor's format (`formats.py`) or by the
name they stand under. One pass of RE2 over a text decides if there is anything; only then an Aho-Corasick
automaton and the single patterns find where.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import ahocorasick  # type: ignore[import-not-found]
import re2  # type: ignore[import-untyped]

from toolgate.core.errors import Invalid
from toolgate.secrets.formats import (
    RANDOM_WORDS,
    SEARCH_MEMORY,
    TOKENS,
    TOKENS_GATE,
    compiled,
    random_words,
)
from toolgate.secrets.redaction import RedactingStream, Redactor, Span, looks_random
from toolgate.secrets.writings import (
    BREAKS,
    CUT_OFF,
    DUMPED,
    ESCAPES,
    GAP,
    GAPS,
    JOINS,
    OPEN_JOINS,
    SHORTEST,
    WRAPPED,
    WRAPPED_GATE,
    WRAPPED_LINE,
    Escapes,
    View,
    forms,
    grouped_forms,
    in_groups,
    placed,
    unescaped,
    without_gaps,
)

STEM: Final = 8  # how much of a form is searched for; the rest is compared where one is found
ROUNDS: Final = 3  # how often a text is unescaped: %2541, \\u0025
HELD_WORD: Final = 4096
VIEWS: Final = 12  # ways of unescaping that a stream's end is looked at in
STEM_MEMORY: Final = 2048  # bytes; with less than half of it, so many would not compile
CLOSING: Final = "-----END"
KNOWN: Final = "known"
TOKEN: Final = "token"  # noqa: S105 - a kind of span
RANDOM: Final = "random"
NEAR: Final = "near"  # a telling name, with no sign between
REMEMBERED: Final = 512  # clean texts: a policy's reasons are looked through with every call
REMEMBERED_LENGTH: Final = 256

_NAMES: Final = (
    r"(?:token|secret|passw(?:or)?d|_pass|passphrase|api[_-]?key|private[_-]?key|secret[_-]?key"
    r"|access[_-]?key|signing[_-]?key|mnemonic|seed[_-]?phrase|credentials?)"
)
_SPOKEN_WORD: Final = r"\b(?:api|access|secret|private|signing)"
_SPOKEN: Final = rf"{_SPOKEN_WORD}[ \t]key"
_HEADERS: Final = (
    r"(?:authorization|proxy-authorization|cookie|set-cookie|x-api-key|x-device-token"
    r"|x-gateway-token|x-auth-token|x-amz-security-token)"
)
_PRIVATE: Final = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
PATTERNS: Final = {  # group 1, where there is one, is the secret
    "bearer": r"(?i)\bbearer[ \t]+([A-Za-z0-9._~+/=-]{8,})",
    "jwt": r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)*",
    "pem": rf"(?s)-----BEGIN {_PRIVATE}.*?(?:{CLOSING} {_PRIVATE}|\z)",
    "userinfo": r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/\s?#\"'<>\x00]+)@",
    "query": r"(?i)[?&;#](?:[a-z0-9_.-]*" + _NAMES + r"|[a-z0-9_.-]*signature|sig|key|auth|pwd|jwt)"
    r"=([^&\s#\"'<>\x00]+)",
    "header": rf"(?i)\b{_HEADERS}[\"'\\]*[ \t]*[:=][ \t]*[\"'\\]*([^\s\"'\\\x00\[][^\r\n\"'\\\x00]*)",
    "quoted": rf"(?i){_NAMES}[\"'\\]*[ \t]*(?:=>|[:=])[ \t]*\\*(?:\"([^\"\\\x00]+)|'([^'\\\x00]+))",
    "assigned": rf"(?i){_NAMES}[\"'\\]*[ \t]*(?:=>|[:=])[ \t]*([^\s\"'\\,;&{{}}\[\]\x00]+)",
    "flag": rf"(?i)--?[a-z0-9-]*{_NAMES}[ \t]+[\"']?([^\s\"'\x00-][^\s\"'\x00]*)",
    NEAR: rf"(?i)(?:{_SPOKEN}|{_NAMES})(?:[ \t]+(?:is|was|now|value|header))?[ \t:=]+[\"'`]?"
    r"([a-z0-9+/_-]{20,}={0,2})",
    "user": r"(?:(?:\A|[\s\x00])-u|--user)[ \t=]+[\"']?[^\s\"':]+:([^\s\"'\x00]+)",
    TOKEN: TOKENS_GATE,
    RANDOM: RANDOM_WORDS,
}
_CLOSINGS: Final = {"pem": CLOSING, "header": "\n"}  # and a quote's is the quote
_LEADS: Final = (
    rf"(?i)(?:bearer|{_HEADERS}|{_NAMES}|{_SPOKEN}|{_SPOKEN_WORD}(?:[ \t]k?e?y?)?\z"
    r"|--user|(?:\A|[\s\x00])-u\b|-----BEGIN)"
)
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HALF_CHARACTER: Final = "\ufffd"  # what becomes of one that was cut
_DUMP_LINE: Final = re.compile(
    r"(?:^|\s)[0-9A-Fa-f]{6,16}:?[ \t]{1,3}(?=[0-9A-Fa-f]{2,8}[ \t]|[0-9A-Fa-f]{0,8}\Z)"
)


class SecretPatterns:
    def __init__(
        self,
        secrets: Iterable[str] | Mapping[str, str] = (),
        *,
        looks: bool = True,
        shortest: int = SHORTEST,
    ) -> None:
        """`looks`: find unknown secrets too. `shortest`: the length from which one can be learnt.

        A mapping has the name of each secret.
        """
        self._patterns = PATTERNS if looks else {}
        self._kinds = tuple(self._patterns)
        self._shortest = shortest
        self._secrets: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._forms: dict[str, frozenset[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._longest = 0
        self._written = ""
        self._automaton = ahocorasick.Automaton()
        self._set: re2.Set | None = None
        self._clean: set[str] = set()  # short texts that were looked through, since the last change
        names = secrets if isinstance(secrets, Mapping) else {}
        for secret in secrets:
            self.learn(secret, names.get(secret, ""))

    def __repr__(self) -> str:
        return f"SecretPatterns({len(self._secrets)} known)"

    def learn(self, secret: str, name: str = "") -> None:
        """Know a secret from now on; learnt twice, it must be forgotten twice.

        An approver sees the name in its place; two secrets never have the same.
        """
        if not secret:
            return
        if len(secret) < self._shortest:
            raise Invalid(f"a secret has at least {self._shortest} characters", field="secret")
        count = self._secrets.get(secret, 0)
        self._secrets[secret] = count + 1
        if count == 0:
            self._forms[secret] = forms(secret)
            self._names[secret] = self._free(name or "unnamed")
            self._set = None  # built anew when next asked
            self._clean.clear()

    def forget(self, secret: str) -> None:
        count = self._secrets.get(secret, 0)
        if count > 1:
            self._secrets[secret] = count - 1
        elif count:
            del self._secrets[secret], self._forms[secret], self._names[secret]
            self._set = None

    def _free(self, name: str) -> str:
        taken = set(self._names.values())
        numbered = (f"{name} {number}" for number in itertools.count(2))
        return name if name not in taken else next(one for one in numbered if one not in taken)

    def exact(self, text: str) -> list[tuple[int, int, str]]:
        """The places of known secrets that stand in a text as they are, each with its name."""
        return [
            (span.start, span.end, self._names[secret])
            for span in self._known(text)
            if (secret := text[span.start : span.end]) in self._names
        ]

    def find(self, text: str) -> Sequence[Span]:
        is_short = len(text) <= REMEMBERED_LENGTH
        if is_short and text in self._clean:
            return ()
        numbers = self._numbers(text)
        if numbers or "%" in text or "\\" in text or "&" in text:
            spans = self._search(text, text, numbers, (), seen={text})
            if spans:
                return spans
        if is_short:
            if len(self._clean) >= REMEMBERED:
                self._clean.clear()
            self._clean.add(text)
        return ()

    def find_known(self, text: str) -> Sequence[Span]:
        return [span for span in self.find(text) if span.kind == KNOWN]

    def halves(self, text: str) -> Sequence[Span]:
        """The parts of known secrets at the beginning and the end of a text that was cut."""
        self._built()
        whole = text.rstrip(_HALF_CHARACTER)
        begun = self._begun_anywhere(whole)
        start = len(text) - len(text.lstrip(_HALF_CHARACTER))
        ended = start + self._rest(text[start:])
        spans = [Span(0, ended, KNOWN, 0), Span(begun, len(text), KNOWN, begun)]
        shown = (ended - start, len(whole) - begun)
        return [span for span, size in zip(spans, shown, strict=True) if size >= STEM]

    def _rest(self, text: str) -> int:
        """Length of the longest beginning of the text that is the end of a known form."""
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
        return Redactor(self.find, unfinished=self.unfinished, halves=self.halves)

    def known_stream(self) -> RedactingStream:
        """A stream that removes known secrets only: its words must stay readable."""
        return RedactingStream(
            self.find_known, unfinished=self._begun_anywhere, look_back=WRAPPED_LINE
        )

    def _search(
        self,
        original: str,
        text: str,
        numbers: Sequence[int],
        undone: tuple[Escapes, ...],
        *,
        seen: set[str],
    ) -> list[Span]:
        """Undo one kind of escape at a time: a secret may hold what looks like the other kind."""
        spans = placed(self._spans(text, numbers), original, undone)
        if len(undone) == ROUNDS:
            return spans
        for sign, escapes in ESCAPES:
            if sign in text:
                behind = escapes.sub(unescaped, text)
                if behind not in seen:
                    seen.add(behind)
                    chain = (*undone, escapes)
                    spans += self._search(original, behind, self._numbers(behind), chain, seen=seen)
        return spans

    def _numbers(self, text: str) -> Sequence[int]:
        """The parts of the search that find something: a kind each, then known secrets, layouts."""
        searched = self._set or self._built()
        try:
            return searched.Match(text) or ()
        except UnicodeEncodeError:  # bytes that are no UTF-8 came in as surrogates, one for one
            return searched.Match(_replaced(text)) or ()

    def _spans(self, text: str, numbers: Sequence[int]) -> list[Span]:
        spans: list[Span] = []
        for number in numbers:
            if number < len(self._kinds):
                spans += self._matches(self._kinds[number], text)
            elif number == len(self._kinds):
                spans += self._known(text)
            elif number == len(self._kinds) + 1 or _is_wrapped(text):
                spans += self._laid_out(text)
        return spans

    def _laid_out(self, text: str) -> Iterator[Span]:
        """Known secrets in wrapped base64, in groups, and in a hex dump."""
        if _is_wrapped(text):
            for span in self._without(BREAKS, text):
                yield span._replace(anchor=max(0, span.start - WRAPPED_LINE))
        if next(self._known(without_gaps(text)), None) is not None:
            for span in self._without(GAPS, text):
                if in_groups(text[span.start : span.end]):
                    yield span
        dumps = [dump.start() for dump in _DUMP_LINE.finditer(text)]
        for span in self._without(JOINS, text) if dumps else ():
            line_end = text.find("\n", span.end)  # the text column shows the bytes once more
            yield span._replace(
                end=line_end if line_end >= 0 else len(text),
                anchor=max((dump for dump in dumps if dump < span.start), default=span.start),
            )

    def _without(self, layout: Escapes, text: str) -> Iterator[Span]:
        found = list(self._known(layout.sub("", text)))
        view = View(text).undo(layout) if found else None
        for span in found:
            assert view is not None
            start = view.origin(span.start)
            yield Span(start, view.origin(span.end - 1) + 1, KNOWN, start)

    def unfinished(self, text: str) -> int:
        """Hold back the last word, a known secret's beginning, and a line that announces one."""
        last_word = max(text.rfind(" "), text.rfind("\n"), text.rfind("\t")) + 1
        cut = max(last_word, len(text) - HELD_WORD)
        line = max(text.rfind("\n"), text.rfind("\r"), len(text) - HELD_WORD) + 1
        lead = compiled(_LEADS).search(_replaced(text[line:]))
        if lead is not None:  # from the word it stands in
            cut = min(cut, 1 + max(text.rfind(gap, line, line + lead.start()) for gap in " \t\n\r"))
            cut = max(cut, line)
        return min(cut, self._begun_anywhere(text))

    def _begun_anywhere(self, text: str) -> int:
        """Start of the text's last part that may be the beginning of a known secret."""
        cut = self._begun(text)
        if self._secrets:
            start = max(0, len(text) - HELD_WORD)
            tail = text[start:]
            cut = min(cut, start + self._begun_in_groups(tail))
            dumps = list(_DUMP_LINE.finditer(tail))
            if dumps or any(sign in tail for sign in "%\\&\n"):
                cut = min(cut, start + self._begun_behind(View(tail), seen=set()))
            for dump in dumps:  # its line is known by its offset: held back whole
                end = tail.find("\n", dump.end())
                if end < 0 or dump.start() < cut - start <= end:
                    cut = min(cut, start + dump.start())
        return cut

    def _begun_in_groups(self, text: str) -> int:
        """`_begun` for a secret with gaps between its characters."""
        squeezed = without_gaps(text)
        left = len(squeezed) - self._begun(squeezed)
        start = len(text)
        while left:
            start -= 1
            left -= text[start] not in " \t,:-"
        return start

    def _begun_behind(self, view: View, *, seen: set[str]) -> int:
        """`_begun` for a secret that is escaped, wrapped or dumped, and cut off anywhere in that."""
        begun = view.end
        undoable = [escapes for sign, escapes in ESCAPES if sign in view.text]
        if _is_wrapped(view.text):
            undoable.append(BREAKS)
        if _DUMP_LINE.search(view.text) is not None:
            undoable.append(OPEN_JOINS)
        for escapes in undoable:
            behind = view.undo(escapes)
            if behind.text in seen or len(seen) > VIEWS:
                continue
            seen.add(behind.text)
            whole = CUT_OFF.sub("", behind.text)
            start = self._begun(whole)
            if start < len(whole):
                line = WRAPPED_LINE if escapes is BREAKS else 0  # by which it is known again
                begun = min(begun, behind.origin(max(0, start - line)))
            begun = min(begun, self._begun_behind(behind, seen=seen))
        return begun

    def _begun(self, text: str) -> int:
        """Start of the longest end of the text that is the beginning of a known form."""
        self._built()
        if not self._secrets:
            return len(text)
        first = max(0, len(text) - self._longest)
        begun = len(text)
        for last, stem in self._automaton.iter(text, first):
            start = last + 1 - len(stem)
            rest = text[start:]
            if start < begun and any(form.startswith(rest) for form in self._by_stem[stem]):
                begun = start
        ends = range(max(first, len(text) - STEM + 1), begun)
        return next((start for start in ends if self._automaton.match(text[start:])), begun)

    def _matches(self, kind: str, text: str) -> Iterator[Span]:
        if kind == RANDOM:
            yield from (
                Span(start, end, kind, start) for start, end in random_words(_replaced(text))
            )
            return
        pattern = compiled(TOKENS if kind == TOKEN else self._patterns[kind])
        closing = _CLOSINGS.get(kind, "")
        for match in pattern.finditer(_replaced(text)):
            group = next((g for g in range(1, pattern.groups + 1) if match.group(g)), 0)
            start, end = match.span(group)
            if kind == NEAR and not (looks_random(match[1]) or _UUID.fullmatch(match[1])):
                continue
            if kind == "quoted":
                closing = text[start - 1]
            yield Span(start, end, kind, match.start(), closing)

    def _known(self, text: str) -> Iterator[Span]:
        self._built()
        if not self._secrets:
            return
        for last, stem in self._automaton.iter(text):
            start = last + 1 - len(stem)
            for form in self._by_stem[stem]:
                if text.startswith(form, start):
                    yield Span(start, start + len(form), KNOWN, start)

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
        for text in self._patterns.values():
            searched.Add(text)
        if by_stem:  # the numbers after the patterns'
            # Sorted: RE2 shares what neighbours have in common, and is 100 times faster for it.
            searched.Add("|".join(re2.escape(_replaced(stem)) for stem in sorted(by_stem)))
            grouped = {form[:STEM] for one in self._secrets for form in grouped_forms(one)}
            searched.Add("|".join([DUMPED, *_with_gaps(sorted(map(_replaced, grouped)))]))
            searched.Add(WRAPPED_GATE)
        searched.Compile()
        self._by_stem, self._automaton, self._set = by_stem, automaton, searched
        self._written = "\0".join(form for all_ in by_stem.values() for form in all_)
        self._longest = max((len(form) for all_ in by_stem.values() for form in all_), default=0)
        return searched


def _with_gaps(stems: Sequence[str]) -> Iterator[str]:
    """Patterns of these sorted texts, of one length, with gaps between their characters."""
    for first, group in itertools.groupby(stems, key=lambda stem: stem[0]):
        rests = "|".join(_with_gaps([stem[1:] for stem in group if len(stem) > 1]))
        yield f"{re2.escape(first)}{GAP}*(?:{rests})" if rests else re2.escape(first)


def _is_wrapped(text: str) -> bool:
    return compiled(WRAPPED).search(_replaced(text)) is not None


def _replaced(text: str) -> str:
    """The text with what has no UTF-8 replaced, character for character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
