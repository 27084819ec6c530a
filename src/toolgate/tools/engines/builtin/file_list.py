"""`file.list`: what a directory of the session's workspace holds."""

from typing import Annotated, Final

import msgspec

from toolgate.core.enums import Level
from toolgate.core.tools import ToolOutput
from toolgate.sandbox.sandbox import SandboxError
from toolgate.tools.definitions import Args, Context, define, failed

MAX_ENTRIES: Final = 1000


class FileListArgs(Args, frozen=True):
    path: Annotated[str, msgspec.Meta(max_length=4096)]


async def run(args: FileListArgs, context: Context) -> ToolOutput:
    try:
        found = await context.in_session(
            lambda session: session.files.list(args.path, recursive=False, limit=MAX_ENTRIES + 1)
        )
    except SandboxError as refused:
        return failed(f"file.list: {refused}")
    entries, cut = found[:MAX_ENTRIES], len(found) > MAX_ENTRIES
    lines = [f"{entry.path}/" if entry.kind == "dir" else entry.path for entry in entries]
    return ToolOutput(
        exit_code=0,
        stdout="".join(f"{line}\n" for line in lines),
        stderr=f"[cut: the first {MAX_ENTRIES} entries]" if cut else "",
        data=[{"path": e.path, "kind": e.kind, "size": e.size} for e in entries],
        isolation=context.isolation,
        truncated=cut,
    )


TOOL = define(
    "file.list",
    description="List a directory of the workspace.",
    level=Level.READ,
    repeatable=True,
    args=FileListArgs,
    run=run,
)
