"""MCP's own tasks on our runs: a run is a task, and has its id.

Revision 2025-11-25 has them in its core: the SDK knows their types and dispatches none of them; a
call of `run_task_template` that asks to be a task is taken before the SDK's handler, and `tasks/*`
are methods of ours. Revision 2026-07-28 has an extension instead: `task_extension.py`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolgate.contracts.wire import to_iso_ms
from toolgate.core.enums import TaskStatus
from toolgate.core.errors import ToolgateError
from toolgate.surfaces.mcp.task_answers import POLL_MS, TaskAnswers, status_message
from toolgate.surfaces.mcp.task_extension import EXTENSION, TaskExtension, UpdateTaskRequestParams
from toolgate.tasks.state import RUN_TTL_MS, TaskRun
from toolgate.tasks.toolset import RUN

RELATED: Final = "io.modelcontextprotocol/related-task"
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
Method = Callable[[Context, Any], Awaitable[dict[str, Any]]]


class TaskServer(Server[Any]):
    """Says that it has tasks, to each revision in its own words."""

    def get_capabilities(
        self,
        notification_options: Any = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        modern = protocol_version in MODERN_PROTOCOL_VERSIONS
        capabilities = super().get_capabilities(
            notification_options,
            experimental_capabilities,
            {**(extensions or {}), EXTENSION: {}} if modern else extensions,
            protocol_version=protocol_version,
        )
        if modern:
            return capabilities
        tasks = types.ServerTasksCapability.model_validate(
            {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        )
        return capabilities.model_copy(update={"tasks": tasks})


class TaskMethods:
    def __init__(self, answers: TaskAnswers, extension: TaskExtension) -> None:
        self._answers = answers
        self._extension = extension

    def install(self, server: Server[Any]) -> None:
        server.middleware.append(self._take_tasks)
        methods: list[tuple[str, type[types.RequestParams], Method | None, Method | None]] = [
            ("tasks/get", types.GetTaskRequestParams, self._get, self._extension.get),
            ("tasks/result", types.GetTaskPayloadRequestParams, self._payload, None),
            ("tasks/update", UpdateTaskRequestParams, None, self._extension.update),
            ("tasks/cancel", types.CancelTaskRequestParams, self._cancel, self._extension.cancel),
            ("tasks/list", types.PaginatedRequestParams, self._list, None),
        ]
        for name, params, core, extension in methods:
            server.add_request_handler(name, params, _by_revision(name, core, extension))

    async def _take_tasks(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        params = ctx.params or {}
        wanted = ctx.method == "tools/call" and isinstance(params.get("task"), dict)
        if not wanted or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return await call_next(ctx)
        if params.get("name") != RUN:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="This tool is never a task")
        given = params.get("arguments") or {}
        if not isinstance(given, dict):
            return await call_next(ctx)  # which says what is wrong with it
        try:
            # The SDK's client takes no answer of a tool that has no content.
            return {"content": [], "task": _task(await self._answers.begin(ctx, given))}
        except ToolgateError as failed:
            return self._answers.refused(ctx, failed)

    async def _get(self, ctx: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        return _task(await self._answers.find(ctx, params.task_id))

    async def _payload(
        self, ctx: Context, params: types.GetTaskPayloadRequestParams
    ) -> dict[str, Any]:
        """The answer that the call itself would have had, once there is one."""
        run = await self._answers.ended(await self._answers.find(ctx, params.task_id))
        result = await self._answers.result(ctx, run)
        return {**result, "_meta": {RELATED: {"taskId": run.run_id}}}

    async def _cancel(self, ctx: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
        run, canceled = await self._answers.cancel(ctx, params.task_id)
        if not canceled:
            raise MCPError(
                code=types.INVALID_PARAMS, message=f"The task has already ended: {run.status}"
            )
        return _task(run)

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        cursor = params.cursor or "0"
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise MCPError(code=types.INVALID_PARAMS, message="Unknown cursor")
        runs = await self._answers.listed(ctx)
        page = runs[int(cursor) : int(cursor) + PAGE]
        answer: dict[str, Any] = {"tasks": [_task(run) for run in page]}
        if int(cursor) + PAGE < len(runs):
            answer["nextCursor"] = str(int(cursor) + PAGE)
        return answer


def _by_revision(name: str, core: Method | None, extension: Method | None) -> Method:
    async def handle(ctx: Context, params: Any) -> dict[str, Any]:
        chosen = extension if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else core
        if chosen is None:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=name)
        return await chosen(ctx, params)

    return handle


def _task(run: TaskRun) -> dict[str, Any]:
    task: dict[str, Any] = {
        "taskId": run.run_id,
        "status": STATUSES[run.status],
        "createdAt": to_iso_ms(run.created_at),
        "lastUpdatedAt": to_iso_ms(run.updated_at),
        "ttl": RUN_TTL_MS,
        "pollInterval": POLL_MS,
    }
    if message := status_message(run):
        task["statusMessage"] = message
    return task
