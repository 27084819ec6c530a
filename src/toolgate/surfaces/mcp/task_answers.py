"""Runs as both of MCP's task protocols need them: begin, find, cancel, answer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from toolgate.core.errors import ToolgateError
from toolgate.tasks.state import TaskFailed, TaskRun
from toolgate.tasks.template import error_of
from toolgate.tasks.toolset import RUN, Answer, Asker, Call, Toolset, error_answer

POLL_MS: Final = 500

Context = ServerRequestContext[Any, Any]
Shape = Callable[[Answer, Context], dict[str, Any]]


class TaskAnswers:
    def __init__(
        self, toolset: Toolset, *, asker: Callable[[Context], Asker], result: Shape
    ) -> None:
        """`result` makes an answer of a tool into that of tools/call."""
        self._toolset = toolset
        self._asker = asker
        self._result = result

    async def begin(self, ctx: Context, arguments: Mapping[str, Any]) -> TaskRun:
        """The run that a call of the tool became; raises TaskFailed where there is none."""
        options = arguments.get("options", {})  # what is no object is refused with the call
        asynchronous = {**options, "mode": "async"} if isinstance(options, dict) else options
        call = Call(self._asker(ctx))
        started = await self._toolset.call(RUN, {**arguments, "options": asynchronous}, call)
        return self._toolset.runtime.view(started["runId"])

    def refused(self, ctx: Context, failed: ToolgateError) -> dict[str, Any]:
        return self._result(error_answer(error_of(failed)), ctx)

    async def find(self, ctx: Context, task_id: str, *, tool: str = "get_task_run") -> TaskRun:
        """A run of the caller's, where it may call this tool for it."""
        asker = self._asker(ctx)
        try:
            await self._toolset.authorize(tool, {"runId": task_id}, asker)
            return self._toolset.runtime.view(task_id, viewer=asker.name)
        except TaskFailed as unknown:
            raise _refusal(unknown) from unknown

    async def listed(self, ctx: Context) -> list[TaskRun]:
        asker = self._asker(ctx)
        try:
            await self._toolset.authorize("list_task_runs", {}, asker)
        except TaskFailed as denied:
            raise _refusal(denied) from denied
        return self._toolset.runtime.listed(viewer=asker.name)

    async def ended(self, run: TaskRun) -> TaskRun:
        return await self._toolset.runtime.wait(run.run_id)

    async def cancel(self, ctx: Context, task_id: str) -> tuple[TaskRun, bool]:
        run = await self.find(ctx, task_id, tool="cancel_task_run")
        return await self._toolset.runtime.cancel(run.run_id)

    async def result(self, ctx: Context, run: TaskRun) -> dict[str, Any]:
        """The answer that the call itself would have had at the end of the run."""
        return self._result(await self._toolset.finished(run, run.mode), ctx)


def status_message(run: TaskRun) -> str:
    """The approval that a run waits for, or the error that it ended with; empty if neither."""
    return run.waits_for if run.error is None else f"{run.error.code}: {run.error.message}"


def _refusal(failed: TaskFailed) -> MCPError:
    data = error_answer(failed.error)
    return MCPError(code=types.INVALID_PARAMS, message=str(failed), data=data)
