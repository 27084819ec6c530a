"""Agents that someone else runs, reached by `POST {endpoint}/invoke`; they answer with SSE."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from toolgate.contracts import orchestrator_v1 as wire
from toolgate.contracts.wire import MAX_INT, UNREADABLE, given
from toolgate.http import sse
from toolgate.http.keepalive import kept_alive
from toolgate.runs.agents.agent import AgentFailed, EndTurn, Note, Say, Step, Transcript, Usage
from toolgate.runs.agents.registry import External
from toolgate.secrets.redaction import RedactingStream

CONNECT_S: Final = 5.0
FAILED: Final = wire.ErrorCode.AGENT_FAILED.value
EVENTS: Final = frozenset({"delta", "state", "done", "error"})
NETWORK: Final = (aiohttp.ClientError, TimeoutError, OSError)


class HttpAgents:
    """All external agents, over one pool of connections."""

    def __init__(self, speech: Callable[[], RedactingStream] | None = None) -> None:
        """`speech` takes out of an agent's words the secrets that we know, such as its own token."""
        self._speech = speech or _as_it_is
        self._http: aiohttp.ClientSession | None = None

    def agent(self, external: External) -> "HttpAgent":
        if self._http is None:
            # A silent agent may be thinking: how long is for the run's own deadline to say.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            # Each run has a stream of its own: one that waited for another's would look silent.
            connector = aiohttp.TCPConnector(limit=0, socket_factory=kept_alive)
            self._http = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return HttpAgent(external, self._http, self._speech)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


@dataclass(frozen=True, slots=True)
class HttpAgent:
    external: External
    http: aiohttp.ClientSession
    speech: Callable[[], RedactingStream]

    @property
    def repeats_itself(self) -> bool:
        return False

    @property
    def remembers(self) -> bool:
        return True

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        """What it says, its words without secrets: what may be the beginning of one comes later."""
        speech = self.speech()
        try:
            async with aclosing(self._steps(transcript)) as steps:
                async for step in steps:
                    clean = ""
                    if isinstance(step, Say):
                        clean = speech.feed(step.text)
                    elif isinstance(step, EndTurn):  # not a state: the rest may come after it
                        clean = speech.close()
                    if clean:
                        yield Say(clean)
                    if not isinstance(step, Say):
                        yield step
        except AgentFailed:
            if rest := speech.close():
                yield Say(rest)
            raise

    async def _steps(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        request = wire.AgentRequest(
            run_id=transcript.run_id,
            session_id=transcript.session_id,
            agent_id=transcript.agent_id,
            message=wire.Message(transcript.message.role, transcript.message.content),
            history=[wire.Message(said.role, said.content) for said in transcript.history],
            context=dict(transcript.context),
        )
        headers = {
            wire.HEADER_ACCEPT: wire.EVENT_STREAM_TYPE,
            "Content-Type": "application/json",
        }
        if self.external.auth_token:
            headers[wire.HEADER_AUTHORIZATION] = f"Bearer {self.external.auth_token}"
        url = self.external.endpoint.rstrip("/") + wire.AGENT_INVOKE_SUFFIX
        try:
            async with self.http.post(url, data=wire.encode(request), headers=headers) as response:
                if response.status != 200:
                    raise AgentFailed(FAILED, f"the agent answered {response.status}")
                if response.content_type != wire.EVENT_STREAM_TYPE:
                    raise AgentFailed(FAILED, "the agent's answer is not a stream of events")
                async for event in sse.events(response.content.iter_any()):
                    step = _step(event)
                    if step is None:
                        continue
                    yield step
                    if isinstance(step, EndTurn):
                        return
        except NETWORK as failed:
            raise AgentFailed(FAILED, f"the agent cannot be reached: {_why(failed)}") from failed
        except sse.TooLong as long:
            raise AgentFailed(FAILED, "the agent sent an event without end") from long
        raise AgentFailed(FAILED, "the agent broke off before its end")


def _as_it_is() -> RedactingStream:
    return RedactingStream(lambda _: (), unfinished=len)


def _step(event: sse.SseEvent) -> Step | None:
    """None for what the contract does not know: an agent may say more to others."""
    try:
        members = msgspec.json.decode(event.data)
        if isinstance(members, dict):
            kind = members.setdefault("type", event.event)
            if isinstance(kind, str) and kind and kind not in EVENTS:
                return None
        message = msgspec.convert(members, wire.AnyAgentEvent)
    except (*UNREADABLE, msgspec.ValidationError) as unreadable:
        raise AgentFailed(FAILED, "the agent sent what cannot be read") from unreadable
    match message:
        case wire.Delta(text=text):
            return Say(text)
        case wire.State(state=name):
            detail = given(message.detail, {})
            return Note(name, detail if isinstance(detail, dict) else {"detail": detail})
        case wire.Error(code=code, message=why):
            raise AgentFailed(code, why)
        case _:
            return EndTurn(usage=_usage(message))


def _usage(done: wire.Done) -> Usage:
    if isinstance(done.usage, msgspec.UnsetType):
        return Usage()
    prompt, completion = given(done.usage.prompt_tokens, 0), given(done.usage.completion_tokens, 0)
    total = given(done.usage.total_tokens, prompt + completion)
    # What comes of both together must be a number that can be told.
    return Usage(prompt, min(completion or max(0, total - prompt), MAX_INT - prompt))


def _why(failed: BaseException) -> str:
    return str(failed) or type(failed).__name__
