"""The engine of the built-in tools: each call gets what it may use, and nothing else."""

from collections.abc import Callable, Sequence
from typing import Final

from toolgate.core.errors import Invalid
from toolgate.core.tools import Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Journal
from toolgate.tools.definitions import Context, OpenSession, Permits, failed, read_args
from toolgate.tools.engine import Update, no_update
from toolgate.tools.engines.builtin.registry import BUILT_IN
from toolgate.web.web import Web

_TOOLS: Final = tuple(built_in.tool for built_in in BUILT_IN.values())


class BuiltInEngine:
    def __init__(
        self,
        *,
        journal: Journal,
        web: Web,
        session: OpenSession,
        isolation: str,
        permits: Permits,
        version: str,
        holds_secret: Callable[[str], bool] = lambda _text: False,
    ) -> None:
        self._journal = journal
        self._web = web
        self._session = session
        self._isolation = isolation
        self._permits = permits
        self._version = version
        self._holds_secret = holds_secret

    @property
    def ref(self) -> str:
        return f"toolgate_builtin@{self._version}"

    def tools(self) -> Sequence[Tool]:
        return _TOOLS

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        built_in = BUILT_IN.get(request.tool)
        if built_in is None:
            return failed(f"Unknown tool: {request.tool}")
        try:
            args = read_args(request.args, built_in.args)
        except Invalid as invalid:
            return failed(f"{request.tool}: {invalid}")
        context = Context(
            request=request,
            journal=self._journal,
            web=self._web,
            session=self._session,
            isolation=self._isolation,
            permits=self._permits,
            update=update,
            holds_secret=self._holds_secret,
        )
        return await built_in.run(args, context)
