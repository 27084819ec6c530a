"""The shell parser on tree-sitter-bash.

It walks the whole tree: a command inside a substitution, a here-document or a function body is a
command. Whatever is not a static word makes the script one that no allow matches.
"""

import re
import threading
import time
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from toolgate.policy.shell import (
    MAX_COMMANDS,
    SHELLS,
    Command,
    Script,
    TooComplex,
    Unknown,
    Word,
    base_name,
    check_size,
    crude_commands,
    has_control_characters,
    is_bare,
    plain_commands,
    script_of,
)

_LANGUAGE: Final = Language(tree_sitter_bash.language())
_STRUCTURE: Final = frozenset({"program", "list", "pipeline"})
_OPERATORS: Final = frozenset({"&&", "||", ";", "|", "\n"})
_NAMED_BY_KEYWORD: Final = frozenset({"declaration_command", "unset_command", "test_command"})
_BARE_KINDS: Final = frozenset({"word", "number", "variable_name", "test_operator"})
_PLAIN_KINDS: Final = frozenset(
    {*_STRUCTURE, *_OPERATORS, "command", "command_name", "word", "number"}
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES: Final = re.compile(r'\\(["$`\\])')
_GLOB: Final = re.compile(r"[*?\[{~!]")
_CONTINUED: Final = re.compile(rb"(?:\\\n)*")  # lines that are one line for a shell
_CLOSINGS: Final = frozenset({">&-", "<&-"})  # redirections without a target
_UNREAD: Final = frozenset({"word", "regex", "raw_string"})  # may hold what the grammar didn't read
_HERE_NAME: Final = re.compile(r"""\\?[A-Za-z0-9_.-]+|'[^']+'|"[^"$`\\]+\"""")
_NO_SUBSTITUTION: Final = re.compile(r"\\[`$]")
_NESTED: Final = re.compile(r"\$\([^()`]*(?:`|\$\()")
_SUBSTITUTION: Final = re.compile(r"`([^`]*)`|\$\(([^()`]*)")
_ANSI_ESCAPE: Final = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(.))", re.DOTALL
)
_ANSI_NAMED: Final = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?", "c": None, "x": None, "u": None, "U": None,
}  # fmt: skip
_MAX_DEPTH: Final = 200  # nested nodes; a person's command has some ten
_SHORT: Final = 1024  # bytes; the worst of them takes some hundredths of a second
_PIECE: Final = 64  # bytes of a long one at a time, so that the clock is looked at often
_MAX_SECONDS: Final = 0.25  # of processor time; a long script that is in order takes a fifth of it


class TreeSitterShellParser:
    """A `ParseShell`; may be called from any thread."""

    def __init__(self) -> None:
        self._parser = Parser(_LANGUAGE)
        self._lock = threading.Lock()  # the parser inside keeps state

    def __call__(self, text: str, /) -> Script:
        """Every simple command of the text, with an obstacle where any part is not static.

        Never raises for what a text says; raises TooComplex where there is too much of it.
        """
        check_size(text)
        if has_control_characters(text):
            # The grammar takes seconds over some of them, and shells disagree about the rest.
            commands = tuple(crude_commands(text))
            return script_of(commands, plain=None, obstacle="control or invisible characters")
        source = text.encode()
        with self._lock:
            root = self._parse(source)
        plain = plain_commands(text)
        broken = root.has_error
        if plain is not None and not broken and _bare_commands(root, source) == plain:
            return script_of(plain, plain=plain)
        reading = _Reading(source, is_plain=plain is not None)
        reading.visit(root, 0)
        if broken or reading.is_doubtful:
            commands = (*reading.commands, *crude_commands(text))
            return script_of(commands, plain=None, obstacle="it cannot be parsed")
        return script_of(tuple(reading.commands), plain=plain, obstacle=reading.obstacle)

    def _parse(self, source: bytes) -> Node:
        """Raises TooComplex: over what is not in order, the time can grow with the square of it.

        It cannot be stopped, and lets no other thread run meanwhile, but it can be told that the
        text has ended.
        """
        if len(source) <= _SHORT:
            return self._parser.parse(source).root_node
        deadline = time.thread_time() + _MAX_SECONDS
        is_late = False

        def read(offset: int, _: object) -> bytes:
            nonlocal is_late
            is_late = is_late or time.thread_time() > deadline
            return b"" if is_late else source[offset : offset + _PIECE]

        root = self._parser.parse(read).root_node
        if is_late:
            raise TooComplex(f"a command that takes more than {_MAX_SECONDS} s to parse")
        return root


