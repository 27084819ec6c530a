"""The orchestrator's internal API: start runs, feed them, stop them, read them."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolgate.access.devices import Identity, Who
from toolgate.access.refusals import InvalidToken
from toolgate.contracts import orchestrator_v1 as wire
from toolgate.contracts.wire import UNREADABLE, field_of, given
from toolgate.core.clock import Clock
from toolgate.core.enums import CallStatus, Decision, RunStatus
from toolgate.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
    code_for,
)
from toolgate.core.tools import Tool
from toolgate.http import asgi
from toolgate.journal.bus import Bus
from toolgate.journal.following import follow
from toolgate.runs.agents.registry import External
from toolgate.runs.deliveries import ENDS, frame
from toolgate.runs.orchestrator import Invocation, UnknownAgent
from toolgate.runs.records import session_stream
from toolgate.runs.runs import Runs
from toolgate.runs.state import CallState, RunState
from toolgate.tools.approvals import HiddenArguments, Question

log = logging.getLogger(__name__)

INTERNAL: Final = "internal"  # in the audit: whoever has INTERNAL_TOKEN
SILENCE_S: Final = 15.0  # after which a stream says that it is still there, or a proxy would cut it
STILL_HERE: Final = b": \n\n"
DIGITS: Final = 18  # of an event's number; the journal counts in 64 bits
AGENT_PATH: Final = wire.AGENTS_PATH + "/{agent_id:path}"  # a name may hold a slash

CODES: Final[dict[type[Exception], wire.ErrorCode]] = {
    Invalid: wire.ErrorCode.INVALID_REQUEST,
    UnknownAgent: wire.ErrorCode.UNKNOWN_AGENT,
    NotFound: wire.ErrorCode.NOT_FOUND,
    Conflict: wire.ErrorCode.CONFLICT,
    HiddenArguments: wire.ErrorCode.HIDDEN_ARGUMENTS,
    Refused: wire.ErrorCode.CONFLICT,
    Unavailable: wire.ErrorCode.INTERNAL_ERROR,
    ToolgateError: wire.ErrorCode.INTERNAL_ERROR,
}


@dataclass(slots=True)
class OrchestratorApi:
    runs: Runs
    bus: Bus
    clock: Clock
    authenticate: Callable[[str], None]  # the internal token; raises InvalidToken
    push: Callable[[str, str], Awaitable[None]] | None = (
        None  # tell a remote ingress of a run's events
    )
    silence_s: float = SILENCE_S
    is_at_work: Callable[[str], bool] = lambda _: False
    streams: asgi.Streams = field(default_factory=asgi.Streams)
    _started: float = 0.0

    def app(self) -> Starlette:
        self._started = self.clock.monotonic()
        return Starlette(
            routes=[
                Route(wire.INVOKE_PATH, self._invoke, methods=["POST"]),
                Route(wire.SUBMIT_PATH, self._submit, methods=["POST"]),
                Route(wire.DECIDE_PATH, self._decide, methods=["POST"]),
                Route(wire.DECIDE_ALIAS_PATH, self._decide, methods=["POST"]),
                Route(wire.REVEAL_PATH, self._reveal, methods=["POST"]),
                Route(wire.CANCEL_PATH, self._cancel, methods=["POST"]),
                Route(wire.RUN_PATH, self._run, methods=["GET"]),
                Route(wire.RUN_EVENTS_PATH, self._events, methods=["GET"]),
                Route(wire.AGENTS_PATH, self._agents, methods=["GET"]),
                Route(wire.AGENTS_PATH, self._register_agent, methods=["POST"]),
                Route(AGENT_PATH, self._remove_agent, methods=["DELETE"]),
                Route(wire.SESSION_TOOLS_PATH, self._register_tools, methods=["POST", "PUT"]),
                Route(wire.HEALTH_PATH, self._health, methods=["GET"]),
            ],
            exception_handlers={
                ToolgateError: self._refused,
                **dict.fromkeys(UNREADABLE, self._unreadable),
                asgi.BodyTooLarge: self._too_large,
            },
        )

    async def _invoke(self, request: Request) -> Response:
        self._authorize(request)
        streams = wire.EVENT_STREAM_TYPE in request.headers.get("accept", "")
        asked: wire.InvokeRequest = wire.decode_invoke(await asgi.read_body(request))
        context = given(asked.context, {})
        run_id = await self.runs.invoke(
            Invocation(
                session_id=asked.session_id,
                user_id=str(context.get("user_id", "")),
                agent_id=asked.agent_id,
                role=asked.said.role,
                content=asked.said.content,
                request_id=asked.request_id,
                context=context,
            )
        )
        if streams:
            return self._event_stream(run_id, asked.session_id, after=0)
        if self.push is not None:
            await self.push(run_id, asked.session_id)
        return asgi.Json(wire.InvokeAccepted(run_id, asked.session_id, asked.agent_id))

    async def _submit(self, request: Request) -> Response:
        self._authorize(request)
        call_id = request.path_params["tool_call_id"]
        asked: wire.ToolCallSubmit = wire.decode_submit(await asgi.read_body(request))
        call, run = await self.runs.find_call(call_id)
        if not call.ended:
            if not call.client:
                raise Conflict(f"tool call {call_id} does not run on a device")
            try:
                run = await self.runs.end_call(
                    run.run_id,
                    call_id,
                    ok=asked.succeeded,
                    result=given(asked.result, None),
                    error=given(asked.error, None),
                )
                call = run.call(call_id)
            except Conflict:  # another result was first and is the answer
                call, run = await self.runs.find_call(call_id)
                if not call.ended:  # it waits for an approval
                    raise
        return asgi.Json(_call_view(call, run))

    async def _decide(self, request: Request) -> Response:
        self._authorize(request)
        approval_id = request.path_params["approval_id"]
        asked: wire.ApprovalDecide = wire.decode_decide(await asgi.read_body(request))
        try:
            await self.runs.decide_approval(
                approval_id,
                session_id="",
                run_id="",
                approve=asked.decision is Decision.APPROVE,
                reason=asked.reason,
                decided_by=_ingress_of(request, asked.decided_by),
            )
        except Conflict:  # the earlier decision stands and is the answer
            log.info("decided_already approval_id=%s", approval_id)
        return asgi.Json(_approval_view(await self.runs.find_approval(approval_id)))

    async def _reveal(self, request: Request) -> Response:
        self._authorize(request)
        approval_id = request.path_params["approval_id"]
        await self.runs.find_approval(approval_id)
        asked = await self.runs.gate.reveal_approval(
            approval_id, by=_ingress_of(request, "").principal
        )
        return asgi.Json(_approval_view(asked))

    async def _cancel(self, request: Request) -> Response:
        self._authorize(request)
        run_id = request.path_params["run_id"]
        asked = wire.decode_cancel(await asgi.read_body(request) or b"{}")
        await self.runs.cancel(run_id, session_id="", reason=asked.reason)
        state = await self.runs.state(run_id)
        status = state.status
        return asgi.Json(wire.CancelAnswer(run_id, status, cancelled=status is RunStatus.CANCELLED))

    async def _run(self, request: Request) -> Response:
        self._authorize(request)
        return asgi.Json(_run_view(await self.runs.state(request.path_params["run_id"])))

    async def _events(self, request: Request) -> Response:
        self._authorize(request)
        state = await self.runs.state(request.path_params["run_id"])
        asked = request.headers.get(wire.HEADER_LAST_EVENT_ID) or request.query_params.get(
            wire.AFTER_PARAMETER, "0"
        )
        if not (asked.isascii() and asked.isdigit() and len(asked) <= DIGITS):
            raise Invalid(f"{wire.AFTER_PARAMETER} must be a whole number")
        return self._event_stream(state.run_id, state.session_id, after=int(asked))

    def _event_stream(self, run_id: str, session_id: str, *, after: int) -> Response:
        """A run's events; a stopping process ends the stream of a waiting run, and readers reconnect."""
        chunks = self._stream(run_id, session_id, after=after)
        return asgi.EventStream(chunks, self.streams, lambda: self.is_at_work(run_id))

    async def _stream(self, run_id: str, session_id: str, *, after: int) -> AsyncIterator[bytes]:
        """The events of one run, until its last."""
        journal, stream = self.runs.journal, session_stream(session_id)
        if (
            after > (await journal.head(stream)).last
        ):  # a power cut has lost the events after its last number
            latest = await journal.read_back(stream, subject=run_id, limit=1)
            after = latest[0].seq - 1 if latest else 0
        first = await journal.read(stream, after=after, subject=run_id, limit=1)
        if first:  # skip the session's earlier events
            after = first[0].seq - 1
        elif (await self.runs.state(run_id)).ended:
            return
        batches = follow(journal, self.bus, stream, after=after, recheck=self.silence_s)
        async with aclosing(batches):
            async for batch in batches:
                if not batch:
                    yield STILL_HERE
                for event in self.runs.originals.restored(batch, keep_redacted=True):
                    if event.subject != run_id:
                        continue
                    yield asgi.server_sent_event(
                        frame(event), event=event.type, event_id=str(event.seq)
                    )
                    if event.type in ENDS:
                        return

    async def _agents(self, request: Request) -> Response:
        self._authorize(request)
        agents = self.runs.agents
        views = [wire.AgentView(name, "builtin") for name in agents.builtin]
        views += [self._agent_view(agent) for agent in await agents.external()]
        return asgi.Json({"agents": views})

    async def _register_agent(self, request: Request) -> Response:
        self._authorize(request)
        asked: wire.RegisterAgent = decode_agent(await asgi.read_body(request))
        agent = External(asked.agent_id, asked.endpoint, asked.description, asked.auth_token)
        await self.runs.agents.register(agent, by=INTERNAL)
        return asgi.Json(self._agent_view(agent), status_code=201)

    def _agent_view(self, agent: External) -> wire.AgentView:
        return wire.AgentView(
            agent_id=agent.agent_id,
            kind="external",
            description=agent.description,
            endpoint=self.runs.redact(agent.endpoint),  # it may hold a password
            has_auth_token=bool(agent.auth_token),
        )

    async def _remove_agent(self, request: Request) -> Response:
        self._authorize(request)
        await self.runs.agents.remove(request.path_params["agent_id"], by=INTERNAL)
        return asgi.Json({"ok": True})

    async def _register_tools(self, request: Request) -> Response:
        self._authorize(request)
        asked: wire.RegisterTools = decode_tools(await asgi.read_body(request))
        named = [wire.ClientTool(one) if isinstance(one, str) else one for one in asked.tools]
        tools = [
            Tool(
                name=tool.name,
                description=tool.description,
                level=tool.level,
                schema=given(tool.input_schema, {"type": "object"}),
                repeatable=tool.repeatable,
            )
            for tool in named
        ]
        await self.runs.register_tools(request.path_params["session_id"], tools)
        return asgi.Json({"ok": True})

    async def _health(self, _: Request) -> Response:
        uptime = int(self.clock.monotonic() - self._started)
        problem = self.runs.journal.fault
        status = "failing" if problem else "healthy"
        return asgi.Json(wire.Health(status, len(await self.runs.open_runs()), uptime, problem))

    def _authorize(self, request: Request) -> None:
        self.authenticate(asgi.bearer(request))

    async def _refused(self, _: Request, failed: Exception) -> Response:
        if isinstance(failed, InvalidToken):
            return _refusal(wire.ErrorCode.UNAUTHORIZED, str(failed))
        code = code_for(failed, CODES, wire.ErrorCode.INTERNAL_ERROR)
        if code is wire.ErrorCode.INTERNAL_ERROR:
            log.error("request_failed", exc_info=failed)
        return _refusal(code, str(failed))

    async def _unreadable(self, _: Request, failed: Exception) -> Response:
        return _refusal(wire.ErrorCode.INVALID_REQUEST, f"{field_of(failed)}: {failed}")

    async def _too_large(self, _: Request, failed: Exception) -> Response:
        return _refusal(wire.ErrorCode.INVALID_REQUEST, str(failed), status=413)


