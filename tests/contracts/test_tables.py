"""Every code, enumeration, header, default and limit that a seed's own tables name is in its contract."""

import ast
import re
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import pytest

from toolgate.contracts import (
    executor_v0,
    gateway_v1,
    ingress_v1,
    orchestrator_v1,
    runner_v1,
    tasks_v1,
    wire,
)
from toolgate.core import enums
from toolgate.core.enums import CommandKind, HealthStatus, Level, TaskCode, TaskMode, TaskStatus

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = {
    path.name[:3]: path.read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "contracts" / "seeds").glob("*.txt")
}
MODULES: Final = [runner_v1, ingress_v1, orchestrator_v1, gateway_v1, executor_v0, tasks_v1]


def section(seed: str, start: str, end: str) -> str:
    """The text of a seed from a heading to the next one."""
    text = SEEDS[seed]
    begin = text.index(start)
    return text[begin : text.index(end, begin + len(start))]


def first_column(table: str) -> list[str]:
    """The names in code type at the start of a table's rows."""
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def tags(union: Any) -> set[str]:
    return {member.__struct_config__.tag for member in union.__args__}


def test_the_ingress_has_the_seeds_error_codes() -> None:
    named = first_column(section("001", "### 错误码定义", "### 重连策略"))
    assert len(named) == 6
    assert set(named) <= set(ingress_v1.ErrorCode)


def test_the_ingress_sends_the_seeds_message_types_and_no_others() -> None:
    named = first_column(section("001", "### Ingress → 客户端消息", "## 连接管理"))
    assert set(named) == tags(ingress_v1.AnyServerMessage)


def test_the_ingress_takes_the_seeds_message_types_and_no_others() -> None:
    part = section("001", "### 客户端 → Ingress 消息", "### Ingress → 客户端消息")
    assert set(re.findall(r"^#### `(\w+)`", part, re.MULTILINE)) == tags(
        ingress_v1.AnyClientMessage
    )


@pytest.mark.parametrize(
    ("go_type", "model"),
    [
        ("HelloMessage", ingress_v1.Hello),
        ("AgentInvokeMessage", ingress_v1.AgentInvoke),
        ("ToolResultMessage", ingress_v1.ToolResult),
        ("ApprovalDecisionMessage", ingress_v1.ApprovalDecision),
        ("RunStartedEvent", ingress_v1.RunStarted),
        ("DeltaEvent", ingress_v1.Delta),
        ("StateEvent", ingress_v1.State),
        ("ToolRequestEvent", ingress_v1.ToolRequest),
        ("ApprovalRequiredEvent", ingress_v1.ApprovalRequired),
        ("ErrorEvent", ingress_v1.Error),
        ("DoneEvent", ingress_v1.Done),
    ],
)
def test_a_message_of_the_ingress_has_the_members_of_the_seeds_go_type(
    go_type: str, model: Any
) -> None:
    body = section("001", f"type {go_type} struct {{", "}")
    members = dict(re.findall(r'`json:"(\w+)(,omitempty)?"`', body))
    fields = {field.encode_name: field for field in msgspec.structs.fields(model)}
    assert set(members) <= set(fields)
    assert [
        name for name, omitted in members.items() if fields[name].required == bool(omitted)
    ] == []


def test_the_connection_states_are_the_seeds() -> None:
    part = section("001", "type ConnectionState string", "```")
    assert re.findall(r'= "(\w+)"', part) == list(ingress_v1.ConnectionState)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("WS_PORT", ingress_v1.DEFAULT_WS_PORT),
        ("HTTP_PORT", ingress_v1.DEFAULT_HTTP_PORT),
        ("WS_PING_INTERVAL_MS", ingress_v1.PING_INTERVAL_MS),
        ("WS_PONG_WAIT_MS", ingress_v1.PONG_WAIT_MS),
        ("WS_WRITE_WAIT_MS", ingress_v1.WRITE_WAIT_MS),
    ],
)
def test_a_default_of_the_ingress_is_the_seeds(setting: str, value: int) -> None:
    assert f"| `{setting}` | `{value}` |" in SEEDS["001"]


def test_the_runner_has_the_seeds_codes_and_times() -> None:
    codes = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", SEEDS["000"]))
    assert codes
    assert codes <= set(runner_v1.ErrorCode)
    part = section("000", "## 7.", "## 8.")
    assert [int(ms) for ms in re.findall(r"`(\d+)ms`", part)] == [
        runner_v1.DEFAULT_TIMEOUT_MS,
        runner_v1.MAX_TIMEOUT_MS,
    ]


