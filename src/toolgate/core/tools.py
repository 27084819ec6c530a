"""A tool, a call of it, and what came of the call.

Who calls is decided by the server at the door the call came in by, never read from a body.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from toolgate.core.enums import CommandKind, Level, Outcome

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


_RANKS: Final = {level: rank for rank, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    level: Level
    schema: Mapping[str, JsonValue]  # JSON Schema of the arguments
    repeatable: bool  # safe to run again after a crash
    definition: str = ""  # the digest of what an MCP server says of it, as pinned


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, as the server authenticated it."""

    tenant: str = "t_default"
    workspace: str = "w_default"
    device: str = ""
    user: str = ""
    role: str = ""
    level: Level = Level.READ
    agent: str = ""
    session: str = ""


class CommandScope(NamedTuple):
    """The scope that a call's device or service needs: that of the command it is part of."""

    kinds: tuple[CommandKind, ...]
    level: Level


class ToolRequest(NamedTuple):
    request_id: str
    tool: str
    args: Mapping[str, JsonValue]
    caller: Caller = Caller()
    run_id: str = ""
    step_id: str = ""
    policy_ref: str = "policy.default"
    target_id: str = ""  # an execution target; empty: the default one
    no_links: bool = False  # a path or `cwd` with a link in it is refused
    scope: CommandScope | None = None  # None: no command's
    clean: bool = False  # a command runs in a fixed environment, whatever earlier ones have set
    on_client: bool = False  # a device of the caller's session runs it


class ToolOutput(NamedTuple):
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    data: JsonValue = None
    outcome: Outcome = Outcome.EXECUTED
    isolation: str = "in-process"
    says_null: bool = False  # data is null, rather than left out
    truncated: bool = False  # there was more output than is here

    @property
    def ok(self) -> bool:
        return self.exit_code == 0