decode_agent: Final = msgspec.json.Decoder(wire.RegisterAgent).decode
decode_tools: Final = msgspec.json.Decoder(wire.RegisterTools).decode


def _refusal(code: wire.ErrorCode, message: str, *, status: int | None = None) -> Response:
    return asgi.Json(
        wire.Refusal(code, message), status_code=status or wire.ERROR_CODES[code].status or 500
    )


def _ingress_of(request: Request, user: str) -> Identity:
    """Whoever has the internal token, by its address; it is trusted to say which user decides."""
    address = "" if request.client is None else request.client.host
    return Identity(Who.INGRESS, f"{Who.USER}:{user}", via=address)


def _call_view(call: CallState, run: RunState) -> wire.ToolCallView:
    return wire.ToolCallView(
        tool_call_id=call.call_id,
        run_id=run.run_id,
        status=call.status,
        tool_name=call.tool,
        args=call.args,
        deadline_ts=call.deadline,
        error={"code": call.error_code, "message": call.output} if call.error_code else UNSET,
        result=call.output if call.status is CallStatus.SUCCEEDED else UNSET,
    )


def _approval_view(asked: Question) -> wire.ApprovalView:
    approval = asked.approval
    return wire.ApprovalView(
        approval_id=approval.approval_id,
        run_id=approval.run_id,
        tool_call_id=approval.request_id,
        status=approval.status,
        tool_name=approval.tool,
        args_summary=asked.summary,
        args=UNSET if asked.args is None else asked.args,
        hidden=approval.hidden,
        reason=approval.reason,
        deadline_ts=approval.expires_at,
    )


def _run_view(run: RunState) -> wire.RunView:
    return wire.RunView(
        run_id=run.run_id,
        session_id=run.session_id,
        agent_id=run.agent_id,
        status=run.status,
        created_at=run.started_at,
        updated_at=run.ended_at or run.started_at,
        request_id=run.request_id,
        output="".join(turn.text for turn in run.turns),
        usage=wire.Usage(
            total_tokens=run.prompt_tokens + run.completion_tokens,
            prompt_tokens=run.prompt_tokens,
            completion_tokens=run.completion_tokens,
        ),
        tool_calls=[_call_view(call, run) for turn in run.turns for call in turn.calls],
        error=wire.RunError(run.code, run.message) if run.code else UNSET,
    )
