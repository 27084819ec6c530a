"""What the scenarios of MCP's conformance suite call, added to the product's own server.

The suite asks for tools, prompts and resources by name; the product has exactly seven tools. What
can be a run is a run here too: its tool becomes a call of `run_task_template` on the same way in.
"""

import asyncio
import base64
import hashlib
import hmac
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from toolgate.core.enums import TaskCode
from toolgate.surfaces.mcp.task_extension import require
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import TaskOutcome, Template, Work

Context = ServerRequestContext[Any, Any]
Json = dict[str, Any]
Tool = Callable[[Context, Any], Awaitable[Json]]

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000a49444154789c6360000000020001e221bc33"
        "0000000049454e44ae426082"
    )
).decode()
WAV = base64.b64encode(b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0").decode()
ANY: Json = {"type": "object"}


class Inputs(msgspec.Struct):
    seconds: float = 0
    label: str = ""


async def _compute(inputs: Inputs, work: Work) -> TaskOutcome:
    await asyncio.sleep(inputs.seconds)
    return TaskOutcome(msgspec.json.encode({"label": inputs.label}))


async def _progress(inputs: Inputs, work: Work) -> TaskOutcome:
    for done in (0, 50, 100):
        work.report(done, 100)
        await asyncio.sleep(0.05)  # the suite's: it says to wait that long
    return TaskOutcome(b"{}")


async def _fail(inputs: Inputs, work: Work) -> TaskOutcome:
    raise TaskFailed(TaskCode.ELEMENT_NOT_FOUND, "it fails, as it is meant to")


async def _break(inputs: Inputs, work: Work) -> TaskOutcome:
    raise RuntimeError("it breaks, as it is meant to")


RUNS = {
    "test_simple_text": _compute,
    "test_tool_with_progress": _progress,
    "test_error_handling": _fail,
    "slow_compute": _compute,
    "failing_job": _fail,
    "protocol_error_job": _break,
}
TEMPLATES = {
    name: Template(id=name, description="For the suite.", inputs=Inputs, output=None, run=run)
    for name, run in RUNS.items()
}


def text(words: str) -> Json:
    return {"content": [{"type": "text", "text": words}]}


def whole(result: Json, kind: type[types.Result]) -> types.Result:
    """As the SDK wants it: with all that a revision adds to a result."""
    kind = types.InputRequiredResult if "inputRequests" in result else kind
    return kind.model_validate(result)


def image() -> Json:
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


def embedded(uri: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": "text/plain", "text": "in"}}


def says(result: Json) -> Tool:
    async def tool(ctx: Context, params: types.CallToolRequestParams) -> Json:
        return result

    return tool


async def _greet(ctx: Context, params: types.CallToolRequestParams) -> Json:
    return text(f"Hello, {(params.arguments or {}).get('name')}!")


async def _log(ctx: Context, params: types.CallToolRequestParams) -> Json:
    with warnings.catch_warnings(category=MCPDeprecationWarning, action="ignore"):
        for step in ("started", "processing", "completed"):
            await ctx.session.send_log_message(
                level="info", data=step, related_request_id=ctx.request_id
            )
    return text("logged")


async def _sample(ctx: Context, params: types.CallToolRequestParams) -> Json:
    prompt = str((params.arguments or {}).get("prompt"))
    message = types.SamplingMessage(
        role="user", content=types.TextContent(type="text", text=prompt)
    )
    with warnings.catch_warnings(category=MCPDeprecationWarning, action="ignore"):
        answer = await ctx.session.create_message(
            messages=[message], max_tokens=100, related_request_id=ctx.request_id
        )
    return text(f"LLM response: {answer.content}")


def elicits(properties: Json) -> Tool:
    async def tool(ctx: Context, params: types.CallToolRequestParams) -> Json:
        message = str((params.arguments or {}).get("message", "Please answer"))
        schema = {"type": "object", "properties": properties, "required": []}
        answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
        return text(f"Elicitation completed: action={answer.action}, content={answer.content}")

    return tool


CHOICES = [{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}]
ENUMS: Json = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": CHOICES},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2"]}},
    "titledMulti": {"type": "array", "items": {"anyOf": CHOICES}},
}
DEFAULTS: Json = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}


