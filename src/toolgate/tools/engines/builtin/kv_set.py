"""`kv.set`: keep a value under a key."""

from typing import Any

import msgspec

from toolgate.core.enums import Level
from toolgate.core.tools import ToolOutput
from toolgate.journal.rows import store
from toolgate.tools.definitions import Args, Context, define, failed, refused
from toolgate.tools.engines.builtin.kv import COLLECTION, MAX_VALUE_BYTES, Key, row_key


class KvSetArgs(Args, frozen=True):
    key: Key
    value: Any


async def run(args: KvSetArgs, context: Context) -> ToolOutput:
    value = msgspec.json.encode(args.value)
    if len(value) > MAX_VALUE_BYTES:
        return failed(f"kv.set: a value has at most {MAX_VALUE_BYTES} bytes")
    if context.holds_secret(f"{args.key}\0{value.decode()}"):
        return refused("kv.set: the value or its key holds a secret, and secrets are not kept")
    await store(context.journal, COLLECTION, row_key(context.request.caller, args.key), value)
    return ToolOutput(exit_code=0, stdout="OK")


TOOL = define(
    "kv.set",
    description="Keep a value of this workspace under a key.",
    level=Level.WRITE,
    repeatable=True,
    args=KvSetArgs,
    run=run,
)
