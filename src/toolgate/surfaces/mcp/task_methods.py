"""MCP's own tasks (revision 2025-11-25) on our runs: a run is a task, and has its id.

The SDK knows their types and dispatches none of them; a call of `run_task_template` that asks to
be a task is taken before the SDK's handler, and `tasks/*` are methods of ours.
"""

from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolgate.contracts.wire import to_iso_ms
from toolgate.domain.task_runs import RUN_TTL_MS, TaskFailed, TaskRun, TaskStatus
from toolgate.tasks.toolset import Answer, Asker, Call, Toolset, error_answer

TOOL: Final = "run_task_template"
RELATED: Final = "io.modelcontextprotocol/related-task"
POLL_MS: Final = 500
PAGE: Final = 50
STATUSES: Final = {
    TaskStatus.QUEUED: "working",
    TaskStatus.RUNNING: "working",
    TaskStatus.SUCCEEDED: "completed",
    TaskStatus.PARTIAL_SUCCESS: "completed",
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELED: "cancelled",
}

Context = ServerRequestContext[Any, Any]
Shape = Callable[..., dict[str, Any]]


class TaskServer(Server[Any]):
    """Says that it has tasks, to the revision that has them."""

    def get_capabilities(
        self,
        notification_options: Any = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        capabilities = super().get_capabilities(
            notification_options,
            experimental_capabilities,
            extensions,
            protocol_version=protocol_version,
        )
        if protocol_version in MODERN_PROTOCOL_VERSIONS:
            return capabilities
        tasks = types.ServerTasksCapability.model_validate(
            {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        )
        return capabilities.model_copy(update={"tasks": tasks})


class TaskMethods:
    def __init__(
        self, toolset: Toolset, *, asker: Callable[[Context], Asker], result: Shape
    ) -> None:
        """`result` makes an answer of a tool into that of tools/call."""
        self._toolset = toolset
        self._asker = asker
        self._result = result

    def install(self, server: Server[Any]) -> None:
        server.middleware.append(self._take_tasks)
        server.add_request_handler("tasks/get", types.GetTaskRequestParams, self._get)
        server.add_request_handler("tasks/result", types.GetTaskPayloadRequestParams, self._payload)
        server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._cancel)
        server.add_request_handler("tasks/list", types.PaginatedRequestParams, self._list)

    async def _take_tasks(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        params = ctx.params or {}
        wanted = ctx.method == "tools/call" and isinstance(params.get("task"), dict)
        if not wanted or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return await call_next(ctx)
        if params.get("name") != TOOL:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="This tool is never a task")
        given = params.get("arguments") or {}
        options = given.get("options") if isinstance(given, dict) else None
        asynchronous = {**(options if isinstance(options, dict) else {}), "mode": "async"}
        try:
            started = await self._toolset.call(
                TOOL, {**given, "options": asynchronous}, Call(self._asker(ctx))
            )
        except TaskFailed as failed:
            return self._result(error_answer(failed.error), ctx, is_error=True)
        return {"task": _task(self._toolset.runtime.view(started["runId"]))}

    async def _get(self, _ctx: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        return _task(self._find(params.task_id))

    async def _payload(
        self, ctx: Context, params: types.GetTaskPayloadRequestParams
    ) -> dict[str, Any]:
        """The answer that the call itself would have had, once there is one."""
        run = self._find(params.task_id)
        run = await self._toolset.runtime.wait(run.run_id)
        answer = await self._shown(run, ctx)
        failed = run.raised and run.error is not None
        result = self._result(answer, ctx, is_error=failed)
        return {**result, "_meta": {RELATED: {"taskId": run.run_id}}}

    async def _shown(self, run: TaskRun, ctx: Context) -> Answer:
        if run.raised and run.error is not None:
            return error_answer(run.error)
        call = Call(self._asker(ctx))
        shown = await self._toolset.call("get_task_run", {"runId": run.run_id}, call)
        return {**shown, "mode": run.mode.value, "deduplicated": False}

    async def _cancel(self, _ctx: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
        self._find(params.task_id)
        run, canceled = await self._toolset.runtime.cancel(params.task_id)
        if not canceled:
            raise MCPError(
                code=types.INVALID_PARAMS, message=f"The task has already ended: {run.status}"
            )
        return _task(run)

    async def _list(self, _ctx: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        cursor = params.cursor or "0"
        if not cursor.isdigit():
            raise MCPError(code=types.INVALID_PARAMS, message="Unknown cursor")
        runs = self._toolset.runtime.listed()
        page = runs[int(cursor) : int(cursor) + PAGE]
        answer: dict[str, Any] = {"tasks": [_task(run) for run in page]}
        if int(cursor) + PAGE < len(runs):
            answer["nextCursor"] = str(int(cursor) + PAGE)
        return answer

    def _find(self, task_id: str) -> TaskRun:
        try:
            return self._toolset.runtime.view(task_id)
        except TaskFailed as unknown:
            raise MCPError(code=types.INVALID_PARAMS, message=str(unknown)) from unknown


def _task(run: TaskRun) -> dict[str, Any]:
    task: dict[str, Any] = {
        "taskId": run.run_id,
        "status": STATUSES[run.status],
        "createdAt": to_iso_ms(run.created_at),
        "lastUpdatedAt": to_iso_ms(run.updated_at),
        "ttl": RUN_TTL_MS,
        "pollInterval": POLL_MS,
    }
    if run.error is not None:
        task["statusMessage"] = f"{run.error.code}: {run.error.message}"
    return task
