"""`math.add`: the sum of two numbers."""

import math

from toolgate.core.enums import Level
from toolgate.core.tools import ToolOutput
from toolgate.tools.definitions import Args, Context, define, failed


class MathAddArgs(Args, frozen=True):
    a: int | float
    b: int | float


async def run(args: MathAddArgs, _context: Context) -> ToolOutput:
    try:
        total = args.a + args.b
    except OverflowError:
        return failed("math.add: the sum is too large")
    if isinstance(total, float) and not math.isfinite(total):
        return failed("math.add: the sum is too large")
    return ToolOutput(exit_code=0, stdout=str(total), data=total)


TOOL = define(
    "math.add",
    description="Add two numbers.",
    level=Level.READ,
    repeatable=True,
    args=MathAddArgs,
    run=run,
)
