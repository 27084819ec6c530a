"""The tools that a client offers to run itself."""

from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.contracts import ingress_v1 as wire
from toolgate.core.enums import Level

Run = Callable[[dict[str, Any]], Awaitable[Any]]


class ToolFailed(Exception):
    """Raise it in a tool to tell the agent what went wrong."""

    def __init__(self, message: str, *, code: str = "tool_failed") -> None:
        super().__init__(message)
        self.code = code


class Toolbox:
    def __init__(self) -> None:
        self._tools: dict[str, tuple[wire.ClientTool, Run]] = {}

    def tool(
        self,
        name: str,
        *,
        description: str = "",
        schema: dict[str, Any] | None = None,
        level: str = "write",
        repeatable: bool = False,
    ) -> Callable[[Run], Run]:
        """Offer an async function: it gets the arguments, and its result goes to the agent."""

        def offer(run: Run) -> Run:
            described = wire.ClientTool(
                name=name,
                description=description or (run.__doc__ or "").strip(),
                input_schema=schema or {"type": "object"},
                level=Level(level),
                repeatable=repeatable,
            )
            self._tools[name] = (described, run)
            return run

        return offer

    @property
    def described(self) -> list[wire.ClientTool]:
        return [described for described, _ in self._tools.values()]

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    async def run(self, request: wire.ToolRequest, *, now: int) -> wire.ToolResult:
        """Whatever a tool does, it is a result that can be sent."""
        result = await self._run(request, now=now)
        try:
            wire.encode(result)
        except Exception as unwritable:  # noqa: BLE001 - and it may return anything
            error = f"the result cannot be sent: {unwritable!a}"
            return _result(request, now, ok=False, error=error)
        return result

    async def _run(self, request: wire.ToolRequest, *, now: int) -> wire.ToolResult:
        _, run = self._tools[request.tool_name]
        try:
            result = await run(request.args)
        except ToolFailed as failed:
            return _result(request, now, ok=False, error=f"{failed.code}: {failed}")
        except Exception as failed:  # noqa: BLE001 - a tool of the user's may raise anything
            return _result(request, now, ok=False, error=f"{failed!r}")
        return _result(request, now, ok=True, result=result)


def _result(request: wire.ToolRequest, now: int, *, ok: bool, **output: Any) -> wire.ToolResult:
    return wire.ToolResult(request.tool_call_id, ok, request.run_id, ts=now, **output)