def test_the_gateway_has_the_seeds_codes() -> None:
    named = set(re.findall(r"`(ERR_\w+)`", SEEDS["002"]))
    assert len(named) == 6
    assert named <= set(gateway_v1.ErrorCode)


def test_the_gateway_has_the_seeds_headers() -> None:
    named = set(re.findall(r"`(X-[\w-]+|Idempotency-Key|Retry-After)`", SEEDS["002"]))
    assert len(named) == 8
    assert named <= set(gateway_v1.HEADERS)


def test_the_gateways_events_are_of_the_seeds_types() -> None:
    line = section("002", "`health | ", "\n").strip("`")
    assert line.split(" | ") == list(gateway_v1.EventType)


def test_the_gateways_levels_and_states_are_the_seeds() -> None:
    part = section("002", "POST /capabilities/register", "Playwright capability")
    levels, states = re.findall(r"// (\w+ \| \w+ \| \w+)", part)
    assert levels.split(" | ") == list(Level)
    assert states.split(" | ") == list(HealthStatus)


def test_the_gateways_actions_have_the_seeds_levels() -> None:
    pairs = re.findall(r"^- `([\w.]+) = (\w+)`", SEEDS["002"], re.MULTILINE)
    assert dict(pairs) == {str(key): str(level) for key, level in gateway_v1.ACTION_LEVELS.items()}


def test_the_gateway_has_a_route_for_each_of_the_seeds() -> None:
    named = set(re.findall(r"^(GET|POST) (/[\w/]+)", SEEDS["002"], re.MULTILINE))
    routes = {tuple(route.split(" ")) for route in gateway_v1.V2_METHODS.values()}
    assert named - {("POST", "/command/")} <= routes
    assert {f"command.{kind}" for kind in CommandKind} <= set(gateway_v1.V2_METHODS)


def test_the_gateways_audit_has_the_seeds_fields() -> None:
    part = section("002", "### 5.2", "### 5.3")
    rows: list[type[msgspec.Struct]] = [gateway_v1.GatewayAudit, gateway_v1.ExecutorAudit]
    for names, model in zip(re.findall(r"`([^`]+)`", part), rows, strict=True):
        fields = [field.encode_name for field in msgspec.structs.fields(model)]
        assert names.split(" / ") == fields


def test_the_v2_connect_frame_has_the_seeds_fields() -> None:
    (names,) = re.findall(r"^- 字段：`([^`]+)`", SEEDS["002"], re.MULTILINE)
    fields = {field.encode_name for field in msgspec.structs.fields(gateway_v1.Connect)}
    assert set(names.split(" / ")) == fields
    assert tags(gateway_v1.AnyClientFrame) | tags(gateway_v1.AnyServerFrame) == {
        "connect",
        "req",
        "res",
        "event",
    }


def test_the_executors_rules_and_reasons_are_the_seeds() -> None:
    rules = re.findall(r'reason: "([^"]+)",\s+rule_id: "(\w+)"', SEEDS["003"])
    tools = re.findall(r"Tool ([\w.]+) ", "".join(reason for reason, _ in rules))
    assert [
        executor_v0.RULES[executor_v0.RuleId(rule)].meaning.format(tool=tool)
        for (_, rule), tool in zip(rules, tools, strict=True)
    ] == [reason for reason, _ in rules]


def test_the_executors_default_policy_is_the_seeds() -> None:
    assert f'default: "{executor_v0.DEFAULT_POLICY_REF}"' in SEEDS["003"]


def test_browser_tasks_have_exactly_the_seeds_codes() -> None:
    named = first_column(section("004", "## 5.", "## 6."))
    assert len(named) == 16
    assert named == list(TaskCode)


def test_browser_tasks_have_exactly_the_seeds_seven_tools() -> None:
    named = first_column(section("004", "## 2.", "## 3."))
    assert [name for name in named if name != "subscribe_task_run_events"] == list(tasks_v1.TOOLS)


def test_browser_runs_have_exactly_the_seeds_states() -> None:
    part = section("004", "```ts", "\n```")
    assert re.findall(r"'(\w+)'", part) == list(TaskStatus)
    assert set(TaskStatus) == tasks_v1.OPEN | tasks_v1.WITH_RESULT | tasks_v1.WITH_ERROR


