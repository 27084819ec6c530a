"""Events: by poll, long poll and stream, from one cursor; and what /status shows."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.surfaces.gateway.conftest import ALL, Door, Paired, open_door
from toolgate.commands.records import STREAM, gateway_event
from toolgate.contracts.gateway_v1 import (
    EVENTS_KEPT_S,
    MAX_EVENTS,
    MAX_WAIT_S,
    ErrorCode,
    EventStatus,
    EventType,
)
from toolgate.core.enums import Level
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, Tool, ToolOutput
from toolgate.evidence.audit import STREAM as AUDIT
from toolgate.journal.journal import Event
from toolgate.secrets.patterns import SecretPatterns
from toolgate.surfaces.gateway import assembly
from toolgate.surfaces.gateway.routes import seconds
from toolgate.testing.clock import FakeClock


@pytest.mark.requirement("002/events/poll-shape")
@pytest.mark.requirement("002/events/event-shape")
@pytest.mark.requirement("002/events/command-start-and-end")
@pytest.mark.requirement("002/events/command-duration")
@pytest.mark.requirement("002/events/duration-everywhere")
@pytest.mark.requirement("002/events/time-ms")
async def test_a_command_makes_a_start_and_an_end_event(door: Door) -> None:
    device = await door.pair()
    before = door.clock.now_ms()
    await device.tool("echo", {"text": "x"}, requestId="r-1")
    page = (await device.get("/events/poll?since=0")).json
    assert list(page) == ["cursor", "events"]
    start, end = page["events"]
    assert (start["status"], end["status"]) == ("started", "succeeded")
    for event in (start, end):
        assert event["type"] == "tool"
        assert event["source"] == "laptop"
        assert event["message"]
        assert event["metadata"]["requestId"] == "r-1"
        assert before <= event["time"] <= door.clock.now_ms()
    assert start["durationMs"] == 0
    assert end["durationMs"] >= 0
    assert page["cursor"] == end["id"]


async def test_no_event_tells_a_secret_that_stands_in_a_name_or_an_id() -> None:
    patterns = SecretPatterns()
    patterns.learn("plain-words-of-a-secret")
    async with open_door(redactor=patterns.redactor()) as door:
        device = await door.pair()
        trace = {"traceId": "a plain-words-of-a-secret"}
        await device.tool("echo", requestId="r plain-words-of-a-secret", trace=trace)
        await device.tool("no plain-words-of-a-secret", requestId="r-2")
        stored = await door.journal.read(STREAM)
        assert [event.data for event in stored if b"plain-words" in event.data] == []
        told = [json.loads(event.data) for event in stored]
        assert [one["status"] for one in told] == ["started", "succeeded", "started", "refused"]
        assert told[0]["metadata"]["requestId"].startswith("r ")
        assert told[3]["message"].startswith("no ")
        assert told[3]["metadata"]["requestId"] == "r-2"
        # A key is in no event, but in the row of the audit; there too nothing else is secret.
        await device.tool("echo", idempotencyKey="k plain-words-of-a-secret")
        rows = await door.journal.read(AUDIT)
        assert [row.data for row in rows if b"plain-words" in row.data] == []
        (keyed,) = [row for row in rows if b'"idempotencyKey":"k ' in row.data]
        assert keyed.type == "command.tool"


@pytest.mark.requirement("002/events/types")
async def test_each_kind_of_command_has_its_type(door: Door) -> None:
    device = await door.pair(**ALL)
    await device.tool("echo")
    await device.post("/command/agent", {"payload": {"agentId": "echo", "message": "x"}})
    await device.post("/command/mcp", {"payload": {"capabilityId": "no", "action": "x"}})
    events = (await device.get("/events/poll?since=0")).json["events"]
    assert [event["type"] for event in events[::2]] == ["tool", "agent", "mcp"]
    assert {kind.value for kind in EventType} == {
        "health",
        "heartbeat",
        "cron",
        "agent",
        "tool",
        "mcp",
    }


@pytest.mark.requirement("002/events/cursor-rises")
@pytest.mark.requirement("002/events/limit")
@pytest.mark.requirement("002/events/none-lost")
async def test_polling_with_each_cursor_gives_every_event_once_and_in_order(door: Door) -> None:
    device = await door.pair()
    for _ in range(5):
        await device.tool("echo")
    cursor, seen = 0, []
    while True:
        page = (await device.get(f"/events/poll?since={cursor}&limit=3")).json
        assert len(page["events"]) <= 3
        if not page["events"]:
            break
        assert page["cursor"] > cursor
        cursor = page["cursor"]
        seen += [event["id"] for event in page["events"]]
    assert seen == list(range(1, 11))


@pytest.mark.requirement("002/events/limit")
async def test_a_poll_has_so_many_events_whatever_its_limit_says(door: Door) -> None:
    device = await door.pair()
    events = [gateway_event(EventType.HEALTH, EventStatus.SUCCEEDED, "x")] * (MAX_EVENTS + 1)
    await door.journal.commit(*events)
    page = (await device.get(f"/events/poll?since=0&limit={MAX_EVENTS + 1}")).json
    assert len(page["events"]) == MAX_EVENTS
    rest = (await device.get(f"/events/poll?since={page['cursor']}")).json
    assert [event["id"] for event in rest["events"]] == [page["cursor"] + 1]
    for limit in ("0", "-1", "x"):
        wrong = await device.get(f"/events/poll?since=0&limit={limit}")
        assert (wrong.status, wrong.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/events/cursor-across-restart")
async def test_the_cursor_goes_on_rising_across_a_restart(tmp_path: Path) -> None:
    async with open_door(home=tmp_path) as door:
        device = await door.pair()
        await device.tool("echo")
        cursor = (await device.get("/events/poll?since=0")).json["cursor"]
    async with open_door(home=tmp_path) as door:
        again = Paired(door, device.device_id, device.token)
        await again.tool("echo")
        page = (await again.get(f"/events/poll?since={cursor}")).json
        assert [event["id"] for event in page["events"]] == [cursor + 1, cursor + 2]


@pytest.mark.requirement("002/events/kept-24h")
@pytest.mark.requirement("002/events/expired-cursor")
async def test_events_are_kept_for_a_day_and_then_their_cursor_is_dead(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    device = await frozen.pair()
    await device.tool("echo")
    frozen.clock.advance(EVENTS_KEPT_S * 1000)
    await frozen.parts.events.forget_old()
    assert len((await device.get("/events/poll?since=0")).json["events"]) == 2
    await device.tool("echo")
    frozen.clock.advance(1)
    await frozen.parts.events.forget_old()
    gone = await device.get("/events/poll?since=0")
    assert (gone.status, gone.code) == (410, ErrorCode.INVALID_REQUEST)
    assert gone.data == {"fallback": "/status"}
    assert len((await device.get("/events/poll?since=2")).json["events"]) == 2


async def test_events_from_while_the_clock_was_wrong_take_none_along_that_are_of_today(
    frozen: Door,
) -> None:
    assert isinstance(frozen.clock, FakeClock)
    device = await frozen.pair()
    await device.tool("echo")
    frozen.clock.advance(-10 * EVENTS_KEPT_S * 1000)  # a machine that forgot the time
    await device.tool("echo")
    frozen.clock.advance(10 * EVENTS_KEPT_S * 1000)
    await frozen.parts.events.forget_old()
    page = await device.get("/events/poll?since=0")
    assert page.status == 200, page.json
    assert [event["id"] for event in page.json["events"]] == [1, 2, 3, 4]


async def test_events_from_a_day_that_is_far_ahead_do_not_stay_until_it_comes(
    frozen: Door,
) -> None:
    assert isinstance(frozen.clock, FakeClock)
    device = await frozen.pair()
    frozen.clock.advance(400 * EVENTS_KEPT_S * 1000)
    await device.tool("echo")
    frozen.clock.advance(-398 * EVENTS_KEPT_S * 1000)
    await frozen.parts.events.forget_old()
    assert frozen.parts.events.oldest_cursor == 2


@pytest.mark.requirement("002/events/future-cursor")
@pytest.mark.requirement("002/events/garbage-cursor")
@pytest.mark.parametrize("cursor", ["3", "99999999999999999999", "abc", "-1", "1.5", "0x1", "%00"])
async def test_a_cursor_that_was_never_given_out_is_gone(door: Door, cursor: str) -> None:
    device = await door.pair()
    await device.tool("echo")
    answer = await device.get(f"/events/poll?since={cursor}")
    assert (answer.status, answer.code) == (410, ErrorCode.INVALID_REQUEST)
    assert answer.data == {"fallback": "/status"}
    stream = await device.get("/events/stream", Last_Event_ID=cursor)
    assert stream.status == 410


@pytest.mark.requirement("002/events/missing-cursor")
async def test_a_poll_without_a_cursor_says_where_to_begin(door: Door) -> None:
    device = await door.pair()
    await device.tool("echo")
    page = (await device.get("/events/poll")).json
    assert page == {"cursor": 2, "events": []}
    assert (await device.get("/status")).json["cursor"] == 2


@pytest.mark.requirement("002/events/long-poll")
async def test_a_long_poll_answers_as_soon_as_an_event_comes(door: Door) -> None:
    device = await door.pair()
    polling = asyncio.create_task(device.get("/events/poll?since=0&wait=30"))
    async with asyncio.timeout(10):
        while not door.parts.registry._watchers:
            await asyncio.sleep(0.01)
        assert not polling.done()
        await device.tool("echo")
        page = (await polling).json
    assert page["events"][0]["id"] == 1


@pytest.mark.requirement("002/events/long-poll-empty-cursor")
async def test_a_long_poll_without_events_answers_the_cursor_it_was_given(door: Door) -> None:
    device = await door.pair()
    await device.tool("echo")
    page = (await device.get("/events/poll?since=2&wait=0.05")).json
    assert page == {"cursor": 2, "events": []}


async def test_a_long_poll_that_ends_without_an_event_leaves_nothing_behind(door: Door) -> None:
    device = await door.pair()
    await device.get("/events/poll?since=0&wait=0.01")
    before = len(asyncio.all_tasks())
    for _ in range(10):
        await device.get("/events/poll?since=0&wait=0.01")
    assert len(asyncio.all_tasks()) - before < 5


@pytest.mark.requirement("002/events/long-poll-bound")
async def test_nobody_waits_longer_than_thirty_seconds(door: Door) -> None:
    assert seconds({"wait": "3600"}) == MAX_WAIT_S == 30
    device = await door.pair()
    for wrong in ("-1", "x", "nan", "inf"):
        answer = await device.get(f"/events/poll?wait={wrong}")
        assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/events/stream")
@pytest.mark.requirement("002/events/stream-last-event-id")
async def test_the_stream_gives_the_same_events_and_resumes(door: Door) -> None:
    device = await door.pair()
    await device.tool("echo")
    polled = (await device.get("/events/poll?since=0")).json["events"]
    url = door.url + "/events/stream"
    async with asyncio.timeout(10):
        async with door.http.get(url + "?since=0", headers=device.headers) as stream:
            assert stream.content_type == "text/event-stream"
            first = [await _next(stream) for _ in range(2)]
        assert [json.loads(event["data"]) for event in first] == polled
        assert [event["event"] for event in first] == ["tool", "tool"]
        headers = {**device.headers, "Last-Event-ID": first[0]["id"]}
        async with door.http.get(url, headers=headers) as stream:
            assert (await _next(stream))["id"] == "2"
            await device.tool("echo")
            assert (await _next(stream))["id"] == "3"


async def _next(stream: object) -> dict[str, str]:
    fields: dict[str, str] = {}
    while True:
        line = (await stream.content.readline()).decode()  # type: ignore[attr-defined]
        assert line
        if line == "\n":
            if "id" in fields:
                return fields
            fields = {}
        else:
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value


@pytest.mark.requirement("002/events/needs-token")
@pytest.mark.requirement("002/status/needs-token")
async def test_events_and_status_need_a_device_or_the_operator(door: Door) -> None:
    for path in ("/events/poll?since=0", "/events/stream", "/status"):
        answer = await door.ask("GET", path)
        assert (answer.status, answer.code) == (401, ErrorCode.AUTH_REQUIRED)
    for path in ("/events/poll?since=0", "/status"):
        assert (await door.ask("GET", path, operator=True)).status == 200


@pytest.mark.requirement("002/health/shape")
@pytest.mark.requirement("002/health/without-token")
async def test_health_needs_no_token(door: Door) -> None:
    answer = await door.ask("GET", "/health")
    assert answer.json == {"ok": True, "version": "1.2.3", "uptime": answer.json["uptime"]}
    assert answer.json["uptime"] >= 0


@pytest.mark.requirement("002/status/shape")
@pytest.mark.requirement("002/status/running-kinds")
@pytest.mark.requirement("002/status/devices-without-secrets")
@pytest.mark.requirement("002/status/heartbeat-null")
@pytest.mark.requirement("002/status/cron-null")
async def test_status_shows_devices_without_their_tokens(door: Door) -> None:
    device = await door.pair()
    answer = await device.get("/status")
    status = answer.json
    assert status["version"] == "1.2.3"
    assert status["health"] == "ok"
    (shown,) = status["devices"]
    assert shown["deviceId"] == "laptop"
    assert device.token.encode() not in answer.body
    assert "token" not in answer.body.decode().lower()
    assert status["running"] == {"agent": [], "tool": [], "mcp": []}
    assert status["heartbeat"] == {"lastAt": None}
    assert status["cron"] == {"lastAt": None}


@pytest.mark.requirement("002/status/running-real")
async def test_running_shows_what_is_in_flight_and_nothing_afterwards(door: Door) -> None:
    gate = asyncio.Event()

    async def slow(_: Mapping[str, JsonValue]) -> ToolOutput:
        await gate.wait()
        return ToolOutput(0)

    door.gate.add("slow", Level.READ, slow)
    device = await door.pair(**ALL)
    running = asyncio.create_task(device.tool("slow", requestId="r-slow"))
    async with asyncio.timeout(10):
        while not (tools := (await device.get("/status")).json["running"]["tool"]):
            await asyncio.sleep(0.01)
        (flight,) = tools
        assert flight["requestId"] == "r-slow"
        assert flight["name"] == "slow"
        assert flight["deviceId"] == "laptop"
        assert (await device.get("/command/r-slow")).data["status"] == "running"
        gate.set()
        await running
    assert (await device.get("/status")).json["running"]["tool"] == []


@pytest.mark.requirement("002/status/running-real")
async def test_running_shows_agents_and_calls_of_mcp_servers_among_their_own(door: Door) -> None:
    gate = asyncio.Event()

    async def slow(_: Mapping[str, JsonValue]) -> ToolOutput:
        await gate.wait()
        return ToolOutput(0)

    door.gate.add("mcp.docs.slow", Level.READ, slow)
    door.upstreams.offered["mcp.docs"] = [Tool("slow", "", Level.READ, {}, True)]
    terms = {"capabilityId": "mcp.docs", "scope": "docs", "level": "read"}
    await door.ask("POST", "/capabilities/register", body=terms, operator=True)
    device = await door.pair(**ALL)
    payload = {"capabilityId": "mcp.docs", "action": "slow"}
    talk = {"agentId": "script", "message": "[[tool:mcp.docs.slow {}]]"}
    commands = [
        asyncio.create_task(device.post("/command/mcp", {"payload": payload, "requestId": "r-m"})),
        asyncio.create_task(device.post("/command/agent", {"payload": talk})),
    ]
    async with asyncio.timeout(10):
        while True:
            running = (await device.get("/status")).json["running"]
            if running["agent"] and running["mcp"]:
                break
            await asyncio.sleep(0.01)
        assert [one["requestId"] for one in running["mcp"]] == ["r-m"]
        assert [one["name"] for one in running["agent"]] == ["script"]
        gate.set()
        assert {answer.status for answer in await asyncio.gather(*commands)} == {200}
    running = (await device.get("/status")).json["running"]
    assert running == {"agent": [], "tool": [], "mcp": []}


@pytest.mark.parametrize("failure", [Unavailable("disk full"), ValueError("a fault of ours")])
async def test_housekeeping_goes_on_after_the_disk_refused_it(
    door: Door, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(assembly, "HOUSEKEEPING_S", 0.0)
    tries: list[str] = []
    again = asyncio.Event()

    async def refuses(stream: str, **_: object) -> list[Event]:
        tries.append(stream)
        if len(tries) > 1:
            again.set()
        raise failure

    monkeypatch.setattr(door.journal, "read", refuses)
    keeping = asyncio.create_task(door.parts.housekeeping())
    waiting = asyncio.create_task(again.wait())
    async with asyncio.timeout(10):
        await asyncio.wait({keeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert again.is_set()
    keeping.cancel()
    waiting.cancel()


async def test_long_polls_whose_clients_have_gone_wait_no_longer(door: Door) -> None:
    device = await door.pair()
    watchers = door.parts.registry._watchers
    polls = [asyncio.create_task(device.get("/events/poll?wait=30")) for _ in range(20)]
    async with asyncio.timeout(10):
        while len(watchers.get("laptop", ())) < 20:
            await asyncio.sleep(0.01)
        for poll in polls:
            poll.cancel()  # and its connection is closed
        while "laptop" in watchers:
            await asyncio.sleep(0.01)
