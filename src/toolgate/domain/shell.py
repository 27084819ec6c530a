"""What a policy sees of a shell command: its simple commands as words, and what stands in the way
of knowing them.

Only data and pure matching. Reading the text as a grammar is a port (`ports/shell_parser.py`);
this module may not know which parser there is, and does not trust it alone: an allow needs the
parser and `plain_commands` below to read the same words.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from toolgate.domain.globs import Glob

MAX_TEXT: Final = 65_536  # characters; no command that a person could approve is longer
MAX_COMMANDS: Final = 512
MAX_NESTING: Final = 4  # bash -c "bash -c ...": deeper is hiding something


class Unknown(NamedTuple):
    """A word that only the running shell knows: what it begins with, as far as that is certain."""

    prefix: str


Word = str | Unknown
Command = tuple[Word, ...]
Argv = tuple[str, ...]  # a command all of whose words are known


@dataclass(frozen=True, slots=True)
class Script:
    """Every simple command in a text, also those inside substitutions and compound statements."""

    commands: tuple[Command, ...]
    argvs: tuple[Argv, ...] | None  # the same, where an allow may trust them; None: see obstacle
    obstacle: str = ""


ParseShell = Callable[[str], Script]


class TooComplex(Exception):
    """A command is beyond what is worth reading."""


# Programs that run what their arguments say. Under an allow they must be named with all their
# words; under a deny or ask, what they run is looked at as well.
_WRAPPERS: Final = """
    . alias ash bash builtin busybox chroot command coproc csh dash doas enable env eval exec fish
    find flock ionice ksh mksh nice nohup nsenter parallel pkexec runuser script setarch setpriv
    setsid sg sh source ssh stdbuf strace su sudo tcsh time timeout toybox trap unshare watch xargs
    zsh
"""
WRAPPERS: Final = frozenset(_WRAPPERS.split())
_RESERVED: Final = """
    ! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until
    while
