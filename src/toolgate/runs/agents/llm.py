"""The agent that asks a model: OpenAI, Anthropic, or any URL that speaks OpenAI's chat format.

One request to the model is one turn; the tools it wants come back as calls that the pipeline
decides on. The libraries are heavy and an extra, so they are imported with the first turn.
"""

import asyncio
import itertools
import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, cast

from toolgate.core.tools import Tool
from toolgate.runs.agents.agent import (
    AgentFailed,
    Call,
    EndTurn,
    Say,
    Step,
    ToolAnswer,
    Transcript,
    Usage,
)

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

log = logging.getLogger(__name__)

FAILED: Final = "agent_failed"
INSTRUCTIONS: Final = (
    "You are a helpful assistant. Use the tools you are given when they help. A tool call may be"
    " refused by policy or by a person; then say so and go on without it."
)
ATTEMPTS: Final = 4
FIRST_PAUSE_S: Final = 1.0  # after a rate limit that names no time; doubled each time
LONGEST_PAUSE_S: Final = 30.0
PASSING: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
UNKNOWN_CHARACTER: Final = "\ufffd"
NAME_LENGTH: Final = 64  # of a tool, as the providers take it
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_LAST_WORD: Final = re.compile(rb"[\r\n](?:data: ?\[DONE\]|event: ?message_stop)")  # of a stream


class LlmAgent:
    """`model` is `openai:NAME`, `anthropic:NAME` or `URL#NAME`; `base_url` is for the first two."""

    repeats_itself = False
    remembers = True

    def __init__(
        self,
        model: str,
        base_url: str = "",
        api_key: str = "",
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._name = model
        self._base_url = base_url
        self._api_key = api_key
        self._first_pause_s = first_pause_s
        self._library: _PydanticAi | None = None
        self._model: Model | None = None

    async def close(self) -> None:
        """Let go of the connections to the provider."""
        if self._library is not None:
            await self._library.close()

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        if not self._name:
            raise AgentFailed(FAILED, "TOOLGATE_MODEL is not set; no model to ask")
        if self._library is None:
            try:
                self._library = await asyncio.to_thread(_PydanticAi)
            except ImportError as missing:
                why = "the assistant needs the extra `llm`: pip install 'toolgate[llm]'"
                raise AgentFailed(FAILED, why) from missing
        pydantic_ai = self._library
        if self._model is None:
            self._model = pydantic_ai.model(
                self._name, base_url=self._base_url, api_key=self._api_key
            )
        model = self._model
        names = _safe_names(transcript)
        messages = pydantic_ai.messages(transcript, names)
        for attempt in range(ATTEMPTS):
            spoke = False
            try:
                async for step in pydantic_ai.ask(model, messages, transcript.tools, names):
                    spoke = True
                    yield step
                return
            except pydantic_ai.errors as failed:
                pause = self._pause(failed, attempt, spoke=spoke)
                if pause is None:
                    raise AgentFailed(FAILED, f"the model failed: {_short(failed)}") from failed
                log.info("model_retry attempt=%d pause_s=%.1f", attempt + 1, pause)
                await asyncio.sleep(pause)

    def _pause(self, failed: Exception, attempt: int, *, spoke: bool) -> float | None:
        """How long to wait before asking again; None where that would not help."""
        status = getattr(failed, "status_code", None)
        if spoke or attempt + 1 == ATTEMPTS or (status is not None and status not in PASSING):
            return None
        asked = asked_pause(getattr(failed, "headers", None) or {})
        pause = self._first_pause_s * 2**attempt if asked is None else asked
        return min(pause, LONGEST_PAUSE_S)


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """The seconds that Retry-After asks for, which may be a date; None where it says nothing."""
    asked = headers.get("retry-after", "")
    try:
        seconds = float(asked)
    except ValueError:
        try:  # by the provider's own clock: ours may be another
            wait = parsedate_to_datetime(asked) - parsedate_to_datetime(headers.get("date", ""))
        except (ValueError, TypeError):  # no date, or one of the two has no zone
            return None
        seconds = wait.total_seconds()
    return None if math.isnan(seconds) else max(0.0, seconds)


def _safe_names(transcript: Transcript) -> dict[str, str]:
    """What the model calls each tool: it takes fewer characters than we do, and each name once."""
    offered = (tool.name for tool in transcript.tools)
    called = (answer.tool for turn in transcript.turns for answer in turn.answers)
    names: dict[str, str] = {}
    taken: set[str] = set()
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(2))
    for name in dict.fromkeys((*offered, *called)):
        safe = _UNSAFE.sub("__", name)[:NAME_LENGTH]
        stem = safe[: NAME_LENGTH - 5]
        while safe in taken:
            safe = f"{stem}_{next(numbers[stem])}"
        taken.add(safe)
        names[name] = safe
    return names


