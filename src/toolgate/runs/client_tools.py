"""The tools that a session's devices registered when they connected."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolgate.core.enums import Level
from toolgate.core.errors import Conflict
from toolgate.core.tools import Tool
from toolgate.journal.journal import Delete, Journal, Put
from toolgate.journal.rows import store
from toolgate.runs import records
from toolgate.runs.retention import Sweep

SESSION_TOOLS: Final = "session_tools"


class _Line(msgspec.Struct, frozen=True):
    name: str
    description: str
    level: Level
    schema: dict[str, Any]
    repeatable: bool


class _Lines(msgspec.Struct, frozen=True):
    tools: list[_Line]
    at: int = 0  # when retention last found them in use; 0 until it has looked


_decode_lines: Final = msgspec.json.Decoder(_Lines | list[_Line]).decode


def _decode(value: bytes) -> _Lines:
    lines = _decode_lines(value)
    return lines if isinstance(lines, _Lines) else _Lines(lines)  # as they were once written


@dataclass(slots=True)
class SessionTools:
    journal: Journal
    _sweep: Sweep = field(init=False)

    def __post_init__(self) -> None:
        self._sweep = Sweep(self.journal, SESSION_TOOLS)

    async def register(self, session_id: str, tools: Sequence[Tool]) -> None:
        lines = [
            _Line(tool.name, tool.description, tool.level, dict(tool.schema), tool.repeatable)
            for tool in tools
        ]
        row = msgspec.json.encode(_Lines(lines))
        await store(self.journal, SESSION_TOOLS, session_id, row)

    async def of(self, session_id: str) -> list[Tool]:
        row = await self.journal.get(SESSION_TOOLS, session_id)
        if row is None:
            return []
        return [
            Tool(line.name, line.description, line.level, line.schema, line.repeatable)
            for line in _decode(row.value).tools
        ]

    async def forget(self, before: int, *, now: int, is_online: Callable[[str], bool]) -> int:
        """Delete the tools of sessions that were not in use since `before`; the number of sessions."""
        forgotten = 0
        for row in await self._sweep.page():
            lines = _decode(row.value)
            if lines.at >= before:
                continue
            in_use = is_online(row.key) or await records.is_active(self.journal, row.key)
            change: Put | Delete
            if in_use or not lines.at:
                seen = msgspec.json.encode(msgspec.structs.replace(lines, at=now))
                change = Put(row.collection, row.key, seen, expected=row.version)
            else:
                change = Delete(row.collection, row.key, expected=row.version)
            with contextlib.suppress(Conflict):  # registered anew meanwhile
                await self.journal.commit(change, durable=False)
                forgotten += isinstance(change, Delete)
        return forgotten
