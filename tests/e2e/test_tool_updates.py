"""What a running tool prints, at every surface that streams, while it runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, Client, hang_up
from tests.support.engines import need
from tests.support.runner import whole
from tests.support.streaming_runner import StreamingRunner
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.tools import updates

OPERATOR = "token-of-the-operator"
EXECUTOR = "token-of-the-executor"
SECRET = "sk-proj-a8Kd02mXq71LzR5vWc93TnYb64HsJu"
AT = "2026-01-02T03:04:05.678Z"
CALL = '[[tool:bash.exec {"cmd": "make"}]]'
PATIENCE = 20.0
POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: commands, allow: [bash.exec, exec, shell], match: any, reason: For the test}
"""


@dataclass
class House:
    urls: dict[str, str]
    runner: StreamingRunner
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, *, token: str = OPERATOR, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
        url = self.urls["gateway"] + path
        async with self.http.request(method, url, headers=headers, **options) as answer:
            return await answer.json()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A whole installation whose commands run on a foreign runner."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    given = {
        "TOOLGATE_HOME": str(tmp_path / "home"),
        "POLICY_FILE": str(policy),
        "HEARTBEAT": "",
        "OPERATOR_TOKEN": OPERATOR,
        "EXECUTOR_TOKEN": EXECUTOR,
    }
    async with AsyncExitStack() as stack:
        runner = StreamingRunner()
        await stack.enter_async_context(runner)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        installation = await start_everything(table.load({**ANY_PORT, **given}, environment={}))
        stack.push_async_callback(installation.stop)
        stack.push_async_callback(hang_up)
        house = House(installation.urls, runner, http)
        target = {
            "tenantId": "t_default",
            "kind": "docker-runner",
            "endpoint": runner.url,
            "isDefault": True,
        }
        put = await house.ask("PUT", "/execution-targets/foreign", json=target)
        assert put["ok"], put
        yield house


def update_of(event: dict[str, Any]) -> dict[str, Any] | None:
    detail = event.get("detail") or {}
    return detail if event["type"] == "state" and "delta" in detail else None


async def hear_update(client: Client) -> dict[str, Any]:
    while (update := update_of(await client.hear())) is None:
        pass
    return update


def joined(events: list[dict[str, Any]]) -> str:
    return "".join(update["delta"] for event in events if (update := update_of(event)))


@pytest.mark.requirement("000/updates/every-surface")
@pytest.mark.requirement("000/updates/forwarded")
@pytest.mark.requirement("000/updates/at-kept")
async def test_a_session_is_sent_a_tool_s_updates_while_it_runs(house: House) -> None:
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    started = (await client.hear_until("run_started"))[-1]
    house.runner.update("compiling\n", AT)
    first = await hear_update(client)  # the runner has not answered yet
    assert (first["delta"], first["at"]) == ("compiling\n", AT)
    house.runner.update("linking\n", "no time at all")
    second = await hear_update(client)
    assert second["delta"] == "linking\n"
    assert second["at"] > AT, "the time at which it came"
    assert second["tool_call_id"] == first["tool_call_id"]
    house.runner.result("built")
    heard = await client.hear_until("done", "error")
    assert heard[-1]["type"] == "done", heard
    assert "built" in "".join(one.get("text", "") for one in heard)
    assert joined(heard) == "", "no update follows the call's end"
    # Who comes back is sent the same events under the same numbers and ids.
    again = await Client.connect(
        house.urls["ingress_ws"], session_id=client.session_id, last_seq=started["seq"]
    )
    told = await again.hear_until("done")
    assert joined(told) == "compiling\nlinking\n"
    assert again.last_seq == client.last_seq
    assert len({one["event_id"] for one in told}) == len(told)


@pytest.mark.requirement("000/updates/in-order-before-result")
@pytest.mark.parametrize("kind", ["json", "ndjson"])
async def test_updates_that_come_with_the_result_are_sent_before_it(
    house: House, kind: str
) -> None:
    times = [f"2026-01-02T03:04:0{n}.000Z" for n in range(3)]
    texts = ["one\n", "two\n", "three"]  # the last is held back: it may begin a secret
    entries = [{"delta": text, "at": at} for text, at in zip(texts, times, strict=True)]
    body = {"updates": entries, "result": {"ok": True, "output": "built"}}
    if kind == "json":
        house.runner.answer = whole(body)
    else:
        house.runner.send(body)
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    heard = await client.hear_until("done", "error")
    seen = [(update["delta"], update["at"]) for one in heard if (update := update_of(one))]
    assert seen == list(zip(texts, times, strict=True))
    last_update = max(n for n, one in enumerate(heard) if update_of(one))
    assert last_update < min(n for n, one in enumerate(heard) if "built" in one.get("text", ""))


