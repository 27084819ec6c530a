"""`text.upper`: a text in capitals."""

from toolgate.core.enums import Level
from toolgate.core.tools import ToolOutput
from toolgate.tools.definitions import Args, Context, define


class TextUpperArgs(Args, frozen=True):
    text: str


async def run(args: TextUpperArgs, _context: Context) -> ToolOutput:
    return ToolOutput(exit_code=0, stdout=args.text.upper())


TOOL = define(
    "text.upper",
    description="Write the text in capitals.",
    level=Level.READ,
    repeatable=True,
    args=TextUpperArgs,
    run=run,
)
