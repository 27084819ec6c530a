"""The tools that a session's own devices can run, as they said when they connected."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolgate.domain.tools import Level, Tool
from toolgate.ports.journal import Journal, Put

SESSION_TOOLS: Final = "session_tools"


class _Line(msgspec.Struct, frozen=True):
    name: str
    description: str
    level: Level
    schema: dict[str, Any]
    repeatable: bool


_decode: Final = msgspec.json.Decoder(list[_Line]).decode


@dataclass(slots=True)
class SessionTools:
    journal: Journal

    async def register(self, session_id: str, tools: Sequence[Tool]) -> None:
        lines = [
            _Line(tool.name, tool.description, tool.level, dict(tool.schema), tool.repeatable)
            for tool in tools
        ]
        await self.journal.commit(Put(SESSION_TOOLS, session_id, msgspec.json.encode(lines)))

    async def of(self, session_id: str) -> list[Tool]:
        row = await self.journal.get(SESSION_TOOLS, session_id)
        if row is None:
            return []
        return [
            Tool(line.name, line.description, line.level, line.schema, line.repeatable)
            for line in _decode(row.value)
        ]
