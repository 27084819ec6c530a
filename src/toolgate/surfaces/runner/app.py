"""The runner's door (seed 000): one tool call per `POST /execute`, and `GET /health`.

It knows the wire and an engine; where the tool runs is the engine's business. A caller that goes away
takes its command with it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.contracts import runner_v1 as wire
from toolgate.contracts.wire import UNREADABLE, given, to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome
from toolgate.core.tools import Caller, JsonValue, ToolOutput, ToolRequest
from toolgate.http import asgi
from toolgate.tools.engine import Engine

log = logging.getLogger(__name__)

BODY_LIMIT: Final = 8 * 1024 * 1024
BODY_SECONDS: Final = 180.0  # no gateway waits longer for the whole call
MOST_UPDATES: Final = 64  # of an answer that is not streamed; more are joined
SETTLE_SECONDS: Final = 10.0  # for a command to be killed once its caller has gone


@dataclass(frozen=True, slots=True)
class Options:
    backend: str
    isolation: str
    token: str = ""
    body_limit: int = BODY_LIMIT
    body_seconds: float = BODY_SECONDS
    can_be_clean: bool = False  # a command that asks for it gets a fixed environment


class Refused(Exception):
    """The request ends here, with one of the contract's codes."""

    def __init__(self, code: wire.ErrorCode, message: str, *, hang_up: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.headers = {"connection": "close"} if hang_up else {}


class RunnerApp:
    """An ASGI application."""

    def __init__(
        self,
        engine: Engine | None,
        *,
        options: Options,
        clock: Clock,
        usage: Callable[[], wire.Usage],
    ) -> None:
        """Without an engine it is the mock of seed 000 §8, and runs nothing."""
        self._engine = engine
        self._options = options
        self._clock = clock
        self._usage = usage

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            await self._route(request, scope, receive, send)
        except Refused as refused:
            error = wire.ToolError(code=refused.code, message=str(refused))
            status = wire.ERROR_CODES[refused.code].status
            answer = asgi.Json(
                wire.Refusal(error=error), status_code=status or 500, headers=refused.headers
            )
            await answer(scope, receive, send)

    async def _route(
        self, request: Request, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        if not self._options.token and asgi.is_of_a_page(request):
            message = "a runner without a token answers no web page, and to no foreign Host"
            raise Refused(wire.ErrorCode.UNAUTHORIZED, message)
        route = (request.method, request.url.path)
        if route == ("GET", wire.HEALTH_PATH):
            await asgi.Json(self._health())(scope, receive, send)
        elif route == ("POST", wire.EXECUTE_PATH):
            self._check_bearer(request)
            call = await self._read(request)
            streams = wire.NDJSON_TYPE in request.headers.get(wire.HEADER_ACCEPT, "")
            if self._engine is None:
                await self._mock(call.call.name, streams=streams)(scope, receive, send)
                return
            running = Running(self._engine, _tool_request(call), self._now)
            async with running.until_gone(receive):
                if streams:
                    await _stream(running, send)
                else:
                    answer = await _whole(running)
                    if answer is not None:
                        await answer(scope, receive, send)
        else:
            raise Refused(wire.ErrorCode.NOT_FOUND, f"there is no {route[0]} {route[1]}")

    def _check_bearer(self, request: Request) -> None:
        expected = self._options.token
        if expected and not asgi.same_secret(asgi.bearer(request), expected):
            raise Refused(wire.ErrorCode.UNAUTHORIZED, "the bearer token is missing or wrong")

    async def _read(self, request: Request) -> wire.ExecuteRequest:
        try:
            async with asyncio.timeout(self._options.body_seconds):
                body = await asgi.read_body(request, limit=self._options.body_limit)
            return wire.decode_request(body)
        except TimeoutError as late:
            message = "the body took too long"
            raise Refused(wire.ErrorCode.INVALID_REQUEST, message, hang_up=True) from late
        except (asgi.BodyTooLarge, *UNREADABLE) as malformed:
            raise Refused(wire.ErrorCode.INVALID_REQUEST, str(malformed)) from malformed

    def _mock(self, tool: str, *, streams: bool) -> Response:
        """The answer of seed 000 §8, with an update first where the gateway wants a stream."""
        result = wire.ToolResult(ok=True, output=f"mock-runner:{tool}")
        if not streams:
            return asgi.Json(wire.WrappedResult(result=result))
        update = wire.StreamLine(delta=f"runner:{tool}", at=self._now())
        lines = (update, wire.StreamLine(result=result))
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        return Response(content, media_type=wire.NDJSON_TYPE)

    def _health(self) -> wire.Health:
        return wire.Health(
            ok=True,
            service=wire.SERVICE,
            backend=self._options.backend,
            usage=self._usage(),
            time=self._now(),
            isolation=self._options.isolation,
            no_links=True,
            clean=self._options.can_be_clean,
        )

    def _now(self) -> str:
        return to_iso_ms(self._clock.now_ms())


class Running:
    """One call under way: its updates as they come, then its end."""

    def __init__(self, engine: Engine, request: ToolRequest, now: Callable[[], str]) -> None:
        self._now = now
        self._lines: asyncio.Queue[wire.Update | None] = asyncio.Queue()
        self._engine = engine
        self._request = request
        self._task: asyncio.Task[ToolOutput] | None = None

    @contextlib.asynccontextmanager
    async def until_gone(self, receive: asgi.Receive) -> AsyncIterator[None]:
        """Run the call for as long as somebody waits for it."""
        self._task = asyncio.create_task(self._engine.run(self._request, update=self._update))
        self._task.add_done_callback(lambda _: self._lines.put_nowait(None))
        watcher = asyncio.create_task(self._watch(receive, self._task))
        try:
            yield
        finally:
            watcher.cancel()
            self._task.cancel()
            await asyncio.wait([watcher, self._task], timeout=SETTLE_SECONDS)

    async def _watch(self, receive: asgi.Receive, task: "asyncio.Task[ToolOutput]") -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        log.info("runner_caller_gone request=%s", self._request.request_id)
        task.cancel()

    def _update(self, text: str) -> None:
        self._lines.put_nowait(wire.Update(delta=text, at=self._now()))

    async def updates(self) -> AsyncIterator[wire.Update]:
        while (line := await self._lines.get()) is not None:
            yield line

    async def result(self) -> wire.ToolResult | None:
        """The end; None where the caller has gone and nobody wants it."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return None
        failed = self._task.exception()
        if failed is not None:
            log.error("runner_failed request=%s", self._request.request_id, exc_info=failed)
            raise Refused(wire.ErrorCode.INTERNAL_ERROR, "the runner failed") from failed
        return _result(self._task.result())


async def _whole(running: Running) -> Response | None:
    updates: list[wire.Update | str] = []
    async for update in running.updates():
        last = updates[-1] if updates else None
        if len(updates) >= MOST_UPDATES and isinstance(last, wire.Update):
            updates[-1] = wire.Update(delta=last.delta + update.delta, at=last.at)
        else:
            updates.append(update)
    result = await running.result()
    if result is None:
        return None
    return asgi.Json(wire.WrappedResult(result=result, updates=updates or msgspec.UNSET))


async def _stream(running: Running, send: asgi.Send) -> None:
    headers = [(b"content-type", wire.NDJSON_TYPE.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def line(content: wire.StreamLine, *, more: bool = True) -> None:
        body = msgspec.json.encode(content) + b"\n"
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async for update in running.updates():
        await line(wire.StreamLine(delta=update.delta, at=update.at))
    try:
        result = await running.result()
    except Refused as refused:
        error = wire.ToolError(code=refused.code, message=str(refused))
        result = wire.ToolResult(ok=False, error=error, outcome=Outcome.MAY_HAVE_EXECUTED)
    if result is not None:
        await line(wire.StreamLine(result=result), more=False)


def usage_of(cpu: float, memory: float, disk: float) -> wire.Usage:
    return wire.Usage(cpu_percent=cpu, memory_percent=memory, disk_percent=disk)


def _tool_request(call: wire.ExecuteRequest) -> ToolRequest:
    """Whose call it is, as the gateway says: it has the bearer, and tenants are its to tell."""
    return ToolRequest(
        request_id=given(call.ctx.tool_call_id, ""),
        tool=call.call.name,
        args=call.call.args,
        caller=Caller(
            tenant=call.target.tenant_id,
            workspace=given(call.target.workspace_id, ""),
            session=call.ctx.session_id,
        ),
        run_id=call.ctx.run_id,
        target_id=call.target.target_id,
        no_links=given(call.call.no_links, False),
        clean=given(call.call.clean, False),
    )


def _result(output: ToolOutput) -> wire.ToolResult:
    data = output.data if isinstance(output.data, dict) else {}
    return wire.ToolResult(
        ok=output.ok,
        output=output.stdout if output.ok else msgspec.UNSET,
        error=msgspec.UNSET if output.ok else _error(output, data),
        exit_code=output.exit_code,
        stdout=output.stdout if not output.ok else msgspec.UNSET,
        stderr=output.stderr or msgspec.UNSET,
        isolation=output.isolation,
        outcome=output.outcome,
        truncated=output.truncated or msgspec.UNSET,
        timed_out=data.get("timedOut") is True or msgspec.UNSET,
        workspace="new" if data.get("workspace") == "new" else msgspec.UNSET,
    )


def _error(output: ToolOutput, data: dict[str, JsonValue]) -> wire.ToolError:
    told = data.get("error")
    if isinstance(told, dict):
        return wire.ToolError(code=str(told.get("code")), message=str(told.get("message")))
    last = output.stderr.strip().rpartition("\n")[2][:300]
    message = f"exit code {output.exit_code}" + (f": {last}" if last else "")
    return wire.ToolError(code=wire.ErrorCode.TOOL_EXEC_FAILED, message=message)
