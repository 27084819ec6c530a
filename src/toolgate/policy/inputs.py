"""The facts of one call that a policy can use, each computed once and on demand.

The same argument names mean the same whichever the tool: `command`/`cmd` (with `params`), `cwd`,
`path`/`paths`, `url`/`urls`/`startUrl` (also inside `inputs`, or in the words of a `goal`), `method`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from toolgate.core.enums import Level
from toolgate.core.tools import JsonValue, ToolRequest
from toolgate.core.urls import urls_in
from toolgate.policy.paths import BadPath, components
from toolgate.policy.shell import (
    Argv,
    Command,
    ParseShell,
    Script,
    every_command,
    tidied,
    with_other_spellings,
)
from toolgate.policy.urls import BadUrl, PolicyUrl, parse_url

COMMAND_ARGUMENTS: Final = ("command", "cmd")
CWD_ARGUMENT: Final = "cwd"
PATH_ARGUMENTS: Final = ("path", "paths")
URL_ARGUMENTS: Final = ("url", "urls", "startUrl")
GOAL: Final = "goal"  # a text that may name addresses, which a browser task then opens
COMMAND_TOOLS: Final = frozenset({"shell", "exec", "bash.exec", "system.exec"})  # one tool
ARGV_TOOLS: Final = frozenset({"exec", "system.exec"})  # run without a shell (gateway contract)
MAX_VALUES: Final = 1000  # URLs or paths in one call; a browser batch has at most 1,000

_RUN_IN_SESSIONS: Final = frozenset({*COMMAND_ARGUMENTS, "code"})
_OTHER_URLS: Final = frozenset({*URL_ARGUMENTS, "inputs", GOAL} - {"url"})
_NOTHING: Final = Script((), None, "there is no command")


class EvaluationError(Exception):
    """A rule cannot be applied to this call; the call is denied."""


class LimitReached(Exception):
    """A call is larger than a policy looks at; it is denied."""


class Facts:
    # Defaults of the class, so that a call pays only for what is asked.
    _script: Script | None = None
    _commands: list[Command] | None = None
    _urls: list[PolicyUrl | None] | None = None
    _paths: list[tuple[str, ...] | None] | None = None
    _cwd: tuple[tuple[str, ...] | None] | None = None

    def __init__(
        self,
        call: ToolRequest,
        *,
        level: Level,
        parse_shell: ParseShell,
        can_be_clean: bool = True,
    ) -> None:
        """`can_be_clean`: where the call would run, a command can have a fixed environment."""
        self.call = call
        self.can_be_clean = can_be_clean
        self.args = call.args
        self.level = level
        self._parse = parse_shell

    @property
    def script(self) -> Script:
        """The command as it is written; empty where the call has none."""
        if self._script is None:
            self._script = self._read_command()
        return self._script

    @property
    def commands(self) -> list[Command]:
        """Every command that the call would run or that its wrappers would."""
        if self._commands is None:
            commands = every_command(self.script, self._parse)
            self._commands = with_other_spellings(commands) if self._has_paths else commands
        return self._commands

    @property
    def _has_paths(self) -> bool:
        """True if a word of the command may hold a slash, also a written one (`$'\\057'`)."""
        first, second = self.args.get("command"), self.args.get("cmd")
        text = first if second is None else second
        if not isinstance(text, str) or "params" in self.args:
            return True
        both = first is not None and second is not None
        return both or "/" in text or "\\" in text

    @property
    def argvs(self) -> Sequence[Argv] | None:
        """The commands that an allow must cover, those with detours in their paths in both spellings."""
        argvs = self.script.argvs
        if argvs is None or not self._has_paths:
            return argvs
        tidy = [other for argv in argvs if (other := tidied(argv)) is not None]
        return (*argvs, *tidy) if tidy else argvs

    @property
    def urls(self) -> list[PolicyUrl | None]:
        """The URLs of the call; None for each whose host cannot be told."""
        if self._urls is None:
            args = self.args
            if "url" in args and _OTHER_URLS.isdisjoint(args) and isinstance(args["url"], str):
                self._urls = [_url(args["url"])]  # nearly always, and a third of the time
            else:
                self._urls = [_url(value) for value in self._values(URL_ARGUMENTS)]
        return self._urls

    @property
    def paths(self) -> list[tuple[str, ...] | None]:
        if self._paths is None:
            self._paths = [_components(value) for value in self._values(PATH_ARGUMENTS)]
        return self._paths

    @property
    def cwd(self) -> tuple[str, ...] | None:
        """The directory of a call; a command without one runs where the command before it ended."""
        if self._cwd is None:
            given = self.args.get(CWD_ARGUMENT)
            if given is None or given == "":
                self._cwd = ((),) if _RUN_IN_SESSIONS.isdisjoint(self.args) else (None,)
            else:
                self._cwd = (_components(given),)
        return self._cwd[0]

    def _values(self, names: Sequence[str]) -> list[JsonValue]:
        found = list(_arguments(self.args, names))
        inputs = self.args.get("inputs")
        if isinstance(inputs, Mapping):
            found.extend(_arguments(inputs, names))
        goal = self.args.get(GOAL)
        if isinstance(goal, str) and names is URL_ARGUMENTS:
            found.extend(urls_in(goal))
        if len(found) > MAX_VALUES:
            raise LimitReached(f"more than {MAX_VALUES} values of {names[0]}")
        return found

    def _read_command(self) -> Script:
        args = self.args
        first, second = (args.get(name) for name in COMMAND_ARGUMENTS)
        if first is None and second is None:
            return _NOTHING
        if second is None and isinstance(first, str) and self.call.tool in ARGV_TOOLS:
            return self._program(first)
        if first is None or second is None:
            return self._script_of(second if first is None else first)
        commands = (*self._script_of(first).commands, *self._script_of(second).commands)
        return Script(commands, None, "it gives two commands")

    def _program(self, name: str) -> Script:
        """`command` without a shell: it is one word, whatever is in it."""
        if self.args.get("params") is not None:
            return self._script_of(name)
        script = _argv([name])
        if len(name.split()) == 1:
            return script
        return Script((*self._parse(name).commands, *script.commands), script.argvs)

    def _script_of(self, value: JsonValue) -> Script:
        if isinstance(value, list):
            return _argv(value)
        if not isinstance(value, str):
            raise EvaluationError("the command is not text")
        without_shell = self.call.tool in ARGV_TOOLS
        params = self.args.get("params")
        if isinstance(params, list):
            script = _argv([value, *params])
            if without_shell:
                return script
            parsed = self._parse(value)
            commands = (*parsed.commands, *script.commands)
            return Script(commands, None, "it has parameters beside a text")
        if params is not None:
            raise EvaluationError("the parameters are not a list")
        script = self._parse(value)
        if without_shell and script.argvs is not None and len(script.argvs) > 1:
            # Without a shell, `;` and `&&` are arguments of the first command.
            return Script(script.commands, None, "several commands, and no shell to run them")
        return script


def _argv(words: Sequence[JsonValue]) -> Script:
    texts = tuple(word for word in words if isinstance(word, str))
    if not texts or len(texts) != len(words):
        raise EvaluationError("a word of the command is not text")
    if not all(text.isprintable() for text in texts):
        return Script((texts,), None, "control or invisible characters")
    return Script((texts,), (texts,))


def _arguments(args: Mapping[str, JsonValue], names: Sequence[str]) -> Iterator[JsonValue]:
    for name in names:
        value = args.get(name)
        if isinstance(value, list):
            yield from value
        elif value is not None:
            yield value


def _url(value: JsonValue) -> PolicyUrl | None:
    try:
        return parse_url(value) if isinstance(value, str) else None
    except BadUrl:
        return None


def _components(value: JsonValue) -> tuple[str, ...] | None:
    try:
        return components(value) if isinstance(value, str) else None
    except BadPath:
        return None


class Hidden(Exception):
    """An argument would lie in a list or a text, which a tool may read in its own way."""


def argument_at(args: Mapping[str, JsonValue], path: Sequence[str]) -> JsonValue:
    """The argument at a dotted path; None where there is none, or it is null. Raises Hidden."""
    value: JsonValue = args.get(path[0])
    for name in path[1:]:
        if isinstance(value, list | str) and value:
            raise Hidden
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
