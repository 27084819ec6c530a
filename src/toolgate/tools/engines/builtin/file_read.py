"""`file.read`: the beginning of a file of the session's workspace."""

from typing import Annotated

import msgspec

from toolgate.core.enums import Level
from toolgate.core.tools import ToolOutput
from toolgate.sandbox.sandbox import SandboxError
from toolgate.tools.definitions import MAX_OUTPUT_BYTES, Args, Context, define, failed


class FileReadArgs(Args, frozen=True):
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_OUTPUT_BYTES)] = 4096


async def run(args: FileReadArgs, context: Context) -> ToolOutput:
    try:
        content = await context.in_session(
            lambda session: session.files.read(args.path, limit=args.max_bytes + 1)
        )
    except SandboxError as refused:
        return failed(f"file.read: {refused}")
    cut = len(content) > args.max_bytes
    kept = content[: args.max_bytes]
    return ToolOutput(
        exit_code=0,
        stdout=kept.decode("utf-8", "replace"),
        data={"path": args.path, "bytes": len(kept), "truncated": cut},
        isolation=context.isolation,
        truncated=cut,
    )


TOOL = define(
    "file.read",
    description="Read the first bytes of a file in the workspace.",
    level=Level.READ,
    repeatable=True,
    args=FileReadArgs,
    run=run,
)