def _short(failed: Exception) -> str:
    return str(failed).splitlines()[0][:300] if str(failed) else type(failed).__name__


class _Ending:
    """Whether a provider's stream said that it is over; the libraries keep that to themselves."""

    def __init__(self) -> None:
        self.is_said = False
        self._tail = b"\n"

    def look(self, chunk: bytes) -> None:
        text = self._tail + chunk
        self.is_said = self.is_said or _LAST_WORD.search(text) is not None
        self._tail = text[-32:]  # more than a last word has


_ending: Final[ContextVar[_Ending]] = ContextVar("ending")  # of the turn that is asked for


async def _watch(response: "httpx2.Response") -> None:
    from httpx2 import AsyncByteStream  # noqa: PLC0415 - heavy

    stream, ending = cast(AsyncByteStream, response.stream), _ending.get()

    class Watched(AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in stream:
                ending.look(chunk)
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Watched()


class _PydanticAi:
    """The one place that knows the library."""

    def __init__(self) -> None:
        from pydantic_ai import direct, exceptions, messages, models, tools  # noqa: PLC0415 - heavy

        self._direct, self._messages, self._models, self._tools = direct, messages, models, tools
        self._closes: list[Callable[[], Awaitable[None]]] = []
        self._broken = exceptions.UnexpectedModelBehavior
        self.errors = (exceptions.ModelAPIError, exceptions.UnexpectedModelBehavior)

    async def close(self) -> None:
        for close in self._closes:
            await close()
        self._closes.clear()

    def model(self, name: str, *, base_url: str, api_key: str) -> "Model":
        kind, _, rest = name.partition(":")
        if kind == "anthropic":
            from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient  # noqa: PLC0415 - heavy
            from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415 - heavy
            from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 - heavy

            anthropic = AsyncAnthropic(
                base_url=base_url or None,
                max_retries=0,
                api_key=api_key or None,
                http_client=DefaultAsyncHttpxClient(event_hooks={"response": [_watch]}),
            )
            self._closes.append(anthropic.close)
            return AnthropicModel(rest, provider=AnthropicProvider(anthropic_client=anthropic))
        if kind in ("http", "https"):
            base_url, _, rest = name.partition("#")
            api_key = api_key or "none"
        elif kind != "openai":
            raise AgentFailed(FAILED, f"TOOLGATE_MODEL {name!r} names no provider that we know")
        from openai import (  # noqa: PLC0415 - heavy
            AsyncOpenAI,
            DefaultAsyncHttpxClient,
            OpenAIError,
        )
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - heavy
        from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 - heavy

        try:
            openai = AsyncOpenAI(
                base_url=base_url or None,
                max_retries=0,
                api_key=api_key or None,
                http_client=DefaultAsyncHttpxClient(event_hooks={"response": [_watch]}),
            )
        except OpenAIError as keyless:
            raise AgentFailed(FAILED, "OPENAI_API_KEY is not set") from keyless
        self._closes.append(openai.close)
        return OpenAIChatModel(rest or "default", provider=OpenAIProvider(openai_client=openai))

    def messages(self, transcript: Transcript, names: Mapping[str, str]) -> "list[ModelMessage]":
        m = self._messages
        told: list[ModelMessage] = []
        # Providers refuse empty text: one run that was cancelled must not end the conversation.
        earlier = [said for said in transcript.history if said.content.strip()]
        for said in (*earlier, transcript.message):
            if said.role == "assistant":
                told.append(m.ModelResponse(parts=[m.TextPart(said.content)]))
            else:
                prompt = m.UserPromptPart(said.content)
                told.append(m.ModelRequest(parts=[prompt], instructions=INSTRUCTIONS))
        for turn in transcript.turns:
            calls = [
                m.ToolCallPart(names[answer.tool], dict(answer.args), tool_call_id=answer.call_id)
                for answer in turn.answers
            ]
            text = [m.TextPart(turn.text)] if turn.text.strip() else []
            told.append(m.ModelResponse(parts=[*text, *calls]))
            returns = [
                m.ToolReturnPart(names[answer.tool], _told(answer), tool_call_id=answer.call_id)
                for answer in turn.answers
            ]
            told.append(m.ModelRequest(parts=returns, instructions=INSTRUCTIONS))
        return told

    async def ask(
        self,
        model: "Model",
        messages: "list[ModelMessage]",
        tools: Sequence[Tool],
        names: Mapping[str, str],
    ) -> AsyncGenerator[Step, None]:
        m = self._messages
        offered = [
            self._tools.ToolDefinition(
                name=names[tool.name],
                description=tool.description or tool.name,
                parameters_json_schema=dict(tool.schema) or {"type": "object", "properties": {}},
            )
            for tool in tools
        ]
        parameters = self._models.ModelRequestParameters(function_tools=offered)
        ending = _Ending()
        _ending.set(ending)
        async with (
            self._readable(),
            self._direct.model_request_stream(
                model, messages, model_request_parameters=parameters
            ) as stream,
        ):
            half = ""
            async for event in stream:
                if isinstance(event, m.PartStartEvent) and isinstance(event.part, m.TextPart):
                    text = event.part.content
                elif isinstance(event, m.PartDeltaEvent) and isinstance(
                    event.delta, m.TextPartDelta
                ):
                    text = event.delta.content_delta
                else:
                    continue
                text, half = _whole_characters(half + text)
                if text:
                    yield Say(text)
            if half:
                yield Say(UNKNOWN_CHARACTER)
            response = stream.get()
        # The library takes a stream that merely stops for a whole answer: a call in it may be half.
        reasoned = {"finish_reason", "refusal"} & (response.provider_details or {}).keys()
        if not reasoned and not ending.is_said:
            raise self._broken("it broke off before its end")
        ours = {safe: name for name, safe in names.items()}
        calls = [
            Call(ours.get(part.tool_name, part.tool_name), _arguments(part))
            for part in response.parts
            if isinstance(part, m.ToolCallPart)
        ]
        usage = Usage(response.usage.input_tokens, response.usage.output_tokens)
        yield EndTurn(calls, usage)

    @asynccontextmanager
    async def _readable(self) -> AsyncIterator[None]:
        """The libraries take the shape of an answer on trust: what they stumble over is the model's."""
        try:
            yield
        except self.errors:
            raise
        except Exception as stumbled:
            raise self._broken(f"its answer is unreadable: {_short(stumbled)}") from stumbled


def _whole_characters(text: str) -> tuple[str, str]:
    """The text, and the first half of a character that it ends with: JSON may cut one in two."""
    if text.isascii():
        return text, ""
    end = len(text) - ("\ud800" <= text[-1] <= "\udbff")
    paired = text[:end].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return paired, text[end:]


def _arguments(part: Any) -> dict[str, Any]:
    try:
        given = dict(part.args_as_dict(raise_if_invalid=True))
        json.dumps(given, allow_nan=False)  # the library takes NaN and Infinity, which JSON has not
        return given
    except (ValueError, AssertionError) as bad:
        raise AgentFailed(
            FAILED, f"the model's arguments for {part.tool_name} are no JSON object"
        ) from bad


def _told(answer: ToolAnswer) -> str:
    if not answer.ok:
        return f"error {answer.error_code}: {answer.output}"
    return answer.output if answer.output.strip() else "(no output)"
