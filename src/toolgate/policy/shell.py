"""A shell command as a policy reads it: simple commands as words, and the obstacle to knowing them.

Only data and pure matching. `shell_parser.py` reads the grammar. An allow does not trust the parser
alone: the parser and `plain_commands` below must read the same words.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import dropwhile
from typing import Final, NamedTuple

from toolgate.core.globs import Glob, GlobRow

MAX_TEXT: Final = 32_768  # characters; no command that a person could approve is longer
MAX_COMMANDS: Final = 512
MAX_WRAPPED: Final = 200  # words after sudo, xargs and the like: each may begin a command
MAX_OPERATORS: Final = 4000  # a parser's work can grow with their square
MAX_PIPES: Final = 400
MAX_NESTING: Final = 4  # bash -c "bash -c ...": deeper is hiding something


class Unknown(NamedTuple):
    """A word that only the running shell knows, with the part of its beginning that is certain."""

    prefix: str


Word = str | Unknown
Command = tuple[Word, ...]
Argv = tuple[str, ...]  # a command all of whose words are known


class Script(NamedTuple):
    """Every simple command in a text, also those inside substitutions and compound statements."""

    commands: tuple[Command, ...]
    argvs: tuple[Argv, ...] | None  # the same, where an allow may trust them; None: see obstacle
    obstacle: str = ""


ParseShell = Callable[[str], Script]


class TooComplex(Exception):
    """A command exceeds a limit of the parser."""


# Programs that run what their arguments say. Under an allow they must be named with all their
# words; under a deny or ask, what they run is looked at as well.
_WRAPPERS: Final = """
    . alias ash bash builtin busybox bwrap choom chroot chrt command coproc csh dash doas enable env
    eval exec fakeroot faketime fish find flock gosu i386 ionice ksh linux32 linux64 ltrace mksh nice
    nohup nsenter numactl parallel pkexec prlimit rbash runcon runuser script setarch setpriv setsid
    sg sh source ssh sshpass stdbuf strace su su-exec sudo systemd-run taskset tcsh time timeout
    toybox trap uclampset unbuffer unshare watch x86_64 xargs zsh
"""
WRAPPERS: Final = frozenset(_WRAPPERS.split())
_SHELLS: Final = ". ash bash csh dash fish ksh mksh rbash sh source ssh su tcsh zsh"
SHELLS: Final = frozenset(_SHELLS.split())  # they run what they are given to read
_RESERVED: Final = """
    ! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until
    while
"""
RESERVED: Final = frozenset(_RESERVED.split())
# bash evaluates the words of some of its builtins once more: `test -v 'a[$(cmd)]'` runs cmd. An allow
# matches only the builtins that neither evaluate a word nor change the shell. (Of wrappers, such as
# `command`, an allow must give all words.)
_BUILTINS: Final = """
    : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs
    disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill let
    local logout mapfile popd printf pushd pwd read readarray readonly return set shift shopt source
    suspend test times trap true type typeset ulimit umask unalias unset wait .
