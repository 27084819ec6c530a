"""The assistant, against a local server that speaks the providers' wire formats."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from toolgate.core.enums import Level
from toolgate.core.tools import Tool
from toolgate.runs.agents.agent import (
    AgentFailed,
    Call,
    EndTurn,
    Said,
    Say,
    Step,
    ToolAnswer,
    Transcript,
    Turn,
    Usage,
)
from toolgate.runs.agents.llm import LlmAgent, _safe_names, asked_pause

pytestmark = pytest.mark.filterwarnings("default")  # the providers' own libraries warn as they like

CLOCK = Tool("clock.read", "What time is it?", Level.READ, {"type": "object"}, repeatable=True)
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@dataclass
class Provider:
    """Answers with what a test gives it, one entry per request."""

    answers: list[tuple[int, Any]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    retry_after: str = "0"
    breaks_off: bool = False
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        status, answer = self.answers.pop(0)
        if status != 200:
            headers = {"Retry-After": self.retry_after}
            return web.json_response(answer, status=status, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in answer:
            name = f"event: {event['type']}\n" if event and "type" in event else ""
            await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if request.path == PATHS["openai"] and not self.breaks_off:
            await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def provider(*answers: tuple[int, Any]) -> AsyncIterator[Provider]:
    one = Provider(list(answers))
    app = web.Application()
    for path in PATHS.values():
        app.router.add_post(path, one.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield one
    finally:
        await runner.cleanup()


def agent_at(kind: str, url: str) -> LlmAgent:
    match kind:
        case "openai":
            return LlmAgent("openai:gpt-x", f"{url}/v1", "key", first_pause_s=0.01)
        case "anthropic":
            return LlmAgent("anthropic:claude-x", url, "key", first_pause_s=0.01)
        case _:
            return LlmAgent(f"{url}/v1#local-model", first_pause_s=0.01)


def openai_chunks(*deltas: dict[str, Any], finish: str = "stop") -> list[dict[str, Any]]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
    return [*chunks, {**head, "choices": [], "usage": usage}]


def anthropic_events(*blocks: tuple[dict[str, Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {
        "id": "m1", "type": "message", "role": "assistant", "model": "claude-x", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 1},
    }  # fmt: skip
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 4}})
    return [*events, {"type": "message_stop"}]


def text_answer(kind: str) -> list[dict[str, Any]]:
    if kind == "anthropic":
        deltas = [{"type": "text_delta", "text": text} for text in ("Half ", "past ", "nine")]
        return anthropic_events(({"type": "text", "text": ""}, deltas))
    return openai_chunks(
        {"role": "assistant", "content": "Half "}, {"content": "past "}, {"content": "nine"}
    )


def tool_answer(kind: str) -> list[dict[str, Any]]:
    if kind == "anthropic":
        block = {"type": "tool_use", "id": "t1", "name": "clock__read", "input": {}}
        deltas = [
            {"type": "input_json_delta", "partial_json": part} for part in ('{"zone"', ': "UTC"}')
        ]
        return anthropic_events((block, deltas))
    call = {"index": 0, "id": "t1", "type": "function"}
    return openai_chunks(
        {"tool_calls": [{**call, "function": {"name": "clock__read", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"zone"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "UTC"}'}}]},
        finish="tool_calls",
    )


def transcript(**members: Any) -> Transcript:
    base: dict[str, Any] = {
        "run_id": "run_1", "session_id": "s", "agent_id": "assistant", "history": [],
        "message": Said("user", "What time is it?"), "turns": [], "tools": [CLOCK],
    }  # fmt: skip
    return Transcript(**{**base, **members})


async def steps(agent: LlmAgent, heard: list[Step] | None = None, **members: Any) -> list[Step]:
    heard = [] if heard is None else heard
    try:
        async for step in agent.turn(transcript(**members)):
            heard.append(step)
    finally:
        await agent.close()
    return heard


KINDS = ["openai", "anthropic", "compatible"]


@pytest.mark.parametrize("kind", KINDS)
async def test_text_streams_as_it_comes_with_its_usage(kind: str) -> None:
    async with provider((200, text_answer(kind))) as model:
        taken = await steps(agent_at(kind, model.url))
    assert taken == [Say("Half "), Say("past "), Say("nine"), EndTurn([], Usage(11, 4))]
    assert model.asked[0]["model"] == {
        "openai": "gpt-x", "anthropic": "claude-x", "compatible": "local-model",
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [(("Hi \ud83d", "\ude00!"), "Hi \U0001f600!"), (("Hi \ud83d", "!"), "Hi \ufffd!")],
    ids=["halves", "a half"],
)
async def test_a_character_that_comes_in_halves_is_put_together(
    pieces: tuple[str, ...], whole: str
) -> None:
    answer = openai_chunks(*({"content": piece} for piece in pieces))
    async with provider((200, answer)) as model:
        taken = await steps(agent_at("openai", model.url))
    said = "".join(step.text for step in taken if isinstance(step, Say))
    assert said == whole
    said.encode()  # every step of it could be written down
    assert all(step.text.encode() for step in taken if isinstance(step, Say))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_call_comes_back_under_its_own_name(kind: str) -> None:
    async with provider((200, tool_answer(kind))) as model:
        taken = await steps(agent_at(kind, model.url))
    assert taken == [EndTurn([Call("clock.read", {"zone": "UTC"})], Usage(11, 4))]
    assert "clock__read" in json.dumps(model.asked[0]["tools"])


async def test_tools_whose_names_a_model_cannot_tell_apart_are_offered_under_two() -> None:
    other = replace(CLOCK, name="clock:read", description="Look at the clock")
    long = [replace(CLOCK, name="x" * 64 + end, description="") for end in "ab"]
    async with provider((200, text_answer("openai")), (200, tool_answer("openai"))) as model:
        tools = [other, CLOCK, *long]
        await steps(agent_at("openai", model.url), tools=tools)
        offered = {
            one["function"]["description"]: one["function"]["name"]
            for one in model.asked[0]["tools"]
        }
        assert len(set(offered.values())) == len(tools)
        taken = await steps(agent_at("openai", model.url), tools=tools)
    calls = next(step.calls for step in taken if isinstance(step, EndTurn))
    by_name = {tool.name: offered[tool.description or tool.name] for tool in tools}
    assert [by_name[call.tool] for call in calls] == ["clock__read"]


def test_many_tools_are_named_in_a_time_that_grows_with_their_number() -> None:
    alike = [replace(CLOCK, name=f"{'x' * 64}{n}") for n in range(5_000)]
    others = [replace(CLOCK, name=f"clock.{n}") for n in range(10_000)]
    begun = time.process_time()
    names = _safe_names(transcript(tools=[*alike, *others]))
    assert time.process_time() - begun < 2  # 0.05 s; several where each looks at all before it
    assert len(set(names.values())) == len(names) == 15_000
    assert max(map(len, names.values())) <= 64


@pytest.mark.parametrize("kind", KINDS)
async def test_the_model_is_told_the_history_and_what_its_tools_answered(kind: str) -> None:
    answers = [
        ToolAnswer("tc_1", "clock.read", {}, ok=True, output="09:30"),
        ToolAnswer("tc_2", "clock.read", {}, ok=False, output="no", error_code="rejected"),
    ]
    history = [Said("user", "Hello"), Said("assistant", "Hi there")]
    async with provider((200, text_answer(kind))) as model:
        await steps(agent_at(kind, model.url), history=history, turns=[Turn("Let me see", answers)])
    told = json.dumps(model.asked[0])
    for said in ("Hello", "Hi there", "What time is it?", "Let me see", "09:30", "error rejected"):
        assert said in told
    assert told.index("Hi there") < told.index("What time is it?") < told.index("09:30")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_provider_is_given_no_empty_text(kind: str) -> None:
    history = [Said("user", "Hello"), Said("assistant", ""), Said("user", " ")]
    turns = [Turn("\n", [ToolAnswer("tc_1", "clock.read", {}, ok=True, output="")])]
    async with provider((200, text_answer(kind))) as model:
        await steps(agent_at(kind, model.url), history=history, turns=turns)
    said = [text for one in model.asked[0]["messages"] for text in texts(one["content"])]
    assert all(text.strip() for text in said), said
    assert "Hello" in said


def texts(content: Any) -> list[str]:
    """Every text of a message, however deep."""
    if isinstance(content, str):
        return [content]
    blocks = content or []
    return [
        text
        for one in blocks
        for text in ([one["text"]] if "text" in one else texts(one.get("content")))
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rate_limit_is_waited_out(kind: str) -> None:
    limit = (429, {"error": {"type": "rate_limit_error", "message": "slow down"}})
    async with provider(limit, limit, (200, text_answer(kind))) as model:
        taken = await steps(agent_at(kind, model.url))
    assert isinstance(taken[-1], EndTurn)
    assert len(model.asked) == 3


@pytest.mark.parametrize("when", ["Wed, 21 Oct 2015 07:28:00 GMT", "-1", "0.01", "nan", "soon"])
async def test_a_rate_limit_may_name_a_moment_instead_of_seconds(when: str) -> None:
    limit = (429, {"error": {"type": "rate_limit_error", "message": "slow down"}})
    async with provider(limit, (200, text_answer("openai"))) as model:
        model.retry_after = when
        unnamed = when in ("nan", "soon")
        pause = 0.01 if unnamed else 30.0  # such as no answer would come in time
        agent = LlmAgent("openai:gpt-x", f"{model.url}/v1", "key", first_pause_s=pause)
        async with asyncio.timeout(20):
            taken = await steps(agent)
    assert isinstance(taken[-1], EndTurn)


async def test_a_moment_to_ask_again_is_counted_by_the_providers_own_clock() -> None:
    then = {"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT", "date": "Wed, 21 Oct 2015 07:28:03 GMT"}
    assert asked_pause(then) == 7.0
    assert asked_pause({"retry-after": then["retry-after"]}) is None


@pytest.mark.parametrize(("status", "requests"), [(401, 1), (400, 1), (503, 4), (429, 4)])
async def test_an_error_that_stays_fails_the_run(status: int, requests: int) -> None:
    error = (status, {"error": {"message": "no", "type": "x"}})
    async with provider(*[error] * 4) as model:
        with pytest.raises(AgentFailed, match="model failed"):
            await steps(agent_at("openai", model.url))
    assert len(model.asked) == requests


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_breaks_off_is_no_end_and_none_of_its_calls_is_made(kind: str) -> None:
    whole = tool_answer(kind)
    begun = {"openai": 1, "anthropic": 2, "compatible": 1}[kind]  # the call has its name
    for upto in range(begun, begun + 3):
        async with provider(*[(200, whole[:upto])] * 4) as model:
            model.breaks_off = True
            with pytest.raises(AgentFailed, match="broke off"):
                await steps(agent_at(kind, model.url))
    half = [one for one in text_answer(kind) if "delta" in str(one)][:2]
    if kind == "anthropic":
        half = text_answer(kind)[:3]
    said: list[Step] = []
    async with provider((200, half)) as model:
        model.breaks_off = True
        with pytest.raises(AgentFailed, match="broke off"):
            await steps(agent_at(kind, model.url), heard=said)
    assert said[0] == Say("Half ")
    assert len(model.asked) == 1, "what was said cannot be taken back"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_says_it_is_over_is_whole_though_it_gives_no_reason(kind: str) -> None:
    async with provider((200, without_reason(text_answer(kind)))) as model:
        taken = await steps(agent_at(kind, model.url))
    assert [step for step in taken if isinstance(step, Say)] == [
        Say("Half "),
        Say("past "),
        Say("nine"),
    ]
    async with provider((200, without_reason(tool_answer(kind)))) as model:
        taken = await steps(agent_at(kind, model.url))
    assert isinstance(taken[-1], EndTurn)
    assert taken[-1].calls == [Call("clock.read", {"zone": "UTC"})]


def without_reason(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As some servers end: with the last word of their format, but no reason before it."""
    return [
        one
        for one in answer
        if one.get("type") != "message_delta"
        and all(choice["finish_reason"] is None for choice in one.get("choices", ()))
    ]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("openai", None),
        ("openai", {"choices": [None]}),
        ("openai", {"choices": [{"index": 0, "delta": {"tool_calls": [None]}}]}),
        ("openai", {"choices": "none"}),
        ("anthropic", {"type": "message_delta", "delta": None, "usage": None}),
        (
            "anthropic",
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": None},
            },
        ),
    ],
)
async def test_an_answer_of_another_shape_is_the_models_failure(kind: str, event: Any) -> None:
    *_, end = whole = text_answer(kind)
    async with provider((200, [*whole[:3], event, end])) as model:
        with pytest.raises(AgentFailed, match="model failed"):
            await steps(agent_at(kind, model.url))


async def test_arguments_that_are_no_json_object_are_not_handed_to_a_tool() -> None:
    for arguments in ('{"zone": ', "[1]", '"UTC"', '{"zone": NaN}', '{"zone": [-1e999]}'):
        function = {"name": "clock__read", "arguments": arguments}
        call = {"index": 0, "id": "t1", "type": "function", "function": function}
        answer = openai_chunks({"tool_calls": [call]}, finish="tool_calls")
        async with provider((200, answer)) as model:
            with pytest.raises(AgentFailed, match="clock__read"):
                await steps(agent_at("openai", model.url))


async def test_what_is_missing_is_named() -> None:
    for model, why in (("", "TOOLGATE_MODEL"), ("telepathy:x", "telepathy")):
        with pytest.raises(AgentFailed, match=why):
            await steps(LlmAgent(model))
