"""The shell parser on tree-sitter-bash.

It walks the whole tree: a command inside a substitution, a here-document or a function body is a
command. Whatever is not a static word makes the script one that no allow matches.
"""

import re
import threading
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from toolgate.domain.shell import (
    MAX_COMMANDS,
    Command,
    Script,
    TooComplex,
    Unknown,
    Word,
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
_MAX_DEPTH: Final = 200  # nested nodes; a person's command has some ten


class TreeSitterShellParser:
    """Callable as the port says, from any thread."""

    def __init__(self) -> None:
        self._parser = Parser(_LANGUAGE)
        self._lock = threading.Lock()  # the parser inside keeps state

    def __call__(self, text: str, /) -> Script:
        check_size(text)
        if has_control_characters(text):
            # The grammar takes seconds over some of them, and shells disagree about the rest.
            commands = tuple(crude_commands(text))
            return script_of(commands, plain=None, obstacle="control or invisible characters")
        source = text.encode()
        with self._lock:
            root = self._parser.parse(source).root_node
        plain = plain_commands(text)
        broken = root.has_error
        if plain is not None and not broken and _bare_commands(root, source) == plain:
            return script_of(plain, plain=plain)
        reading = _Reading(source, is_plain=plain is not None)
        reading.visit(root, 0)
        if broken:
            commands = (*reading.commands, *crude_commands(text))
            return script_of(commands, plain=None, obstacle="it cannot be parsed")
        return script_of(tuple(reading.commands), plain=plain, obstacle=reading.obstacle)


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

    __slots__ = ("_is_plain", "_source", "commands", "obstacle")

    def __init__(self, source: bytes, *, is_plain: bool) -> None:
        self._source = source
        self._is_plain = is_plain  # so that no word need be looked at for what is special
        self.commands: list[Command] = []
        self.obstacle = ""

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
        else:
            self._hinder(kind)
            for child in node.named_children:
                self.visit(child, depth + 1)

    def _command(self, node: Node, depth: int) -> None:
        words: list[Word] = []
        for child in node.children:
            kind = child.type
            if kind == "word":
                words.append(self._word(child, kind, depth + 1))
            elif kind == "command_name":
                name = child.children[0]
                words.append(self._word(name, name.type, depth + 1))
            elif kind == "variable_assignment" or kind.endswith("_redirect"):
                self._hinder(kind)
                self.visit(child, depth + 1)
            elif child.is_named:
                words.append(self._word(child, kind, depth + 1))
            elif kind in {"$", "<", ">", "<<", "&"}:
                self._hinder(kind)
            else:
                words.append(self._text(child))
        self._add(words)

    def _add(self, words: list[Word]) -> None:
        if words:
            self.commands.append(tuple(words))
        if len(self.commands) > MAX_COMMANDS:
            raise TooComplex(f"more than {MAX_COMMANDS} commands")

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
                [self._word(child, child.type, depth + 1) for child in node.children]
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
    """What `$'...'` says, as far as Python's own escapes say the same."""
    try:
        return escaped.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        return Unknown("")
