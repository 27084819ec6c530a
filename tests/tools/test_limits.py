"""Capability limits and the caller's scope, as steps of the gate's `begin`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.people import by
from tests.support.pipelines import Rig, open_rig
from toolgate.access.devices import Scope
from toolgate.access.rate_limits import RATES, RateLimits
from toolgate.core.enums import CommandKind, HealthStatus, Level, Outcome
from toolgate.core.errors import Conflict, Unavailable
from toolgate.core.rates import Rate
from toolgate.core.tools import Caller, CommandScope, ToolRequest
from toolgate.evidence.audit import TOOL_RUN, AuditQuery
from toolgate.journal.journal import Check, Event, Operation
from toolgate.policy.refusal_texts import (
    CAPABILITY_EXPIRED,
    CAPABILITY_OFFLINE,
    OUTSIDE_SCOPE,
    RATE_LIMITED,
)
from toolgate.testing.clock import FakeClock
from toolgate.tools.capabilities import Capability
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import Denied, Pending, Ran

ONE_A_MINUTE = Rate(1)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path, knows_devices=True) as rig:
        yield rig


def call(request_id: str = "r1", tool: str = "count") -> ToolRequest:
    return ToolRequest(request_id, tool, {}, Caller(user="u", level=Level.WRITE))


async def register(rig: Rig, tool: str = "count", **terms: Any) -> None:
    one = Capability(tool, "test", Level.READ, 0, **terms)
    await rig.limits.capabilities.register(one, by="operator")


async def denied(rig: Rig, request: ToolRequest) -> Denied:
    answer = await rig.run(request)
    assert isinstance(answer, Denied), answer
    return answer


def rate_left(rig: Rig, tool: str = "count") -> int:
    (bucket,) = rig.limits.buckets(tool)
    return rig.limits.rates.look(bucket).remaining


@pytest.mark.parametrize(
    ("terms", "rule_id"),
    [
        ({"status": HealthStatus.OFFLINE}, CAPABILITY_OFFLINE),
        ({"expires_at": 1}, CAPABILITY_EXPIRED),
    ],
)
async def test_a_tool_whose_capability_is_off_is_denied(
    rig: Rig, terms: dict[str, Any], rule_id: str
) -> None:
    await register(rig, **terms)
    answer = await denied(rig, call())
    assert (answer.rule_id, answer.spent, rig.engine.runs["count"]) == (rule_id, None, 0)
    assert answer.response is not None
    assert answer.response.evidence_refs


async def test_a_call_that_only_reads_is_charged_too_and_recorded_only_when_refused(
    rig: Rig,
) -> None:
    await register(rig, rate=ONE_A_MINUTE)
    assert await rig.gate.authorize(call("r1")) is None
    refused = await rig.gate.authorize(call("r2"))
    assert refused is not None
    assert (refused.rule_id, refused.code) == (RATE_LIMITED, "rate_limited")
    assert refused.spent is not None
    rows = (await rig.audit.query(AuditQuery(action=TOOL_RUN))).items
    assert [row.metadata["requestId"] for row in rows] == ["r2"]


async def test_a_degraded_capability_is_called(rig: Rig) -> None:
    await register(rig, status=HealthStatus.DEGRADED)
    assert isinstance(await rig.run(call()), Ran)


async def test_nobody_is_asked_about_a_capability_that_is_off(rig: Rig) -> None:
    await register(rig, "ask.once", expires_at=1)
    assert (await denied(rig, call(tool="ask.once"))).rule_id == CAPABILITY_EXPIRED


async def test_the_policy_refuses_before_the_capability_does(rig: Rig) -> None:
    await register(rig, "denied", expires_at=1)
    assert (await denied(rig, call(tool="denied"))).rule_id == "default_deny"


async def test_a_call_that_comes_too_soon_runs_later_under_its_id(rig: Rig) -> None:
    assert isinstance(rig.clock, FakeClock)
    await register(rig, rate=ONE_A_MINUTE)
    assert isinstance(await rig.run(call("r1")), Ran)
    for _ in range(2):
        answer = await denied(rig, call("r2"))
        assert answer.rule_id == RATE_LIMITED
        assert answer.spent is not None
        assert answer.spent.retry_ms > 0
    assert rig.engine.runs["count"] == 1
    rig.clock.advance(60_000)
    assert isinstance(await rig.run(call("r2")), Ran)
    assert isinstance(await rig.run(call("r2")), Ran)  # known: it costs nothing, and runs no more
    assert rig.engine.runs["count"] == 2


async def test_what_a_call_takes_is_on_disk_with_its_start(rig: Rig) -> None:
    await register(rig, rate=ONE_A_MINUTE)
    await rig.gate.begin(call())
    after_a_restart = RateLimits(rig.journal, rig.clock)
    await after_a_restart.load()
    (bucket,) = rig.limits.buckets("count")
    assert after_a_restart.look(bucket).remaining == 0


async def test_a_call_that_the_disk_refuses_costs_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Operation, durable: bool = True) -> list[Event]:
        raise Unavailable("disk full")

    await register(rig, rate=ONE_A_MINUTE)
    with monkeypatch.context() as patched:
        patched.setattr(rig.journal, "commit", full)
        with pytest.raises(Unavailable):
            await rig.gate.begin(call())
    assert rate_left(rig) == 1
    assert isinstance(await rig.run(call()), Ran)


async def test_a_callers_own_conflict_costs_nothing(rig: Rig) -> None:
    await register(rig, rate=ONE_A_MINUTE)
    with pytest.raises(Conflict):
        await rig.gate.begin(call(), also=lambda _: [Check("devices", "laptop", 7)])
    assert rate_left(rig) == 1
    assert isinstance(await rig.run(call()), Ran)


async def test_what_another_node_took_counts(rig: Rig) -> None:
    await register(rig, rate=Rate(2))
    elsewhere = RateLimits(rig.journal, rig.clock)
    assert isinstance(await rig.run(call("r1")), Ran)
    await elsewhere.load()
    await elsewhere.commit(rig.limits.buckets("count"))
    assert (await denied(rig, call("r2"))).rule_id == RATE_LIMITED


async def test_many_calls_at_once_take_one_each(rig: Rig) -> None:
    await register(rig, rate=Rate(5))
    answers = await asyncio.gather(*(rig.run(call(f"r{n}")) for n in range(8)))
    assert sum(isinstance(one, Ran) for one in answers) == 5
    assert {one.rule_id for one in answers if isinstance(one, Denied)} == {RATE_LIMITED}
    (row,) = await rig.journal.scan(RATES)
    assert row.version >= 5


async def test_an_approval_is_kept_for_a_call_that_comes_too_soon(rig: Rig) -> None:
    assert isinstance(rig.clock, FakeClock)
    await register(rig, "ask.once", rate=ONE_A_MINUTE)
    asked = await rig.run(call(tool="ask.once"))
    assert isinstance(asked, Pending)
    await rig.limits.charge(rig.limits.buckets("ask.once"))
    await rig.gate.decide_approval(asked.approval_id, approve=True, decided_by=by("o"), reason="")
    assert (await denied(rig, call(tool="ask.once"))).rule_id == RATE_LIMITED
    rig.clock.advance(60_000)
    assert isinstance(await rig.run(call(tool="ask.once")), Ran)


async def test_a_call_for_a_device_of_the_session_is_charged_too(rig: Rig) -> None:
    await register(rig, rate=ONE_A_MINUTE)
    assert not isinstance(await rig.gate.begin(call("r1"), due=4_000_000_000_000), Denied)
    answer = await rig.gate.begin(call("r2"), due=4_000_000_000_000)
    assert isinstance(answer, Denied)
    assert answer.rule_id == RATE_LIMITED


@pytest.mark.parametrize(
    ("tool", "names"),
    [("mcp.docs.look", ["mcp.docs", "mcp.docs.look"]), ("browser.x", ["mcp.browser", "browser.x"])],
)
async def test_a_tool_has_the_capability_of_its_server_and_its_own(
    rig: Rig, tool: str, names: list[str]
) -> None:
    limits = CapabilityLimits(
        rig.clock,
        rig.limits.capabilities,
        rig.limits.rates,
        capability_of=lambda name: "mcp.docs" if name.startswith("mcp.docs.") else "",
        own={"browser.x": "mcp.browser"},
    )
    assert list(limits.names(tool)) == names


def command(kind: CommandKind, *more: CommandKind, level: Level = Level.WRITE) -> ToolRequest:
    caller = Caller(device="laptop", level=Level.WRITE)
    return ToolRequest("r1", "count", {}, caller, scope=CommandScope((kind, *more), level))


@pytest.mark.parametrize(
    ("scope", "request_", "covered"),
    [
        (Scope(tools=Level.WRITE), command(CommandKind.TOOL), True),
        (Scope(tools=Level.READ), command(CommandKind.TOOL), False),
        (Scope(tools=Level.READ), command(CommandKind.TOOL, level=Level.READ), True),
        (Scope(tools=Level.SIGN), command(CommandKind.TOOL, CommandKind.MCP), False),
        (Scope(tools=Level.SIGN, mcp=True), command(CommandKind.TOOL, CommandKind.MCP), True),
        (Scope(tools=Level.SIGN), command(CommandKind.SYSTEM), False),
        (Scope(system=True), command(CommandKind.SYSTEM), True),
    ],
)
async def test_a_command_outside_the_scope_of_its_caller_is_denied(
    rig: Rig, scope: Scope, request_: ToolRequest, covered: bool
) -> None:
    await rig.registry.pair("laptop", scope, public_key="")
    answer = await rig.run(request_)
    assert isinstance(answer, Ran) == covered
    if isinstance(answer, Denied):
        assert (answer.rule_id, rig.engine.runs["count"]) == (OUTSIDE_SCOPE, 0)


async def test_a_waiting_call_of_a_device_with_fewer_rights_is_denied(rig: Rig) -> None:
    """Its caller is described with their level: the request is another one, and not for that."""
    await rig.registry.pair("laptop", Scope(tools=Level.WRITE), public_key="")
    needed = CommandScope((CommandKind.TOOL,), Level.WRITE)
    before = ToolRequest(
        "r1", "ask.once", {}, Caller(device="laptop", level=Level.WRITE), scope=needed
    )
    assert isinstance(await rig.run(before), Pending)
    await rig.registry.pair("laptop", Scope(), public_key="")
    assert (await denied(rig, before)).rule_id == OUTSIDE_SCOPE


async def interrupted(home: Path, **terms: Any) -> None:
    """Leave a call that may be run again, and then its capability with these terms."""
    async with open_rig(home) as rig:
        await register(rig, rate=Rate(1, 3_600_000))
        await rig.gate.begin(call())
        if terms:
            await register(rig, **terms)


async def test_an_interrupted_call_is_charged_once(tmp_path: Path) -> None:
    await interrupted(tmp_path)
    async with open_rig(tmp_path) as rig:
        await rig.limits.capabilities.load()
        await rig.limits.rates.load()
        await rig.gate.recover()
        assert rate_left(rig) == 0
        assert isinstance(await rig.run(call()), Ran)
        assert rig.engine.runs["count"] == 1


async def test_an_interrupted_call_whose_capability_is_off_is_not_run_again(
    tmp_path: Path,
) -> None:
    await interrupted(tmp_path, expires_at=1)
    async with open_rig(tmp_path) as rig:
        await rig.limits.capabilities.load()
        await rig.gate.recover()
        answer = await rig.run(call())
        assert isinstance(answer, Ran)
        assert answer.output.outcome is Outcome.MAY_HAVE_EXECUTED
        assert rig.engine.runs["count"] == 0