"""
_HARMLESS: Final = ": cd dirs echo exit false kill popd pushd pwd times true type ulimit umask"
BUILTINS: Final = frozenset(_BUILTINS.split())
SHELL_ONLY: Final = BUILTINS - frozenset(_HARMLESS.split()) - WRAPPERS
_NEVER_ALLOWED: Final = RESERVED | SHELL_ONLY
SUBCOMMANDS: Final = frozenset({"git"})  # options before the subcommand are for an author to spell
_BEFORE_COMMANDS: Final = frozenset(
    {"!", "{", "do", "elif", "else", "if", "then", "until", "while"}
)

_PLAIN: Final = re.compile(
    r"""[ \t]+|(?P<operator>&&|\|\||[;|\n])|
    (?P<word>(?:[A-Za-z0-9_./:=@%+,-]+|'[^'\x00-\x1f\x7f]*'|"[^"$`\\\x00-\x1f\x7f]*")+)""",
    re.VERBOSE,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")
_BARE_WORDS: Final = re.compile(r"[ \t]*[A-Za-z0-9_./:=@%+,-][A-Za-z0-9_./:=@%+, \t-]*")
_BARE_COMMANDS: Final = re.compile(
    rf"{_BARE_WORDS.pattern}(?:(?:&&|\|\|?|;|\n){_BARE_WORDS.pattern})*"
)
_OPERATOR: Final = re.compile(r"&&|\|\|?|;|\n")
_PIECE: Final = re.compile(r"""[A-Za-z0-9_./:=@%+,-]+|'[^']*'|"[^"]*\"""")
_CRUDE_SPLIT: Final = re.compile(r"[;&|\n\r(){}`<>]+|\$\(")
_CRUDE_UNKNOWN: Final = re.compile(  # what may stand for any part of a word
    r"\$\{[^{}]*\}|\$'[^']*'|\{[^{}\s]*\}"
)
_REDIRECTION: Final = re.compile(
    r"[0-9]{0,3}(?:&>>?|<>|>>|>\||[<>]&?)[ \t]*(?:'[^']*'|\"[^\"]*\"|[^\s;&|()<>])*"
)
_CURLY_SUBSTITUTION: Final = re.compile(r"\$\{[\s|(]")  # of newer shells: ${ ls; }
_VALUE: Final = re.compile(r"-[A-Za-z0-9]*?[cS]|[A-Za-z0-9_-]+=")  # before what an option holds
_DETOUR: Final = re.compile(r"/\.{0,2}/|/\.{1,2}(?:\0|\Z)|(?<![^\0=])\.{1,2}/|/workspace/")
_OPTION: Final = re.compile(r"-[A-Za-z0-9]*(?=[./])|[^/=]*=")  # before a path in the same word
_OUTSIDE: Final = re.compile(r"(\A|=|\A-[A-Za-z0-9]+)(?:\.\./)+")
_WORKSPACE: Final = re.compile(r"(\A|=|\A-[A-Za-z0-9]+)/workspace/")
_CRUDE_SPECIAL: Final = re.compile(r"[$*?\[~]")
_QUOTES: Final = str.maketrans("", "", "'\"\\")
_BLANKS: Final = str.maketrans("", "", "\n\t")


def check_size(text: str) -> None:
    """Reject a text that takes a parser more than some tenths of a second; raises TooComplex."""
    if len(text) > MAX_TEXT:
        raise TooComplex(f"a command of more than {MAX_TEXT} characters")
    if text.count("|") > MAX_PIPES:
        raise TooComplex(f"more than {MAX_PIPES} pipes")
    if len(text) > MAX_OPERATORS and sum(map(text.count, ";&(){}<>$`[]+~")) > MAX_OPERATORS:
        raise TooComplex(f"more than {MAX_OPERATORS} operators")


def has_control_characters(text: str) -> bool:
    """Also invisible ones and half characters; newlines and tabs are a shell's own."""
    return not text.isprintable() and not text.translate(_BLANKS).isprintable()


def is_bare(text: str) -> bool:
    """True if an unquoted word means itself in every shell: no glob, escape, tilde, look-alike."""
    return _BARE.fullmatch(text) is not None


def plain_commands(text: str) -> tuple[Argv, ...] | None:
    """The commands of a text so plain that it can be read without a grammar; None where it isn't.

    Plain is: bare words, quotes with nothing special inside, and `&&`, `||`, `;`, `|`, newline.
    Quotes may hold letters from anywhere, but nothing that does not print.
    """
    if _BARE_WORDS.fullmatch(text):
        return (tuple(text.split()),)
    if _BARE_COMMANDS.fullmatch(text):
        return tuple(tuple(piece.split()) for piece in _OPERATOR.split(text))
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
            quoted = "'" in word or '"' in word
            if quoted and not word.isprintable():
                return None
            words.append(_unquote(word) if quoted else word)
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


def script_of(
    commands: tuple[Command, ...], *, plain: tuple[Argv, ...] | None, obstacle: str = ""
) -> Script:
    """A script from what a parser found; static only where the plain reading found the same."""
    if obstacle:
        return Script(commands, None, obstacle)
    if plain is None:
        return Script(commands, None, "more than plain words")
    if plain != commands:
        return Script(commands, None, "it can be read in two ways")
    for argv in plain:
        if argv[0] in _NEVER_ALLOWED:
            is_reserved = argv[0] in RESERVED
            why = "a reserved word" if is_reserved else f"bash may evaluate the words of {argv[0]}"
            return Script(commands, None, why)
    return Script(commands, plain)


def crude_commands(text: str) -> Iterator[Command]:
    """The possible commands of a text that cannot be parsed; only for a deny or an ask."""
    if "$(" in text or "`" in text or _CURLY_SUBSTITUTION.search(text):
        yield (Unknown(""),)  # what a substitution makes may be part of any
    # A line that ends in a backslash goes on in the next, unless it ends in a comment; a
    # redirection may stand anywhere in a command, unless it is only text.
    joined = text.replace("\\\n", "")
    readings = dict.fromkeys((text, joined, _REDIRECTION.sub(" ", joined)))
    yield from dict.fromkeys(command for each in readings for command in _crude_pieces(each))


def _crude_pieces(text: str) -> Iterator[Command]:
    for piece in _CRUDE_SPLIT.split(_CRUDE_UNKNOWN.sub("$", text)):
        words = tuple(map(_crude_word, piece.split()))
        if words:
            yield words
        named = dropwhile(lambda word: word in RESERVED or "=" in word, words)
        if command := tuple(named):
            yield command


def _crude_word(word: str) -> Word:
    special = _CRUDE_SPECIAL.search(word)
    if special is None:
        return word.translate(_QUOTES)
    return Unknown(word[: special.start()].translate(_QUOTES))


def every_command(script: Script, parse: ParseShell) -> list[Command]:
    """The commands of a script and those that its wrappers (sudo, xargs, bash -c) would run."""
    found: list[Command] = []
    _collect(script, parse, found, depth=0)
    return found


def with_other_spellings(commands: list[Command]) -> list[Command]:
    """The commands, and those that they may also be by another spelling of their paths."""
    detours = [command for command in commands if _has_detour(command)]
    others = dict.fromkeys(other for each in detours for other in _other_spellings(each))
    return [*commands, *others]


def tidied(command: Argv) -> Argv | None:
    """The same words with their paths in the shortest spelling; None where nothing changes.

    `//`, `/./` and `x/../` are resolved by spelling, as in `policy/paths.py`; links are not followed.
    """
    if not _has_detour(command):
        return None
    tidy = (command[0], *map(_tidy, command[1:]))
    return None if tidy == command else tidy


def _has_detour(command: Command) -> bool:
    known = "\0".join([word if isinstance(word, str) else word.prefix for word in command])
    return "/" in known and _DETOUR.search(known) is not None


def _tidy(word: str) -> str:
    if "/" not in word:
        return word
    option = _OPTION.match(word)
    start = option.end() if option else 0
    is_absolute = word[start : start + 1] == "/"
    parts: list[str] = []
    for part in word[start:].split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in {"", "."} and not (part == ".." and is_absolute):
            parts.append(part)
    path = "/" * is_absolute + "/".join(parts) + "/" * (bool(parts) and word[-1] == "/")
    return word[:start] + (path or ".")


def _other_spellings(command: Command) -> Iterator[Command]:
    """The commands that a word's path may also be, for a deny or an ask.

    A path that climbs out of an unknown directory may lead anywhere; `/workspace` is the workspace.
    """
    tidy = tuple(map(_tidy_or_unknown, command[1:]))
    yield (command[0], *tidy)
    for pattern, instead in ((_OUTSIDE, r"\1/"), (_WORKSPACE, r"\1")):
        words = (pattern.sub(instead, w) if isinstance(w, str) else w for w in tidy)
        yield (command[0], *words)


def _tidy_or_unknown(word: Word) -> Word:
    if isinstance(word, str):
        return _tidy(word)
    return word if _DETOUR.search(word.prefix) is None else Unknown("")


def _collect(script: Script, parse: ParseShell, found: list[Command], *, depth: int) -> None:
    if depth > MAX_NESTING:
        raise TooComplex(f"commands inside commands, more than {MAX_NESTING} deep")
    for command in script.commands:
        while command[0] in _BEFORE_COMMANDS and len(command) > 1:  # a parser may take them for one
            _keep(command, found)
            command = command[1:]
        _keep(command, found)
        if base_name(command[0]) not in WRAPPERS:
            continue
        if len(command) > MAX_WRAPPED:
            raise TooComplex(f"more than {MAX_WRAPPED} words that may be a command")
        if command[0] == "eval":  # it reads all its words as one text
            text = " ".join(w if isinstance(w, str) else f"{w.prefix}$_" for w in command[1:])
            _collect(parse(text.removeprefix("-- ")), parse, found, depth=depth + 1)
        for start in range(1, len(command)):
            for word in _readings(command[start]):
                _keep((word, *command[start + 1 :]), found)
                if isinstance(word, str) and not is_bare(word) and word.strip():
                    _collect(parse(word), parse, found, depth=depth + 1)


def _readings(word: Word) -> Iterator[Word]:
    """A wrapper's word, and the value where it is an option with its value: `-c'ls'`, `--command=ls`."""
    yield word
    if isinstance(word, str) and (option := _VALUE.match(word)) and option.end() < len(word):
        yield word[option.end() :]


def _keep(command: Command, found: list[Command]) -> None:
    found.append(command)
    if len(found) > MAX_COMMANDS:
        raise TooComplex(f"more than {MAX_COMMANDS} commands")


def base_name(word: Word) -> str:
    """The last part of a program's path."""
    if isinstance(word, str):
        return word.rsplit("/", 1)[-1] if "/" in word else word
    return ""


class CommandPattern:
    """`git log *`: words with `*` in them, compared with a command's words one by one.

    - A word without `*` is that word; in a word, `*` stands for any characters.
    - `?` alone: exactly one word. `**`: any number of words, or none.
    - `*` alone, last: any further words, or none. `*` alone elsewhere: as `?`.
    - A last word that ends in `*` (`git log*`, `mkfs*`): it may go on, and further words follow.
    """

    __slots__ = (
        "_count", "_globs", "_open_end", "_row", "_subcommand", "argv", "needle", "program", "text"
    )  # fmt: skip

    def __init__(self, words: Sequence[str]) -> None:
        self.text = " ".join(words)
        last = words[-1]
        self._open_end = last.endswith("*")
        kept = words[:-1] if last in {"*", "**"} else words
        globs = [None if word == "**" else Glob("*" if word == "?" else word) for word in kept]
        self._globs = [glob for glob in globs if glob is not None]
        self._count = len(globs) if None not in globs else -1  # -1: gaps, so any number of words
        self._row: GlobRow[Word] = GlobRow(globs, open_end=self._open_end, fits=_fits)
        self.program = "" if "*" in words[0] or words[0] == "?" else words[0]
        literal = not self._open_end and all("*" not in word and word != "?" for word in words)
        self.argv: Argv | None = tuple(words) if literal else None  # the one command it matches
        # Options before git's subcommand (-c, -C, --git-dir, --exec-path) redefine all that follows.
        self._subcommand = self.program in SUBCOMMANDS and not literal
        # What every command that matches holds somewhere: a look for it spares most of the matching.
        self.needle = max(
            (part for glob in self._globs for part in glob.parts), key=len, default=""
        )

    def matches(self, command: Argv) -> bool:
        """True if a command whose words are all known matches; for an allow."""
        if self._subcommand and len(command) > 1 and command[1][:1] == "-":
            return False
        if self._count < 0:
            return self._row.matches(command)
        if len(command) != self._count and (not self._open_end or len(command) < self._count):
            return False
        for at, glob in enumerate(self._globs):  # noqa: SIM110 - the hot path
            if not glob.matches(command[at]):
                return False
        return True

    def may_match(self, command: Command) -> bool:
        """True if a command may match: an unknown word may be any word, or several, or none.

        The program counts by its name wherever it lies: `/bin/rm` is `rm`.
        """
        first = command[0]
        if isinstance(first, Unknown):
            return True
        base = base_name(first)
        if base != first and self._row.matches((base, *command[1:])):
            return True
        return self._row.matches(command)


def _fits(glob: Glob, word: Word) -> bool | None:
    if isinstance(word, Unknown):
        return None if glob.may_begin_with(word.prefix) else False
    return glob.matches(word)