def ask(member: str, kind: str = "string") -> Json:
    schema = {"type": "object", "properties": {member: {"type": kind}}, "required": [member]}
    return {
        "method": "elicitation/create",
        "params": {"message": f"Which {member}?", "requestedSchema": schema},
    }


SAMPLE: Json = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "What is it?"}}],
        "maxTokens": 100,
    },
}
ROOTS: Json = {"method": "roots/list", "params": {}}


def seal(state: str) -> str:
    return f"{state}.{hmac.new(b'suite', state.encode(), hashlib.sha256).hexdigest()}"


def unseal(sealed: str | None) -> str | None:
    if sealed is None:
        return None
    state = sealed.partition(".")[0]
    if not hmac.compare_digest(seal(state), sealed):
        raise MCPError(code=types.INVALID_PARAMS, message="requestState is not ours")
    return state


def wants(*rounds: Json, state: bool = False, words: str = "state-ok") -> Tool:
    """A tool that asks for each round's answers before it is done."""

    async def tool(ctx: Context, params: Any) -> Json:
        given = unseal(params.request_state)
        answers = {
            key: answer.model_dump() for key, answer in (params.input_responses or {}).items()
        }
        at = int(given) if given is not None else 0
        if at < len(rounds) and all(_answered(answers.get(key)) for key in rounds[at]):
            at += 1
        if at == len(rounds) or (not state and at):
            return text(f"{words} {answers}")
        asked: Json = {"resultType": "input_required", "inputRequests": rounds[at]}
        return {**asked, "requestState": seal(str(at))} if state else asked

    return tool


def _answered(answer: Json | None) -> bool:
    return answer is not None and answer.get("action", "accept") == "accept"


async def _only_declared(ctx: Context, params: types.CallToolRequestParams) -> Json:
    capabilities = ctx.session.client_capabilities
    requests = {}
    if capabilities is not None and capabilities.sampling is not None:
        requests["question"] = SAMPLE
    if capabilities is not None and capabilities.elicitation is not None:
        requests["user_name"] = ask("name")
    return {"resultType": "input_required", "inputRequests": requests}


async def _needs_sampling(ctx: Context, params: types.CallToolRequestParams) -> Json:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This needs sampling",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return text("sampled")


TOOLS: dict[str, Tool] = {
    "greet": _greet,
    "confirm_delete": says(text("deleted")),  # a run never asks, so there is no task to wait
    "test_image_content": says({"content": [image()]}),
    "test_audio_content": says(
        {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}
    ),
    "test_embedded_resource": says({"content": [embedded("test://embedded-resource")]}),
    "test_multiple_content_types": says(
        {"content": [*text("mixed")["content"], image(), embedded("test://mixed")]}
    ),
    "test_tool_with_logging": _log,
    "test_logging_tool": _log,
    "test_sampling": _sample,
    "test_elicitation": elicits({"response": {"type": "string"}}),
    "test_elicitation_sep1034_defaults": elicits(DEFAULTS),
    "test_elicitation_sep1330_enums": elicits(ENUMS),
    "test_missing_capability": _needs_sampling,
    "test_streaming_elicitation": wants({"user_name": ask("name")}),
    "test_input_required_result_elicitation": wants({"user_name": ask("name")}, words="Hello,"),
    "test_input_required_result_sampling": wants({"capital_question": SAMPLE}),
    "test_input_required_result_list_roots": wants({"client_roots": ROOTS}),
    "test_input_required_result_request_state": wants(
        {"confirm": ask("ok", "boolean")}, state=True
    ),
    "test_input_required_result_tampered_state": wants(
        {"confirm": ask("ok", "boolean")}, state=True
    ),
    "test_input_required_result_multiple_inputs": wants(
        {"user_name": ask("name"), "greeting": SAMPLE, "client_roots": ROOTS}, state=True
    ),
    "test_input_required_result_multi_round": wants(
        {"step1": ask("name")}, {"step2": ask("color")}, state=True
    ),
    "test_input_required_result_capabilities": _only_declared,
    "json_schema_2020_12_tool": says(text("checked")),
    "test_x_mcp_header": says(text("checked")),
}
SCHEMAS: dict[str, Json] = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {
            "street": {"type": "string"}, "city": {"type": "string"}}}},
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "anyOf": [{"required": ["name"]}, {"required": ["address"]}],
        "if": {"required": ["address"]}, "then": {"required": ["name"]}, "else": {},
        "additionalProperties": False,
    },
    "test_x_mcp_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    },
}  # fmt: skip


