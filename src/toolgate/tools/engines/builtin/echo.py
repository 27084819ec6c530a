"""`echo`: gives back what it was given."""

from toolgate.core.enums import Level
from toolgate.core.tools import ToolOutput
from toolgate.tools.definitions import Args, Context, define


class EchoArgs(Args, frozen=True):
    text: str


async def run(args: EchoArgs, _context: Context) -> ToolOutput:
    return ToolOutput(exit_code=0, stdout=args.text)


TOOL = define(
    "echo",
    description="Give back the text.",
    level=Level.READ,
    repeatable=True,
    args=EchoArgs,
    run=run,
)
