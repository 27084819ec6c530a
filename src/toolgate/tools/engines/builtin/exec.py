"""`exec`: one program with its arguments, in the session's sandbox, without a shell.

The gateway contract's system action.
"""

import signal
from typing import Annotated, Final

import msgspec

from toolgate.core.enums import Level, Outcome
from toolgate.core.tools import ToolOutput
from toolgate.sandbox.sandbox import Command, Finished, Lost, NoCwd, NotStarted
from toolgate.secrets.redaction import is_sensitive
from toolgate.tools.definitions import INVALID, Args, Context, define, failed, refused
from toolgate.tools.engines.output_decoder import Pieces

TIMEOUT_S: Final = 60.0  # gateway contract
# What a caller may set. Not PATH, LD_* or a pager: they would run another program than was allowed.
ENVIRONMENT: Final = frozenset(
    {"LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
)
LOCALE_PREFIX: Final = "LC_"

Word = Annotated[str, msgspec.Meta(max_length=128 * 1024)]


class ExecArgs(Args, frozen=True):
    command: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    params: Annotated[list[Word], msgspec.Meta(max_length=4096)] = msgspec.field(
        default_factory=list
    )
    cwd: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    environment: dict[str, str] = msgspec.field(default_factory=dict)


async def run(args: ExecArgs, context: Context) -> ToolOutput:
    words = [args.command, *args.params]
    if any("\0" in word for word in (*words, args.cwd, *args.environment.values())):
        return refused("exec: a word holds a NUL")
    command = Command(
        argv=tuple(words),
        cwd=args.cwd,
        env={
            name: value
            for name, value in args.environment.items()
            if may_be_set(name) and not context.holds_secret(value)
        },
        timeout_seconds=TIMEOUT_S,
        links=not context.request.no_links,
        clean=context.request.clean,
    )
    pieces = Pieces(context.update)
    try:
        finished = await context.in_session(lambda session: session.exec(command, piece=pieces))
    except NoCwd as outside:
        return failed(f"exec: {outside}", code=INVALID)
    except NotStarted as failure:
        return failed(f"exec: {failure}")
    except Lost as failure:
        return failed(f"exec: {failure}", outcome=Outcome.MAY_HAVE_EXECUTED)
    pieces.end()
    return _output(finished, isolation=context.isolation)


def may_be_set(name: str) -> bool:
    listed = name in ENVIRONMENT or name.startswith(LOCALE_PREFIX)
    return listed and name.replace("_", "").isalnum() and not is_sensitive(name)


def _output(finished: Finished, *, isolation: str) -> ToolOutput:
    stopped = finished.timed_out or finished.flooded or finished.killed or finished.crowded
    stdout, stderr = (
        part.decode("utf-8", "replace") for part in (finished.stdout, finished.stderr)
    )
    return ToolOutput(
        exit_code=finished.exit_code or (1 if stopped else 0),
        stdout=stdout,
        stderr=stderr,
        data={
            "exitCode": None if stopped else finished.exit_code,
            "signal": "SIGKILL" if stopped else _signal(finished.exit_code),
            "stdout": stdout,
            "stderr": stderr,
            "truncated": finished.cut or finished.flooded,
            "timedOut": finished.timed_out,
        },
        isolation=isolation,
        truncated=finished.cut,
    )


def _signal(exit_code: int) -> str | None:
    """A shell's 128 + number, by its name."""
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else None
    except ValueError:
        return None


TOOL = define(
    "exec",
    description="Run a program with arguments in the session's sandbox; no shell reads them.",
    level=Level.WRITE,
    repeatable=False,
    args=ExecArgs,
    run=run,
)