def message(content: Json) -> Json:
    return {"messages": [{"role": "user", "content": content}]}


async def _prompt(ctx: Context, params: types.GetPromptRequestParams) -> Json:
    given = params.arguments or {}
    if params.name == "test_prompt_with_arguments":
        words = f"arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
        return message({"type": "text", "text": words})
    if params.name == "test_prompt_with_embedded_resource":
        return message(embedded(given.get("resourceUri", "")))
    if params.name == "test_prompt_with_image":
        return message(image())
    if params.name == "test_input_required_result_prompt":
        found = await wants({"user_context": ask("context")})(ctx, params)
        return found if "inputRequests" in found else message(found["content"][0])
    return message({"type": "text", "text": "simple"})


PROMPTS = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}
RESOURCES = {
    "test://static-text": {"mimeType": "text/plain", "text": "static"},
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://template/123/data": {"mimeType": "application/json", "text": '{"id": "123"}'},
    "test://watched-resource": {"mimeType": "text/plain", "text": "watched"},
}


def extend(server: Server[Any]) -> None:
    """Add what the suite asks for; what it does not ask for stays the product's."""
    handlers = {}
    for method in ("tools/list", "tools/call", "resources/list", "resources/read"):
        entry = server.get_request_handler(method)
        assert entry is not None
        handlers[method] = entry.handler

    async def list_tools(ctx: Context, params: Any) -> types.ListToolsResult:
        found = await handlers["tools/list"](ctx, params)
        assert isinstance(found, types.ListToolsResult)
        added = [
            types.Tool(name=name, description="For the suite.", input_schema=schema_of(name))
            for name in (*RUNS, *TOOLS, "test_tool_with_task")
        ]
        return found.model_copy(update={"tools": [*found.tools, *added]})

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Any:
        if params.name == "failing_job":
            require(ctx)  # the suite's only tool that is always a task
        if params.name == "test_tool_with_task":
            found = await wants({"user_name": ask("name")})(ctx, params)
            if "inputRequests" in found:
                return whole(found, types.CallToolResult)
            label = found["content"][0]["text"]
            inputs = {"arguments": {"label": label}, "name": "slow_compute"}
            params = params.model_copy(update=inputs)
        if params.name in RUNS:
            given = {"templateId": params.name, "inputs": params.arguments or {}}
            params = params.model_copy(update={"name": "run_task_template", "arguments": given})
        if params.name in TOOLS:
            return whole(await TOOLS[params.name](ctx, params), types.CallToolResult)
        return await handlers["tools/call"](ctx, params)

    async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
        found = await handlers["resources/list"](ctx, params)
        assert isinstance(found, types.ListResourcesResult)
        added = [types.Resource(uri=uri, name=uri) for uri in RESOURCES]
        return found.model_copy(update={"resources": [*found.resources, *added]})

    async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        if uri in RESOURCES:
            found = {"contents": [{"uri": uri, **RESOURCES[uri]}]}
            return whole(found, types.ReadResourceResult)
        return await handlers["resources/read"](ctx, params)

    async def list_prompts(ctx: Context, params: Any) -> types.Result:
        prompts = [
            {
                "name": name,
                "description": "For the suite.",
                "arguments": [{"name": one, "required": True} for one in given],
            }
            for name, given in PROMPTS.items()
        ]
        return whole({"prompts": prompts}, types.ListPromptsResult)

    async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> types.Result:
        return whole(await _prompt(ctx, params), types.GetPromptResult)

    async def complete(ctx: Context, params: Any) -> types.Result:
        return whole({"completion": {"values": ["paris"]}}, types.CompleteResult)

    async def nothing(ctx: Context, params: Any) -> Json:
        return {}

    ours = server.get_tool_input_schema
    assert ours is not None
    server.get_tool_input_schema = lambda name: ours(name) or schema_of(name)
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    server.add_request_handler("resources/list", types.PaginatedRequestParams, list_resources)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read_resource)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, nothing)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, nothing)
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, list_prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get_prompt)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, complete)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nothing)


def schema_of(name: str) -> Json:
    return SCHEMAS.get(name, ANY)
