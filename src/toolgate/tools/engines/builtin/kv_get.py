"""`kv.get`: a value by its key; an absent one is null, and no failure."""

import msgspec

from toolgate.core.enums import Level
from toolgate.core.tools import JsonValue, ToolOutput
from toolgate.tools.definitions import Args, Context, define
from toolgate.tools.engines.builtin.kv import COLLECTION, Key, row_key


class KvGetArgs(Args, frozen=True):
    key: Key


async def run(args: KvGetArgs, context: Context) -> ToolOutput:
    row = await context.journal.get(COLLECTION, row_key(context.request.caller, args.key))
    if row is None:
        return ToolOutput(exit_code=0, says_null=True)
    value: JsonValue = msgspec.json.decode(row.value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return ToolOutput(exit_code=0, stdout=text, data=value, says_null=value is None)


TOOL = define(
    "kv.get",
    description="Read a value of this workspace by its key.",
    level=Level.READ,
    repeatable=True,
    args=KvGetArgs,
    run=run,
)
