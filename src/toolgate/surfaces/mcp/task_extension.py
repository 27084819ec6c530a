"""The tasks extension (`io.modelcontextprotocol/tasks`, revision 2026-07-28) on our runs.

A client that declares it gets a task for a run whose mode it left to us, and asks for its state
until the result is in it. A run never asks its client for anything, so no task waits for input.
"""

from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolgate.contracts.wire import to_iso_ms
from toolgate.core.enums import TaskCode, TaskMode, TaskStatus
from toolgate.surfaces.mcp.task_answers import POLL_MS, TaskAnswers, status_message
from toolgate.tasks.state import RUN_TTL_MS, TaskRun
from toolgate.tasks.toolset import RUN

EXTENSION: Final = "io.modelcontextprotocol/tasks"

Context = ServerRequestContext[Any, Any]


class UpdateTaskRequestParams(types.RequestParams):
    """Answers to what a task asked for."""

    task_id: str
    input_responses: dict[str, Any]


class TaskExtension:
    def __init__(self, answers: TaskAnswers) -> None:
        self._answers = answers

    def takes(self, ctx: Context, params: types.CallToolRequestParams) -> bool:
        """Return True if this call is answered with a task."""
        if params.name != RUN or not declared(ctx):
            return False
        options = (params.arguments or {}).get("options")
        mode = options.get("mode", TaskMode.AUTO) if isinstance(options, dict) else TaskMode.AUTO
        return mode == TaskMode.AUTO

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        """Begin a run; raises TaskFailed where there is none to begin."""
        run = await self._answers.begin(ctx, params.arguments or {})
        return {"resultType": "task", **_task(run)}

    async def get(self, ctx: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        self._check(ctx, params.task_id)
        run = await self._answers.find(ctx, params.task_id)
        task = _task(run)
        if task["status"] == "completed":
            task["result"] = await self._answers.result(ctx, run)
        if task["status"] == "failed" and run.error is not None:
            task["error"] = {
                "code": types.INTERNAL_ERROR,
                "message": run.error.message,
                "data": {"errorCode": run.error.code.value},
            }
        return task

    async def update(self, ctx: Context, params: UpdateTaskRequestParams) -> dict[str, Any]:
        """Nothing was asked for; answers to nothing are to be ignored."""
        self._check(ctx, params.task_id)
        await self._answers.find(ctx, params.task_id)
        return {}

    async def cancel(self, ctx: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
        self._check(ctx, params.task_id)
        await self._answers.cancel(ctx, params.task_id)
        return {}

    def _check(self, ctx: Context, task_id: str) -> None:
        require(ctx)
        named = ctx.request and decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
        if ctx.request is not None and named != task_id:
            raise MCPError(
                code=types.HEADER_MISMATCH,
                message=f"{MCP_NAME_HEADER} header does not match the request body's taskId",
            )


def declared(ctx: Context) -> bool:
    """Return True if the client of this request declares the extension."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    capabilities = ctx.session.client_capabilities
    return EXTENSION in ((capabilities and capabilities.extensions) or {})


def require(ctx: Context) -> None:
    """Refuse a client that does not know the extension what only the extension has."""
    if not declared(ctx):
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message=f"This needs the extension {EXTENSION}",
            data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )


def _task(run: TaskRun) -> dict[str, Any]:
    task: dict[str, Any] = {
        "taskId": run.run_id,
        "status": _status(run),
        "createdAt": to_iso_ms(run.created_at),
        "lastUpdatedAt": to_iso_ms(run.updated_at),
        "ttlMs": RUN_TTL_MS,
        "pollIntervalMs": POLL_MS,
    }
    if message := status_message(run):
        task["statusMessage"] = message
    return task


def _status(run: TaskRun) -> str:
    """A tool that says what went wrong has completed; only one that broke has failed."""
    if not run.is_over:
        return "working"
    if run.status is TaskStatus.CANCELED:
        return "cancelled"
    broke = run.raised and run.error is not None and run.error.code is TaskCode.EXECUTION_ERROR
    return "failed" if broke else "completed"