def test_browser_tasks_have_the_seeds_modes() -> None:
    (modes,) = re.findall(r"^- `mode`：保留 `([^`]+)`", SEEDS["004"], re.MULTILINE)
    assert modes.split("/") == list(TaskMode)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("maxConcurrentRuns", tasks_v1.MAX_CONCURRENT_RUNS),
        ("maxUrls", tasks_v1.MAX_URLS),
        ("maxTabsPerSession", tasks_v1.MAX_TABS_PER_SESSION),
        ("syncTimeoutMs", tasks_v1.SYNC_TIMEOUT_MS),
        ("asyncTimeoutMs", tasks_v1.ASYNC_TIMEOUT_MS),
        ("artifactMaxChunkSize", tasks_v1.MAX_CHUNK_BYTES),
        ("artifactTtlMs", tasks_v1.ARTIFACT_TTL_MS),
        ("runTtlMs", tasks_v1.RUN_TTL_MS),
    ],
)
def test_a_limit_of_browser_tasks_is_the_seeds(member: str, value: int) -> None:
    assert f'"{member}": {value},' in SEEDS["004"]


@pytest.mark.parametrize("module", MODULES)
def test_every_code_has_a_meaning_and_an_action(module: ModuleType) -> None:
    tables = {
        name: table
        for name, table in vars(module).items()
        if isinstance(table, dict) and all(isinstance(row, wire.Code) for row in table.values())
    }
    assert "ERROR_CODES" in tables
    for table in tables.values():
        codes: type[Enum] = type(next(iter(table)))
        assert list(table) == list(codes)
        assert all(row.meaning and row.action for row in table.values())


def test_every_code_of_the_gateway_has_a_status() -> None:
    assert {str(code): row.status for code, row in gateway_v1.ERROR_CODES.items()} == {
        "ERR_AUTH_REQUIRED": 401,
        "ERR_INVALID_TOKEN": 401,
        "ERR_PERMISSION_DENIED": 403,
        "ERR_IDEMPOTENCY_CONFLICT": 409,
        "ERR_RATE_LIMITED": 429,
        "ERR_INVALID_REQUEST": 400,
        "ERR_NOT_IMPLEMENTED": 501,
        "ERR_INTERNAL": 500,
        "ERR_UPSTREAM": 502,
        "ERR_UNAVAILABLE": 503,
    }


def members_of(module: ModuleType, *, but: frozenset[str] = frozenset()) -> set[str]:
    """Every member's name on the wire, of every model."""
    return {
        field.encode_name
        for name, model in vars(module).items()
        if isinstance(model, type)
        and issubclass(model, wire.Wire)
        and model not in {wire.Wire, wire.CamelWire}
        and name not in but
        for field in msgspec.structs.fields(model)
    }


SNAKE: Final = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
CAMEL: Final = re.compile(r"[a-z0-9]+([A-Z][a-z0-9]*)*")


@pytest.mark.requirement("001/messages/snake-case", "003/request/snake-case")
def test_ingress_orchestrator_and_executor_spell_their_members_in_snake_case() -> None:
    settings_of_a_client = frozenset({"Reconnect"})  # JavaScript in the seed, never on the wire
    members = (
        members_of(ingress_v1, but=settings_of_a_client)
        | members_of(orchestrator_v1)
        | members_of(executor_v0)
    )
    assert {"session_id", "tool_call_id", "evidence_refs"} <= members
    assert [name for name in sorted(members) if not SNAKE.fullmatch(name)] == []


@pytest.mark.requirement("002/envelope/camel-case", "004/run-object/camel-case")
def test_runner_gateway_and_browser_tasks_spell_their_members_in_camel_case() -> None:
    members = members_of(runner_v1) | members_of(gateway_v1) | members_of(tasks_v1)
    assert {"toolCallId", "idempotencyKey", "artifactIds"} <= members
    assert [name for name in sorted(members) if not CAMEL.fullmatch(name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_limit_is_a_number_of_its_module_with_an_origin(module: ModuleType) -> None:
    limits = vars(module)["LIMITS"]
    for name, origin in limits.items():
        assert isinstance(vars(module)[name], int)
        assert origin
    suffixes = ("_MS", "_S", "_BYTES", "_CHARS")
    named = {name for name in vars(module) if name.endswith(suffixes) and name.isupper()}
    assert named - set(vars(wire)) <= set(limits)


@pytest.mark.parametrize("module", MODULES)
def test_a_contract_knows_only_msgspec_the_shared_enums_and_the_standard_library(
    module: ModuleType,
) -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        else:
            continue
        for name in names:
            root = name.split(".")[0]
            ours = name in {wire.__name__, enums.__name__}
            assert ours or root == "msgspec" or root in sys.stdlib_module_names