async def test_a_secret_split_over_two_updates_is_not_sent_to_the_session(house: House) -> None:
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    send_split_secret(house.runner)
    heard = await client.hear_until("done", "error")
    assert joined(heard).startswith("token: ")
    assert leaks(json.dumps(heard)) == []


def send_split_secret(runner: StreamingRunner) -> None:
    runner.update(f"token: {SECRET[:14]}")
    runner.update(f"{SECRET[14:]} and on\n")
    runner.result("fine")


def leaks(text: str) -> list[str]:
    """The parts of the secret, other than its public prefix, that a text shows."""
    return [part for part in (SECRET, SECRET[8:14], SECRET[14:]) if part in text]


async def test_a_tool_that_floods_is_cut_with_a_note_and_holds_nothing_up(house: House) -> None:
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    line = json.dumps({"delta": "0123456789" * 4 + "\n"}).encode() + b"\n"
    for _ in range(100):
        house.runner.send_bytes(line * 1000)
    house.runner.result("the end")
    heard = await client.hear_until("done", "error")
    assert heard[-1]["type"] == "done", heard[-1]
    text = joined(heard)
    assert text.endswith(updates.STOPPED)
    assert len(text) <= updates.LIMIT + len(updates.STOPPED)
    count = sum(1 for one in heard if update_of(one))
    assert count < 5_000, "many updates go into one event"


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00\n", b'{"delta": "\xc3\n', b"{{{\n", b"\x00" * 64])
async def test_junk_amid_the_updates_fails_the_call_and_nothing_else(
    house: House, junk: bytes
) -> None:
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    house.runner.update("before\n")
    house.runner.send_bytes(junk)
    house.runner.end()
    heard = await client.hear_until("done", "error")
    assert heard[-1]["type"] == "done"
    assert joined(heard) == "before\n"


async def test_updates_after_the_result_are_not_read(house: House) -> None:
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    house.runner.update("before\n")
    house.runner.result("the end")
    for _ in range(100):
        house.runner.update("after\n")
    house.runner.end()
    heard = await client.hear_until("done", "error")
    assert joined(heard) == "before\n"


async def test_no_update_follows_the_end_of_a_cancelled_run(house: House) -> None:
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(CALL, agent="script")
    run_id = (await client.hear_until("run_started"))[-1]["run_id"]
    house.runner.update("before\n")
    await hear_update(client)
    await client.say("cancel_run", run_id=run_id, reason="enough")
    for _ in range(50):
        house.runner.update("more\n")
    await client.hear_until("done")
    await asyncio.wait_for(house.runner.gone.wait(), PATIENCE)
    await client.invoke("hello", agent="echo", request_id="r2")
    assert joined(await client.hear_until("done")) == ""


class Device:
    """A paired device that may use every kind of command."""

    def __init__(self, house: House, name: str, token: str) -> None:
        self.house = house
        self.name = name
        self.token = token
        self.headers = {"X-Device-Id": name, "X-Device-Token": token}

    async def run(self, kind: str, payload: Any, request_id: str = "q1") -> Any:
        body = {"payload": payload, "requestId": request_id}
        headers = {**self.headers, "Idempotency-Key": request_id}
        url = f"{self.house.urls['gateway']}/command/{kind}"
        async with self.house.http.post(url, json=body, headers=headers) as answer:
            return await answer.json()

    async def poll(self, since: int, wait: float = 0.0) -> Any:
        url = f"{self.house.urls['gateway']}/events/poll?since={since}&wait={wait}"
        async with self.house.http.get(url, headers=self.headers) as answer:
            return await answer.json()


async def pair(house: House, name: str) -> Device:
    status = house.urls["gateway"] + "/status"
    async with house.http.get(status, headers={"X-Device-Id": name}):
        pass
    scope = {"tools": "sign", "system": True, "mcp": True, "agent": True}
    body = {"deviceId": name, "scope": scope}
    paired = await house.ask("POST", "/pairing/approve", json=body)
    return Device(house, name, paired["data"]["deviceToken"])


