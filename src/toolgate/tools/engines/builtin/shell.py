"""`shell`: a command in the session's sandbox."""

from typing import Annotated

import msgspec

from toolgate.core.enums import Level, Outcome
from toolgate.core.tools import ToolOutput
from toolgate.sandbox.sandbox import Command, Finished, Lost, NotStarted
from toolgate.tools.definitions import Args, Context, define, failed, text_of
from toolgate.tools.engines.output_decoder import Pieces

MAX_TIMEOUT_MS = 175_000  # the sandbox's own cap (DESIGN, "The sandbox")


class ShellArgs(Args, frozen=True):
    command: Annotated[str, msgspec.Meta(min_length=1, max_length=128 * 1024)]
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_MS)] | None = None


async def run(args: ShellArgs, context: Context) -> ToolOutput:
    timeout = args.timeout_ms / 1000 if args.timeout_ms is not None else None
    command = Command(args.command, timeout_seconds=timeout, clean=context.request.clean)
    pieces = Pieces(context.update)
    try:
        finished = await context.in_session(lambda session: session.exec(command, piece=pieces))
    except NotStarted as failure:
        return failed(f"shell: {failure}")
    except Lost as failure:
        return failed(f"shell: {failure}", outcome=Outcome.MAY_HAVE_EXECUTED)
    pieces.end()
    return _output(finished, isolation=context.isolation)


def _output(finished: Finished, *, isolation: str) -> ToolOutput:
    notes = {
        "timed out": finished.timed_out,
        "too much output": finished.flooded,
        "too many files": finished.crowded,
    }
    ends = "".join(f"\n[killed: {note}]" for note, true in notes.items() if true)
    return ToolOutput(
        exit_code=finished.exit_code or (1 if ends else 0),
        stdout=text_of(finished.stdout, total=finished.stdout_total),
        stderr=text_of(finished.stderr, total=finished.stderr_total) + ends,
        data={"timed_out": finished.timed_out, "truncated": finished.cut},
        isolation=isolation,
        truncated=finished.cut,
    )


TOOL = define(
    "shell",
    description="Run a shell command in the session's sandbox.",
    level=Level.WRITE,
    repeatable=False,
    args=ShellArgs,
    run=run,
)
