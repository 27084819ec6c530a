"""The small store behind kv.get and kv.set: journal rows, apart for each tenant and workspace."""

from typing import Annotated, Final

import msgspec

from toolgate.core.tools import Caller

COLLECTION: Final = "kv"
MAX_VALUE_BYTES: Final = 64 * 1024

Key = Annotated[
    str, msgspec.Meta(min_length=1, max_length=512, description="The name of the value.")
]


def row_key(caller: Caller, key: str) -> str:
    """As JSON, so that no choice of names makes one workspace's key another's."""
    return msgspec.json.encode([caller.tenant, caller.workspace, key]).decode()