MAKE = {"name": "bash.exec", "args": {"cmd": "make"}}


def running_of(events: list[Any]) -> list[Any]:
    return [event for event in events if event["status"] == "running"]


def said_in(events: list[Any]) -> str:
    return "".join(event["message"] for event in running_of(events))


async def poll_until(device: Device, found: str) -> list[Any]:
    """The events from the first on, until the running tool has said so much."""
    events: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while found not in said_in(events):
            since = events[-1]["id"] if events else 0
            events += (await device.poll(since, wait=5))["events"]
    return events


@pytest.mark.requirement("000/updates/every-surface")
async def test_events_bring_a_command_s_output_while_it_runs(house: House) -> None:
    device = await pair(house, "laptop")
    running = asyncio.create_task(device.run("tool", MAKE))
    house.runner.update("compiling\n", AT)
    before = await poll_until(device, "compiling")
    assert not running.done()
    house.runner.update("linking\n")
    await poll_until(device, "linking")
    house.runner.result("built")
    answer = await running
    assert answer["ok"], answer
    events = (await device.poll(0))["events"]
    mine = [event for event in events if event["metadata"].get("requestId") == "q1"]
    assert [event["status"] for event in mine] == ["started", "running", "running", "succeeded"]
    assert mine[1]["type"] == "tool"
    assert mine[1]["message"] == "compiling\n"
    assert mine[1]["metadata"]["at"] == AT
    assert mine[1]["metadata"]["traceId"] == answer["traceId"]
    assert mine[1]["durationMs"] >= 0
    assert running_of(before) == mine[1:2], "under the same id later"


@pytest.mark.requirement("000/updates/every-surface")
async def test_the_stream_of_events_brings_it_too(house: House) -> None:
    device = await pair(house, "laptop")
    url = house.urls["gateway"] + "/events/stream?since=0"
    async with house.http.get(url, headers=device.headers) as stream:
        running = asyncio.create_task(device.run("tool", MAKE))
        send_split_secret(house.runner)
        heard = b""
        async with asyncio.timeout(PATIENCE):
            while b'"status":"succeeded"' not in heard:
                heard += await stream.content.readany()
    await running
    assert b'event: tool\ndata: {"id":' in heard
    assert b'"status":"running"' in heard
    assert b"token: " in heard
    assert leaks(heard.decode()) == []


@pytest.mark.requirement("000/updates/every-surface")
async def test_a_v2_connection_is_pushed_a_command_s_output(house: House) -> None:
    device = await pair(house, "laptop")
    async with house.http.ws_connect(house.urls["gateway"] + "/v2/ws") as socket:
        nonce = (await socket.receive_json(timeout=PATIENCE))["data"]["nonce"]
        auth = {"token": device.token}
        hello = {"type": "connect", "deviceId": "laptop", "clientType": "test", "auth": auth}
        await socket.send_json({**hello, "challenge": nonce})
        assert (await socket.receive_json(timeout=PATIENCE))["ok"]
        params = {"payload": MAKE, "requestId": "q1"}
        asked = {"type": "req", "id": "1", "method": "command.tool", "params": params}
        await socket.send_json({**asked, "idempotencyKey": "q1"})
        house.runner.update("compiling\n", AT)
        heard = [await socket.receive_json(timeout=PATIENCE)]
        while heard[-1]["data"].get("status") != "running":
            heard.append(await socket.receive_json(timeout=PATIENCE))
        pushed = heard[-1]["data"]
        assert (pushed["type"], pushed["message"]) == ("tool", "compiling\n")
        assert pushed["metadata"]["requestId"] == "q1"
        assert pushed["metadata"]["at"] == AT
        send_split_secret(house.runner)
        while heard[-1]["type"] != "res" and heard[-1]["data"].get("status") != "succeeded":
            heard.append(await socket.receive_json(timeout=PATIENCE))
        assert leaks(json.dumps(heard)) == []


async def test_the_events_of_another_device_do_not_bring_it(house: House) -> None:
    laptop, phone = await pair(house, "laptop"), await pair(house, "phone")
    house.runner.update("of the laptop\n")
    house.runner.result()
    await laptop.run("tool", MAKE)
    own, others = await laptop.poll(0), await phone.poll(0)
    assert said_in(own["events"]) == "of the laptop\n"
    assert said_in(others["events"]) == ""
    assert others["cursor"] == own["cursor"]
    everything = await house.ask("GET", "/events/poll?since=0")
    assert said_in(everything["events"]) == "of the laptop\n"


