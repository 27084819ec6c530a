"""The command tool under each of its names, as a runner gets it and as its answer is read.

The runner contract has one name and one form, `bash.exec {cmd, cwd?, timeoutMs?}`. A program with its
arguments is sent as `exec` and its words, so that no builtin of the shell is run.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from toolgate.core.errors import Invalid
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.policy.inputs import ARGV_TOOLS
from toolgate.tools.definitions import read_args
from toolgate.tools.engines.builtin.exec import ExecArgs, may_be_set
from toolgate.tools.engines.builtin.shell import ShellArgs

AT_RUNNERS: Final = "bash.exec"
EXEC: Final = "exec "


def spell(argv: Sequence[str]) -> str:
    """A shell text that becomes the program with exactly these words."""
    return EXEC + ("-- " if argv[0].startswith("-") else "") + shlex.join(argv)


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text that `spell` has made; none for another text."""
    if not text.startswith(EXEC):
        return ()
    try:
        words = shlex.split(text.removeprefix(EXEC).removeprefix("-- "))
    except ValueError:
        return ()
    return tuple(words) if words and spell(words) == text else ()


def to_runner(request: ToolRequest) -> ToolRequest:
    """The call as a runner gets it; raises Invalid."""
    args: dict[str, JsonValue]
    if request.tool == "shell":
        shell = read_args(request.args, ShellArgs)
        args = {"cmd": shell.command}
        if shell.timeout_ms is not None:
            args["timeoutMs"] = shell.timeout_ms
    elif request.tool in ARGV_TOOLS:
        program = read_args(request.args, ExecArgs)
        words = [program.command, *program.params]
        if any("\0" in word for word in words):
            raise Invalid(f"{request.tool}: a word holds a NUL", field="args")
        args = {"cmd": spell(words)}
        env = {name: text for name, text in program.environment.items() if may_be_set(name)}
        if env:
            args["env"] = {**env}
        if program.cwd:
            args["cwd"] = program.cwd
    else:
        return request
    return request._replace(tool=AT_RUNNERS, args=args)


def from_runner(tool: str, output: ToolOutput) -> ToolOutput:
    """The answer in the form of the tool that was called."""
    told = output.data if isinstance(output.data, dict) else {}
    if tool not in ARGV_TOOLS or not (output.ok or "exitCode" in told):
        return output
    timed_out = told.get("timedOut") is True
    data: dict[str, JsonValue] = {
        "exitCode": None if timed_out else output.exit_code,
        "signal": "SIGKILL" if timed_out else None,
        "stdout": output.stdout,
        "stderr": output.stderr,
        "truncated": output.truncated,
        "timedOut": timed_out,
    }
    if "workspace" in told:
        data["workspace"] = told["workspace"]
    return output._replace(data=data)
