"""The tools over the official SDK: what a request becomes, and how an answer looks in MCP.

Importing this costs about a second of CPU, so `transports.py` does it on the first request.
"""

import asyncio
import base64
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolgate.core.concurrency import Background
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import ToolgateError
from toolgate.core.tools import Caller
from toolgate.http.asgi import CALLER
from toolgate.surfaces.mcp.task_answers import TaskAnswers
from toolgate.surfaces.mcp.task_extension import TaskExtension
from toolgate.surfaces.mcp.task_methods import TaskMethods, TaskServer
from toolgate.surfaces.mcp.tool_descriptions import INSTRUCTIONS, tool_offers
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import error_of
from toolgate.tasks.toolset import RUN, Answer, Asker, Call, Toolset, error_answer, unheard

log = logging.getLogger(__name__)

SCHEME: Final = "artifact://"
MAX_RESOURCE: Final = 4 * 1024 * 1024  # a larger artifact is read with get_artifact
REMEMBERED: Final = 1000  # requests whose cancellation may still come

Context = ServerRequestContext[Any, Any]
_Request = tuple[str, str, str]  # the caller, the connection, the request's id


class BrowserTools:
    """Handlers for one trust level, shared by all its connections."""

    def __init__(
        self, toolset: Toolset, *, trust: TrustLevel, caller: Caller, stdio: bool = False
    ) -> None:
        """`caller` is who asks where the request's scope names nobody."""
        # At its debug level the SDK logs whole messages, and with them what is typed into logins.
        # One that it cannot read it logs in part, as an error: its sender was told so.
        logging.getLogger("mcp").setLevel(logging.WARNING)
        logging.getLogger("mcp.server.sse").setLevel(logging.CRITICAL)
        self._toolset = toolset
        self._trust = trust
        self._caller = caller
        self._stdio = stdio
        offers = tool_offers()
        self._tools = types.ListToolsResult.model_validate({"tools": offers})
        self._input_schemas = {offer["name"]: offer["inputSchema"] for offer in offers}
        self._answers = TaskAnswers(toolset, asker=self._asker, result=_result)
        self._tasks = TaskExtension(self._answers)
        self._began: OrderedDict[_Request, str] = OrderedDict()
        self._unwanted: OrderedDict[_Request, bool] = OrderedDict()
        self._canceling = Background()

    def server(self) -> Server[Any]:
        server = TaskServer(
            "toolgate-browser",
            version=version("toolgate"),
            title="Toolgate browser tasks",
            instructions=INSTRUCTIONS,
            get_tool_input_schema=self._input_schemas.get,  # else each call lists the tools first
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
        )
        server.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, self._cancelled
        )
        TaskMethods(self._answers, self._tasks).install(server)
        return server

    def _asker(self, ctx: Context) -> Asker:
        scope = {} if ctx.request is None else ctx.request.scope
        return Asker(self._trust, scope.get(CALLER, self._caller), self._client(ctx))

    async def _list_tools(self, _ctx: Context, _params: Any) -> types.ListToolsResult:
        return self._tools

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        if not self._toolset.has(params.name):
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        try:
            if params.name != RUN:
                call = Call(self._asker(ctx))
                return _result(await self._toolset.call(params.name, _given(params), call), ctx)
            if self._tasks.takes(ctx, params):
                return await self._tasks.call(ctx, params)
            return await self._run(ctx, params)
        except ToolgateError as failed:
            return self._answers.refused(ctx, failed)

    async def _run(self, ctx: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        """A run, told of while it works, and canceled with the request."""
        request = self._named(ctx, ctx.request_id)
        run_ids: list[str] = []
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        gone = False

        def began(run_id: str) -> None:
            """Perhaps only when nobody waits for it any more."""
            run_ids.append(run_id)
            if gone or self._unwanted.pop(request, False):
                self._cancel_soon(run_id)
            else:
                self._remember(request, run_id)

        with _telling(ctx) as progress:
            call = Call(self._asker(ctx), progress=progress, began=began)
            try:
                return _result(await self._toolset.call(RUN, _given(params), call), ctx)
            except asyncio.CancelledError:
                # At 2026-07-28 over HTTP a client cancels by closing its stream. Before, a
                # stream that breaks says nothing, and a cancellation is a notification.
                if is_modern:
                    gone = True
                    for run_id in run_ids:
                        self._cancel_soon(run_id)
                raise

    async def _cancelled(self, ctx: Context, params: types.CancelledNotificationParams) -> None:
        named = self._named(ctx, params.request_id)
        run_id = self._began.pop(named, None)
        if run_id is not None:
            self._cancel_soon(run_id)
        elif ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._unwanted[named] = True  # it may begin yet
            while len(self._unwanted) > REMEMBERED:
                self._unwanted.popitem(last=False)

    async def _list_resources(self, ctx: Context, _params: Any) -> types.ListResourcesResult:
        found = []
        for run in (await self._answers.listed(ctx))[:100]:
            for artifact_id in run.artifact_ids:
                found.append(
                    types.Resource(
                        uri=SCHEME + artifact_id,
                        name=artifact_id,
                        description=f"Left by {run.run_id} ({run.template_id})",
                    )
                )
        return types.ListResourcesResult(resources=found)

    async def _list_resource_templates(
        self, _ctx: Context, _params: Any
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=SCHEME + "{artifactId}",
            name="artifact",
            description="An artifact of a run, whole; larger ones with get_artifact.",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        artifact_id = uri.removeprefix(SCHEME)
        artifacts, asker = self._toolset.runtime.artifacts, self._asker(ctx)
        try:
            await self._toolset.authorize("get_artifact", {"artifactId": artifact_id}, asker)
            artifact = await artifacts.get(artifact_id, viewer=asker.name)
            fits = artifact.size <= MAX_RESOURCE
            content = await artifacts.read(artifact_id) if fits else b""
        except ToolgateError as failed:
            error = error_of(failed)
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=error.message,
                data={**error_answer(error), "uri": uri},
            ) from failed
        if not fits:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"{artifact.size} bytes are too many for one answer: use get_artifact",
                data={"uri": uri},
            )
        return types.ReadResourceResult(contents=[_contents(uri, artifact.mime_type, content)])

    def _client(self, ctx: Context) -> str:
        """The name of the connection: its sessions are closed when it goes away."""
        request = ctx.request
        if self._stdio or request is None:
            return "stdio"
        return client_name(
            request.headers.get("mcp-session-id", ""),
            request.query_params.get("session_id", ""),
        )

    def _named(self, ctx: Context, request_id: Any) -> _Request:
        """A request by its caller, too: clients without a session share one connection's name."""
        asker = self._asker(ctx)
        return asker.name, asker.client, str(request_id)

    def _remember(self, request: _Request, run_id: str) -> None:
        self._began[request] = run_id
        while len(self._began) > REMEMBERED:
            self._began.popitem(last=False)

    def _cancel_soon(self, run_id: str) -> None:
        """In a task of its own: the request that it belongs to is being torn down."""
        self._canceling.start(self._cancel(run_id))

    async def _cancel(self, run_id: str) -> None:
        with contextlib.suppress(TaskFailed):
            await self._toolset.runtime.cancel(run_id)


