"""Commands as rows, for tests that need no gateway."""

import msgspec

from tests.support.seal import PlainSeal
from toolgate.access.devices import Identity, Who
from toolgate.commands.plans import Command
from toolgate.commands.records import EndedCommand, Rows
from toolgate.contracts.gateway_v1 import Answer
from toolgate.core.enums import CommandKind
from toolgate.core.ids import Owner

LAPTOP = Identity(Who.DEVICE, "laptop")
ANSWER = msgspec.json.encode(Answer(ok=True, data="done", trace_id="t"))
COMMAND = Command(
    kind=CommandKind.TOOL,
    identity=LAPTOP,
    raw=b"{}",
    body=None,
    command_id="cmd_1",
    request_id="r",
    key="",
    request_hash="hash",
    trace_id="t",
    at=0,
    started=0.0,
)
ROWS = Rows(PlainSeal(), Owner("local", "inc_2"))


def as_command(**changed: object) -> Command:
    return msgspec.structs.replace(COMMAND, **changed)


def ended(command: Command, at: int, *, body: bytes = ANSWER) -> EndedCommand:
    return EndedCommand(200, body, command.request_hash, at=0, ended_at=at, key=command.key)
