"""The calls of the past, out of the evidence of a home that nobody need be serving.

Their arguments are as they were recorded, without secrets.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from toolgate.core.enums import Level
from toolgate.core.errors import NotFound
from toolgate.core.tools import Caller, ToolRequest
from toolgate.evidence.check import ClosedHome
from toolgate.policy.model import Effect
from toolgate.policy.simulate import RecordedCall


class _Record(msgspec.Struct, frozen=True):
    kind: str
    subject: str
    fields: dict[str, Any]
    artifacts: dict[str, str]


class _Request(msgspec.Struct, frozen=True):
    args: dict[str, Any]
    caller: Caller


def recorded_calls(home: ClosedHome) -> Iterator[RecordedCall]:
    """Each call that a policy has decided, oldest first, with that decision."""
    for data in home.records():
        record = msgspec.json.decode(data, type=_Record)
        ref = f"requests/{record.subject}/request.json"
        # A call that has waited is decided twice; only the first record has its request.
        if record.kind == "decision" and ref in record.artifacts:
            try:
                content = home.artifact(ref, record.artifacts[ref])
            except NotFound:  # a lost blob: what was asked cannot be decided again
                continue
            yield _recorded(record, msgspec.json.decode(content, type=_Request))


def _recorded(record: _Record, asked: _Request) -> RecordedCall:
    given: dict[str, Any] = {name: str(value) for name, value in record.fields.items()}
    return RecordedCall(
        ToolRequest(record.subject, given["tool"], asked.args, caller=asked.caller),
        Level(given.get("level", Level.WRITE)),
        Effect(given["decision"]),
        given["rule_id"],
    )