async def test_a_command_that_floods_is_cut_with_a_note(house: House) -> None:
    device = await pair(house, "laptop")
    for _ in range(30):
        house.runner.send({"delta": "x" * 50_000})
    house.runner.result()
    assert (await device.run("tool", MAKE))["ok"]
    events = (await device.poll(0))["events"]
    assert said_in(events).endswith(updates.STOPPED)
    assert events[-1]["status"] == "succeeded"


def as_a_call(request_id: str = "e1") -> dict[str, Any]:
    return {"request_id": request_id, "tool_id": "bash.exec", "args": {"cmd": "make"}}


def follow_call(house: House) -> Any:
    headers = {"authorization": f"Bearer {EXECUTOR}", "accept": "text/event-stream"}
    return house.http.post(house.urls["gateway"] + "/tool/run", json=as_a_call(), headers=headers)


@pytest.mark.requirement("000/updates/every-surface")
async def test_tool_run_streams_updates_and_then_the_response(house: House) -> None:
    house.runner.update("compiling\n", AT)
    async with asyncio.timeout(PATIENCE), follow_call(house) as answer:
        assert answer.status == 200
        expected = {"delta": "compiling\n", "at": AT}
        assert await answer.content.readline() == b"event: update\n"
        assert json.loads((await answer.content.readline())[6:]) == expected  # it still runs
        send_split_secret(house.runner)
        rest = (await answer.content.read()).decode()
    assert leaks(rest) == []
    last = rest.strip().split("\n\n")[-1].split("\n")
    assert last[0] == "event: response"
    body = json.loads(last[1].removeprefix("data: "))
    assert body["tool_result"]["stdout"] == "fine"
    assert body == await house.ask("POST", "/tool/run", token=EXECUTOR, json=as_a_call())


async def test_a_reader_of_tool_run_that_goes_stops_the_runner_s_call(house: House) -> None:
    house.runner.update("compiling\n", AT)
    async with asyncio.timeout(PATIENCE), follow_call(house) as answer:
        await answer.content.readline()
        answer.close()
        await house.runner.gone.wait()


async def test_a_reader_of_tool_run_that_reads_nothing_does_not_hold_the_tool_up(
    house: House,
) -> None:
    for _ in range(30):
        house.runner.send({"delta": "x" * 50_000})
    house.runner.result()
    async with asyncio.timeout(PATIENCE), follow_call(house) as answer:
        await house.runner.gone.wait()  # the gateway has read the result
        text = (await answer.content.read()).decode()
    assert text.count(json.dumps(updates.STOPPED)[1:-1]) == 1
    assert text.strip().split("\n\n")[-1].startswith("event: response")


async def test_a_command_in_the_sandbox_of_this_machine_streams_too(house: House) -> None:
    need("bwrap")
    await house.ask("DELETE", "/execution-targets/foreign")
    # Half a character, then its other half and a byte that is none; then it waits for its end.
    script = "printf 'caf\\303'; sleep 0.1; printf '\\251\\377\\n'; sleep 60"
    client = await Client.connect(house.urls["ingress_ws"])
    await client.invoke(f"[[tool:bash.exec {json.dumps({'cmd': script})}]]", agent="script")
    run_id = (await client.hear_until("run_started"))[-1]["run_id"]
    said = ""
    async with asyncio.timeout(PATIENCE):
        while "\n" not in said:
            said += (await hear_update(client))["delta"]
    assert said == "caf\u00e9\ufffd\n"
    await client.say("cancel_run", run_id=run_id, reason="enough")
    assert joined(await client.hear_until("done")) == ""


@pytest.mark.requirement("000/updates/every-surface")
async def test_a_system_command_in_the_sandbox_of_this_machine_streams_too(house: House) -> None:
    need("bwrap")
    await house.ask("DELETE", "/execution-targets/foreign")
    device = await pair(house, "laptop")
    script = (
        f"printf 'token: {SECRET[:14]}'; sleep 0.1; printf '{SECRET[14:]}\\nready\\n'; sleep 60"
    )
    payload = {"action": "exec", "args": {"command": "sh", "params": ["-c", script]}}
    running = asyncio.create_task(device.run("system", payload))
    events = await poll_until(device, "ready")
    assert not running.done()
    assert said_in(events).startswith("token: ")
    assert leaks(said_in(events)) == []
    running.cancel()