def _bare_commands(root: Node, source: bytes) -> tuple[Command, ...] | None:
    """The commands of a tree in which there is nothing but bare words and operators.

    Most commands are so, and this is three times as fast as the walk that understands them all.
    """
    commands: list[list[str]] = []
    cursor = root.walk()
    while True:
        node = cursor.node
        kind = node.type if node is not None else ""
        if kind not in _PLAIN_KINDS:
            return None
        if kind == "command":
            commands.append([])
        elif node is not None and kind in _BARE_KINDS:
            if not commands:
                return None
            commands[-1].append(source[node.start_byte : node.end_byte].decode())
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return tuple(tuple(words) for words in commands)


class _Reading:
    """One walk over one tree."""

    __slots__ = ("_is_plain", "_source", "commands", "is_doubtful", "obstacle")

    def __init__(self, source: bytes, *, is_plain: bool) -> None:
        self._source = source
        self._is_plain = is_plain  # so that no word need be looked at for what is special
        self.commands: list[Command] = []
        self.obstacle = ""
        self.is_doubtful = False  # whether a shell may read more in it than the grammar does

    def visit(self, node: Node, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise TooComplex(f"a command nested more than {_MAX_DEPTH} deep")
        kind = node.type
        if kind == "command":
            self._command(node, depth)
        elif kind in _STRUCTURE:
            for child in node.children:
                kind = child.type
                if kind == "command":
                    self._command(child, depth + 1)
                elif child.is_named:
                    self.visit(child, depth + 1)
                elif kind not in _OPERATORS:
                    self._hinder(kind)
        elif kind in _NAMED_BY_KEYWORD:
            self._hinder(kind)
            self._add([self._word(child, child.type, depth + 1) for child in node.children])
        elif kind == "redirected_statement":
            self._redirected(node, depth)
        else:
            self._hinder(kind)
            if kind in _UNREAD and "`" in (text := self._text(node)):
                self._add_crude(text)  # the default in ${x:-`...`}
            for child in node.named_children:
                self.visit(child, depth + 1)

    def _command(self, node: Node, depth: int) -> None:
        words: list[Word] = []
        given: list[Word] = []  # to its standard input
        end = 0
        for child in node.children:
            kind = child.type
            if kind == "word":
                word = self._word(child, kind, depth + 1)
            elif kind == "command_name":
                name = child.children[0]
                word = self._word(name, name.type, depth + 1)
            elif kind == "herestring_redirect":
                self._hinder(kind)
                self._further(child, given, depth)
                continue
            elif kind == "variable_assignment" or kind.endswith("_redirect"):
                self._hinder(kind)
                self.visit(child, depth + 1)
                continue
            elif kind == "comment":
                self.is_doubtful = True  # a command ends before it
                continue
            elif child.is_named:
                word = self._word(child, kind, depth + 1)
            elif kind in {"$", "<", ">", "<<", "&"}:
                self._hinder(kind)
                word = self._text(child)[: -len(kind)]  # in -$"x" the sign has the dash with it
                if not word:
                    continue
            else:
                word = self._text(child)
            self._put(words, word, child, end)
            end = child.end_byte
        self._add(words)
        self._feed(tuple(words), given)

    def _put(self, words: list[Word], word: Word, node: Node, end: int) -> None:
        """Add a word; to the last one, where no blank is between them but the grammar took two."""
        before = self._source[end : node.start_byte + 1] if words else b" "
        if b"\n" in before and b"\n" in before.replace(b"\\\n", b""):
            self.is_doubtful = True  # the grammar does not see the end of a line before \\
        elif b"\\" in before[:-1].replace(b"\\\n", b""):
            self.is_doubtful = True  # nor the blank in 'a'\\ 'b', which is one word
        elif _CONTINUED.fullmatch(before[:-1]) and words:
            self._hinder("a word in pieces")
            words[-1] = self._joined([words[-1], word])
            return
        words.append(word)

    def _redirected(self, node: Node, depth: int) -> None:
        """In `rm > x -rf /` all but the x are the command's words."""
        self._hinder(node.type)
        before = len(self.commands)
        command: Command = ()
        further: list[Word] = []
        given: list[Word] = []
        for child in node.named_children:
            if child.type.endswith("_redirect"):
                further += self._further(child, given, depth + 1)
            else:
                self.visit(child, depth + 1)
                command = self.commands[-1] if len(self.commands) > before else ()
        if command and further:
            command = (*command, *further)
            self._add(list(command))
        self._feed(command, given)

    def _further(self, node: Node, given: list[Word], depth: int) -> list[Word]:
        """The words that stand behind a redirection's target; `given` gets what it holds."""
        words: list[Word] = []
        further: list[Word] = []
        end = 0
        name = ""
        is_here_document = node.type == "heredoc_redirect"
        arguments = node.children_by_field_name("argument")
        for child in node.named_children:
            kind = child.type
            if kind.endswith("_redirect"):
                further += self._further(child, given, depth + 1)
            elif kind == "heredoc_start":
                name = self._text(child)
                if _HERE_NAME.fullmatch(name) is None:
                    self.is_doubtful = True
            elif kind == "heredoc_end":
                if not self._text(child):
                    self.is_doubtful = True
            elif kind == "heredoc_body":
                text = self._text(child)
                given.append(text)
                self.visit(child, depth + 1)
                if set(name).isdisjoint("'\"\\"):  # it is not quoted, so what it holds is run
                    self._add_crude(text)
            elif is_here_document and child not in arguments:
                self.visit(child, depth + 1)
            elif kind != "file_descriptor":
                self._put(words, self._word(child, kind, depth + 1), child, end)
                end = child.end_byte
        if node.type == "herestring_redirect":
            given += words
            return further
        closes = any(child.type in _CLOSINGS for child in node.children)
        return further + words[not (is_here_document or closes) :]

    def _feed(self, command: Command, given: list[Word]) -> None:
        """What a shell reads from its standard input are commands as well."""
        if given and any(base_name(word) in SHELLS for word in command):
            self._add([*command, *given])

    def _add(self, words: list[Word]) -> None:
        if words:
            self.commands.append(tuple(words))
        if len(self.commands) > MAX_COMMANDS:
            raise TooComplex(f"more than {MAX_COMMANDS} commands")

    def _add_crude(self, text: str) -> None:
        """What stands in substitutions that the grammar takes for text."""
        text = _NO_SUBSTITUTION.sub("", text)
        apart = text.split("`")
        quoted = apart[1::2]
        if len(apart) % 2 == 0 or _NESTED.search(text) or any("$(" in each for each in quoted):
            self._add([Unknown("")])  # one in another, or a part of one
        for substitution in _SUBSTITUTION.finditer(text):
            for command in crude_commands(substitution[1] or substitution[2] or ""):
                self._add(list(command))

    def _word(self, node: Node, kind: str, depth: int) -> Word:
        text = self._text(node)
        if kind in _BARE_KINDS:
            return text if self._is_plain or is_bare(text) else self._unusual(text)
        if kind == "raw_string":
            return text[1:-1]
        if kind == "string":
            return self._string(node, text, depth)
        if kind == "concatenation":
            return self._joined(
                [
                    self._word(child, child.type, depth + 1)
                    for child, after in zip(node.children, (*node.children[1:], None), strict=True)
                    if child.type != "$" or after is None or after.type != "string"  # $"..."
                ]
            )
        if kind == "ansi_c_string":
            self._hinder(kind)
            return _ansi_c(text[2:-1])
        if not node.is_named:
            return text
        self._hinder(kind)
        for child in node.named_children:
            self.visit(child, depth + 1)
        return Unknown("")

    def _unusual(self, text: str) -> Word:
        """An unquoted word with escapes, globs, a tilde, or letters from elsewhere."""
        self._hinder("an unusual word")
        if "\\`" in text:
            self._add([Unknown("")])  # between backquotes, these are backquotes as well
        glob = _GLOB.search(text)
        if glob is not None:
            return Unknown(_ESCAPED.sub(r"\1", text[: glob.start()]))
        return _ESCAPED.sub(r"\1", text.replace("\\\n", ""))

    def _string(self, node: Node, text: str, depth: int) -> Word:
        if len(text) >= 2 and text[0] == '"' and not any(mark in text for mark in "$`\\"):
            return text[1:-1]
        self._hinder("a string with expansions")
        known = ""
        static = True
        for child in node.children:
            if child.type == "string_content":
                known += self._text(child) if static else ""
            elif child.is_named:
                static = False
                self.visit(child, depth + 1)
        known = _ESCAPED_IN_QUOTES.sub(r"\1", known.replace("\\\n", ""))
        return known if static else Unknown(known)

    def _joined(self, parts: list[Word]) -> Word:
        known = ""
        for part in parts:
            if isinstance(part, Unknown):
                return Unknown(known + part.prefix)
            known += part
        return known

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()

    def _hinder(self, what: str) -> None:
        if not self.obstacle:
            self.obstacle = what.replace("_", " ")


def _ansi_c(escaped: str) -> Word:
    """What `$'...'` says: as bash has it, up to a NUL."""
    known = ""
    at = 0
    for escape in _ANSI_ESCAPE.finditer(escaped):
        known += escaped[at : escape.start()]
        at = escape.end()
        octal, hexadecimal, short, long, named = escape.groups()
        if named is not None:
            char = _ANSI_NAMED.get(named, escape[0])
        else:
            number = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
            char = chr(number) if number < 0x80 else None  # perhaps one byte of several
        if char is None:
            return Unknown(known)
        if char == "\0":
            return known
        known += char
    return known + escaped[at:]