"""
RESERVED: Final = frozenset(_RESERVED.split())

_PLAIN: Final = re.compile(
    r"""[ \t]+|(?P<operator>&&|\|\||[;|\n])|
    (?P<word>(?:[A-Za-z0-9_./:=@%+,-]+|'[^'\x00-\x1f\x7f]*'|"[^"$`\\\x00-\x1f\x7f]*")+)""",
    re.VERBOSE,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")
_BARE_WORDS: Final = re.compile(r"[ \t]*[A-Za-z0-9_./:=@%+,-][A-Za-z0-9_./:=@%+, \t-]*")
_PIECE: Final = re.compile(r"""[A-Za-z0-9_./:=@%+,-]+|'[^']*'|"[^"]*\"""")
_CRUDE_SPLIT: Final = re.compile(r"[;&|\n\r(){}`<>]+|\$\(")


def is_bare(text: str) -> bool:
    """Whether an unquoted word means itself in every shell: no glob, escape, tilde, look-alike."""
    return _BARE.fullmatch(text) is not None


def plain_commands(text: str) -> tuple[Argv, ...] | None:
    """The commands of a text so plain that it can be read without a grammar; None where it isn't.

    Plain is: bare words, quotes with nothing special inside, and `&&`, `||`, `;`, `|`, newline.
    """
    if _BARE_WORDS.fullmatch(text):
        return (tuple(text.split()),)
    commands: list[Argv] = []
    words: list[str] = []
    at = 0
    for token in _PLAIN.finditer(text):
        if token.start() != at:
            return None
        at = token.end()
        kind = token.lastgroup
        if kind == "word":
            word = token.group()
            words.append(word if "'" not in word and '"' not in word else _unquote(word))
        elif kind == "operator":
            if not words:
                return None
            commands.append(tuple(words))
            words = []
    if at != len(text):
        return None
    if words:
        commands.append(tuple(words))
    return tuple(commands) or None


def _unquote(word: str) -> str:
    return "".join(
        piece if piece[0] not in "'\"" else piece[1:-1] for piece in _PIECE.findall(word)
    )


def script_of(text: str, commands: tuple[Command, ...], *, obstacle: str = "") -> Script:
    """A script from what a parser found, with its static reading where there is no doubt of it."""
    if obstacle:
        return Script(commands, None, obstacle)
    if not text.isprintable() and not text.replace("\n", "").replace("\t", "").isprintable():
        return Script(commands, None, "control or invisible characters")
    argvs = plain_commands(text)
    if argvs is None:
        return Script(commands, None, "more than plain words")
    if argvs != commands:
        return Script(commands, None, "it can be read in two ways")
    if any(argv[0] in RESERVED for argv in argvs):
        return Script(commands, None, "a reserved word")
    return Script(commands, argvs)


def crude_commands(text: str) -> Iterator[Command]:
    """What might be commands in a text that no parser understands; only for a deny or an ask."""
    for piece in _CRUDE_SPLIT.split(text):
        words = tuple(word.translate(_QUOTES) for word in piece.split())
        if words:
            yield words


_QUOTES: Final = str.maketrans("", "", "'\"\\")


def every_command(script: Script, parse: ParseShell, *, depth: int = 0) -> list[Command]:
    """The commands of a script and those that its wrappers (sudo, xargs, bash -c) would run."""
    found: list[Command] = []
    for command in script.commands:
        found.append(command)
        if base_name(command[0]) in WRAPPERS:
            found.extend(_wrapped(command, parse, depth=depth))
        if len(found) > MAX_COMMANDS:
            raise TooComplex(f"more than {MAX_COMMANDS} commands")
    return found


def _wrapped(command: Command, parse: ParseShell, *, depth: int) -> Iterator[Command]:
    for start in range(1, len(command)):
        word = command[start]
        yield command[start:]
        if isinstance(word, str) and not is_bare(word) and word.strip():
            if depth >= MAX_NESTING:
                raise TooComplex(f"commands inside commands, more than {MAX_NESTING} deep")
            yield from every_command(parse(word), parse, depth=depth + 1)


def base_name(word: Word) -> str:
    """What a program is called, wherever it lies."""
    if isinstance(word, str):
        return word.rsplit("/", 1)[-1] if "/" in word else word
    return ""


class CommandPattern:
    """`git log *`: words with `*` in them, compared with a command's words one by one.

    - A word without `*` is that word; in a word, `*` stands for any characters.
    - `*` alone, last: any further words, or none. `*` alone elsewhere: exactly one word.
    - `**`: any number of words, or none.
    - A last word that ends in `*` (`git log*`, `mkfs*`): it may go on, and further words follow.
    """

    __slots__ = ("_globs", "_open_end", "_simple", "program", "text")

    def __init__(self, words: Sequence[str]) -> None:
        self.text = " ".join(words)
        last = words[-1]
        self._open_end = last.endswith("*")
        kept = words[:-1] if last in {"*", "**"} else words
        self._globs: tuple[Glob | None, ...] = tuple(
            None if word == "**" else Glob(word) for word in kept
        )
        self._simple = None not in self._globs
        self.program = words[0] if "*" not in words[0] else ""

    def matches(self, command: Sequence[str]) -> bool:
        """Whether a command all of whose words are known is one of these."""
        if not self._simple:
            return self._may(0, command, 0)
        globs = self._globs
        if len(command) != len(globs) and (not self._open_end or len(command) < len(globs)):
            return False
        for at, glob in enumerate(globs):
            if glob is None or not glob.matches(command[at]):
                return False
        return True

    def may_match(self, command: Command) -> bool:
        """Whether it could be one of these: an unknown word may be any word, or several, or none.

        The program counts by its name wherever it lies: `/bin/rm` is `rm`.
        """
        first = command[0]
        if isinstance(first, Unknown):
            return True
        base = base_name(first)
        if base != first and self._may(0, (base, *command[1:]), 0):
            return True
        return self._may(0, command, 0)

    def _may(self, pattern_at: int, command: Sequence[Word], word_at: int) -> bool:
        while pattern_at < len(self._globs):
            glob = self._globs[pattern_at]
            if glob is None:
                return any(
                    self._may(pattern_at + 1, command, skipped)
                    for skipped in range(word_at, len(command) + 1)
                )
            if word_at == len(command):
                return False
            word = command[word_at]
            if isinstance(word, Unknown):
                return glob.may_begin_with(word.prefix)
            if not glob.matches(word):
                return False
            pattern_at += 1
            word_at += 1
        return self._open_end or word_at == len(command)