def _given(params: types.CallToolRequestParams) -> dict[str, Any]:
    return params.arguments or {}


def client_name(http_session: str, sse_session: str) -> str:
    return f"http:{http_session}" if http_session else f"sse:{sse_session}"


@contextlib.contextmanager
def _telling(ctx: Context) -> Iterator[Callable[[int, int], None]]:
    """Progress notifications for a caller that asked for them; only the latest is worth sending."""
    if not (ctx.meta and "progress_token" in ctx.meta):
        yield unheard
        return
    latest: list[tuple[int, int]] = []
    changed = asyncio.Event()

    def report(done: int, total: int) -> None:
        latest[:] = [(done, total)]
        changed.set()

    async def send() -> None:
        while True:
            await changed.wait()
            changed.clear()
            done, total = latest[0]
            await ctx.session.report_progress(done, total)

    sending = asyncio.ensure_future(send())
    try:
        yield report
    finally:
        sending.cancel()


def _result(answer: Answer, ctx: Context) -> dict[str, Any]:
    """Structured content, the same as text, and links to what the run left.

    A refusal and a run that failed or was canceled have an `errorCode` of their own; an answer that
    only shows such a run has it in `error`.
    """
    content: list[dict[str, Any]] = [{"type": "text", "text": msgspec.json.encode(answer).decode()}]
    links = answer.get("artifactIds")
    if links:
        content += [
            {"type": "resource_link", "uri": SCHEME + artifact_id, "name": artifact_id}
            for artifact_id in links
        ]
    result = {"content": content, "structuredContent": answer, "isError": "errorCode" in answer}
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        result["resultType"] = "complete"
    return result


def _contents(
    uri: str, mime_type: str, content: bytes
) -> types.TextResourceContents | types.BlobResourceContents:
    if mime_type.startswith("text/") or mime_type == "application/json":
        return types.TextResourceContents(uri=uri, mime_type=mime_type, text=content.decode())
    encoded = base64.b64encode(content).decode()
    return types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=encoded)
