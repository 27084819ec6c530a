"""The homes that 0.1.0 left when it was killed: what is in them, and what a start makes of it.

`make_0_1_0.py` made them. Their time has passed long ago, so that each test starts Toolgate with
a clock that goes on from the moment of the kill, except for the one about a start years later.
"""

import asyncio
import contextlib
import json
import sqlite3
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, INTERNAL, Client, hang_up
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything, start_ingress, start_orchestrator
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.check import ClosedHome, check_log
from toolgate.evidence.checkpoints import VerifierKey

HERE: Final = Path(__file__).parent
FACTS: Final[dict[str, Any]] = json.loads((HERE / "0.1.0.json").read_text())
UP: Final = FACTS["up"]
PATIENCE: Final = 20.0
TEN_YEARS_MS: Final = 10 * 365 * 24 * 3600 * 1000

# Every collection of rows that 0.1.0 writes, and the home that has it. "up" has all that a role
# which runs alone can write, except for what is kept for the role at the other end.
COLLECTIONS: Final[dict[str, str]] = {
    # Tool calls, approvals, and what tools keep.
    "executions": "up",
    "executions_finished": "up",
    "approvals": "up",
    "open_approvals": "up",
    "execution_targets": "up",
    "file_artifacts": "up",
    "kv": "up",
    "policy_on_record": "up",
    # Runs and their agents.
    "agents": "up",
    "calls": "up",
    "ended_runs": "up",
    "open_runs": "up",
    "requests": "up",
    "run_approvals": "up",
    "runs": "up",
    "session_runs": "up",
    "session_tools": "up",
    "sessions": "up",
    # The gateway, the console, and who may use them.
    "capabilities": "up",
    "commands": "up",
    "console_ended": "up",
    "devices": "up",
    "idempotency": "up",
    "open_commands": "up",
    "pairings": "up",
    "rates": "up",
    "revocations": "up",
    "schedules": "up",
    "services": "up",
    "untold_ends": "up",
    # Browser tasks.
    "task_artifacts": "up",
    "task_keys": "up",
    "task_runs": "up",
    # Roles that run alone.
    "pushes": "orchestrator",
    "remote_approvals": "ingress",
    "remote_calls": "ingress",
    "remote_open": "ingress",
    "remote_runs": "ingress",
}
STREAMS: Final = ("approvals", "audit", "evidence", "gateway", "run/", "session/", "tasks")
CALL_STATES: Final = {"waiting", "started", "released", "ended"}
RUN_STATES: Final = {
    "RUNNING",
    "PAUSED_WAITING_TOOL",
    "PAUSED_WAITING_APPROVAL",
    "DONE",
    "FAILED",
    "CANCELLED",
}
TASK_STATES: Final = {"queued", "running", "succeeded", "failed", "partial_success", "canceled"}


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    with tarfile.open(HERE / "0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


class Rows:
    """The rows of a home at rest, and how many events its streams have."""

    def __init__(self, home: Path) -> None:
        with contextlib.closing(sqlite3.connect(home / "journal.db")) as journal:
            found = journal.execute("SELECT collection, key, value FROM rows").fetchall()
            self.streams: list[str] = [
                stream
                for (stream,) in journal.execute(
                    "SELECT stream FROM events JOIN segments ON segment = id"
                )
            ]
        self.by_collection: dict[str, dict[str, bytes]] = {}
        for collection, key, value in found:
            self.by_collection.setdefault(collection, {})[key] = value

    def members(self, collection: str, member: str) -> dict[str, Any]:
        rows = self.by_collection.get(collection, {})
        return {key: json.loads(value).get(member) for key, value in rows.items()}


def go_on_from(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the machine's clock say that the home was left a second ago."""
    began = time.monotonic_ns()

    def now_ms(_: SystemClock) -> int:
        return at + 1_000 + (time.monotonic_ns() - began) // 1_000_000

    monkeypatch.setattr(SystemClock, "now_ms", now_ms)


def problems_of(home: Path) -> list[str]:
    """What the offline check finds wrong with the home's evidence."""
    key = VerifierKey.parse((home / "evidence" / "evidence.vkey").read_text().strip())
    with ClosedHome(home) as closed:
        return check_log(
            closed.log.root, key=key, read_artifact=closed.artifact, journal=closed.filed()
        ).problems


def settings_of(home: Path, **more: str) -> table.Settings:
    given = {**ANY_PORT, "TOOLGATE_HOME": str(home), "LOG_LEVEL": "error", **more}
    return table.load(given, environment={})


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.02)


class Door:
    def __init__(self, urls: dict[str, str], home: Path, http: aiohttp.ClientSession) -> None:
        self.urls, self.http = urls, http
        self.operator = {"Authorization": "Bearer " + (home / "operator.token").read_text().strip()}
        self.executor = {"Authorization": "Bearer " + (home / "executor.token").read_text().strip()}
        self.phone = {"X-Device-Id": "phone", "X-Device-Token": UP["phone_token"]}

    async def ask(
        self, method: str, path: str, body: Any = None, *, who: dict[str, str], at: str = "gateway"
    ) -> Any:
        url = self.urls[at] + path
        async with self.http.request(method, url, json=body, headers=who) as answer:
            return await answer.json()

    async def command(self, request_id: str, payload: Any) -> Any:
        """Send a command as the maker of the home sent it, with the same key."""
        who = {**self.phone, "Idempotency-Key": f"key-{request_id}"}
        body = {"requestId": request_id, "payload": payload}
        return await self.ask("POST", "/command/tool", body, who=who)

    async def state(self, request_id: str) -> Any:
        return (await self.ask("GET", f"/command/{request_id}", who=self.phone))["data"]

    async def run_tool(self, request_id: str, tool: str, args: Any) -> Any:
        body = {"request_id": request_id, "tool_id": tool, "args": args}
        return await self.ask("POST", "/tool/run", body, who=self.executor)

    async def run(self, run_id: str) -> Any:
        return await self.ask("GET", f"/internal/runs/{run_id}", who=INTERNAL, at="orchestrator")


@contextlib.asynccontextmanager
async def started(home: Path) -> AsyncIterator[Door]:
    schedules = str(home / "schedules.yaml")
    installation = await start_everything(
        settings_of(home, SCHEDULE_FILE=schedules, ON_DISCONNECT="keep")
    )
    async with stopping(installation), aiohttp.ClientSession() as http:
        yield Door(installation.urls, home, http)


@contextlib.asynccontextmanager
async def stopping(installation: Installation) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await hang_up()
        await installation.stop()


@pytest.fixture
async def door(homes: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    """The present Toolgate on the home of all roles, a second after the kill."""
    go_on_from(monkeypatch, UP["at"])
    async with started(homes / "up") as opened:
        yield opened


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_home_has_rows_of_each_collection(collection: str) -> None:
    assert FACTS[COLLECTIONS[collection]]["rows"][collection] > 0


@pytest.mark.parametrize("name", FACTS)
def test_the_list_says_what_is_in_a_home_and_the_table_knows_each_collection(
    homes: Path, name: str
) -> None:
    rows = Rows(homes / name)
    found = {collection: len(each) for collection, each in rows.by_collection.items()}
    assert found == FACTS[name]["rows"]
    assert not found.keys() - COLLECTIONS.keys()
    kinds = [stream.partition("/")[0] + "/" * ("/" in stream) for stream in rows.streams]
    assert {kind: kinds.count(kind) for kind in kinds} == FACTS[name]["streams"]


def test_the_home_has_calls_runs_tasks_and_approvals_in_each_state(homes: Path) -> None:
    rows = Rows(homes / "up")
    assert set(rows.members("executions", "state").values()) == CALL_STATES
    assert set(rows.members("runs", "status").values()) == RUN_STATES
    made = len(rows.by_collection["open_runs"].keys()) + len(rows.by_collection["ended_runs"])
    assert made == len(rows.by_collection["runs"]) + 1, "one is CREATED, and has no line yet"
    assert set(rows.members("task_runs", "status").values()) == TASK_STATES
    assert set(rows.members("approvals", "status").values()) == {"PENDING", "APPROVED", "REJECTED"}
    assert rows.members("schedules", "going")["asks"], "a job is at work"
    assert set(rows.streams) >= {"approvals", "audit", "evidence", "gateway", "tasks"}
    assert FACTS["up"]["streams"].keys() == set(STREAMS)


async def test_interrupted_calls_and_commands_are_ended(door: Door) -> None:
    state = await door.state("running")
    assert state["status"] == "done"
    assert state["answer"]["error"]["outcome"] == "may_have_executed"
    events = (await door.ask("GET", "/events/poll?since=0", who=door.operator))["events"]
    told = [one["status"] for one in events if one["metadata"].get("requestId") == "running"]
    assert told == ["started", "failed"]
    again = await door.run_tool("call-running", "file.read", {"path": "b.txt"})
    assert again["policy_check"]["decision"] == "allow"
    assert again["ok"] is False


async def test_what_has_ended_is_answered_again_as_it_was(door: Door, homes: Path) -> None:
    again = await door.command("ended", {"name": "kv.get", "args": {"key": "x"}})
    assert again == UP["answer"]
    kept = await door.run_tool("call-ended", "kv.set", {"key": "colour", "value": "blue"})
    assert kept["tool_result"]["stdout"] == "OK"
    denied = await door.run_tool("call-denied", "shell", {"command": "true"})
    assert denied["policy_check"]["decision"] == "deny"
    assert (await door.state("approve"))["answer"]["ok"] is True
    assert (await door.state("reject"))["answer"]["ok"] is False
    for status in ("DONE", "FAILED", "CANCELLED"):
        assert (await door.run(UP["runs"][status]))["status"] == status
    ref = UP["file"]["ref"]
    url = f"{door.urls['gateway']}/artifact/get?ref={ref}"
    async with door.http.get(url, headers=door.executor) as answer:
        assert await answer.read() == b"a file"


async def test_approvals_that_waited_still_wait_and_can_be_decided(door: Door) -> None:
    waiting = await door.state("waiting")
    assert (waiting["status"], waiting["approvalId"]) == ("pending", UP["approval_of_waiting"])
    approvals = (await door.ask("GET", "/approvals", who=door.operator))["data"]["items"]
    pending = {one["approvalId"]: one for one in approvals if one["status"] == "PENDING"}
    run_id = UP["runs"]["PAUSED_WAITING_APPROVAL"]
    of_run = next(name for name, one in pending.items() if one.get("runId") == run_id)
    for name in (UP["approval_of_waiting"], "apr_call-waiting", of_run):
        body = {"decision": "approve"}
        decided = await door.ask("POST", f"/approvals/{name}/decide", body, who=door.operator)
        assert decided["ok"] is True, decided

    async def command_is_done() -> bool:
        return bool((await door.state("waiting"))["status"] == "done")

    async def run_is_done() -> bool:
        return bool((await door.run(run_id))["status"] == "DONE")

    await until(command_is_done)
    assert (await door.state("waiting"))["answer"]["ok"] is True
    await until(run_is_done)
    assert "3" in (await door.run(run_id))["output"]
    call = await door.run_tool("call-waiting", "math.add", {"a": 1, "b": 2})
    assert call["ok"] is True, call


async def test_open_runs_are_taken_up_and_a_device_can_answer(door: Door) -> None:
    runs = UP["runs"]
    assert (await door.run(runs["PAUSED_WAITING_TOOL"]))["status"] == "PAUSED_WAITING_TOOL"
    call = (await door.run(runs["PAUSED_WAITING_TOOL"]))["tool_calls"][0]
    client = await Client.connect(
        door.urls["ingress_ws"], session_id=runs["session_id"], client_meta={"tools": ["look"]}
    )
    assert client.session_id == runs["session_id"]
    ids = {"run_id": runs["PAUSED_WAITING_TOOL"], "tool_call_id": call["tool_call_id"]}
    await client.say("tool_result", **ids, ok=True, result={"seen": "a page"})

    async def settled() -> bool:
        done = (await door.run(runs["PAUSED_WAITING_TOOL"]))["status"] == "DONE"
        # Its agent cannot be reached any more.
        failed = (await door.run(runs["RUNNING"]))["status"] == "FAILED"
        listed = (await door.ask("GET", "/runs", who=door.operator))["data"]["items"]
        created = next(one for one in listed if one["sessionId"] == "made")
        return bool(done and failed and created["status"] == "DONE")

    await until(settled)


async def test_who_and_what_was_let_in_still_is(door: Door) -> None:
    status = await door.ask("GET", "/status", who=door.phone)
    assert [one["deviceId"] for one in status["devices"]] == ["phone"], "tablet was revoked"
    service = {"Authorization": f"Bearer {UP['service_token']}"}
    assert "devices" in await door.ask("GET", "/status", who=service)
    pending = await door.ask("GET", "/pairing/pending", who=door.operator)
    assert [one["deviceId"] for one in pending["data"]["pending"]] == ["watch"]
    targets = await door.ask("GET", "/execution-targets", who=door.operator)
    runner = next(one for one in targets["data"]["items"] if one["targetId"] == "runner")
    assert runner["hasAuthToken"] is True
    listed = await door.ask("GET", "/capabilities", who=door.operator)
    capabilities = {one["capabilityId"]: one for one in listed["data"]["items"]}
    assert capabilities["echo"]["rateLimit"]["limit"] == 1
    assert "mcp.web" in capabilities
    agents = (await door.ask("GET", "/internal/agents", who=INTERNAL, at="orchestrator"))["agents"]
    assert next(one for one in agents if one["agent_id"] == "away")["has_auth_token"] is True


async def test_what_a_start_leaves_in_the_home(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on_from(monkeypatch, UP["at"])
    assert problems_of(homes / "up") == []
    before = Rows(homes / "up")
    async with started(homes / "up"):
        pass
    after = Rows(homes / "up")
    assert problems_of(homes / "up") == []
    for done in ("revocations", "untold_ends"):
        assert done not in after.by_collection
    assert not {"started", "RUNNING"} & set(after.members("executions", "state").values())
    tasks = after.members("task_runs", "status")
    ended = {"succeeded", "failed", "partial_success", "canceled"}
    for state in ended:
        assert tasks[UP["tasks"][state]] == state
    assert tasks[UP["tasks"]["running"]] == "failed", "it may have sent the form"
    for kept in ("approvals", "devices", "services", "kv", "agents", "file_artifacts"):
        assert before.by_collection[kept].keys() <= after.by_collection[kept].keys()
    task_keys = [set(rows.by_collection["task_keys"].values()) for rows in (before, after)]
    assert task_keys[0] == task_keys[1]
    for stream in ("audit", "evidence", "gateway", "tasks"):
        assert after.streams.count(stream) >= before.streams.count(stream)


async def test_the_audit_of_before_can_be_read(door: Door) -> None:
    audit = await door.ask("GET", "/audit/query?limit=200", who=door.operator)
    assert len(audit["data"]["items"]) >= UP["streams"]["audit"]


async def test_the_home_starts_years_later_when_every_deadline_has_passed(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on_from(monkeypatch, UP["at"] + TEN_YEARS_MS)
    async with started(homes / "up") as door:
        status = await door.ask("GET", "/status", who=door.operator)
        assert status["version"]

        async def nothing_waits() -> bool:
            listed = (await door.ask("GET", "/approvals", who=door.operator))["data"]["items"]
            old = UP["approvals"]
            return not any(
                one["approvalId"] in old and one["status"] == "PENDING" for one in listed
            )

        await until(nothing_waits)
    assert problems_of(homes / "up") == []


async def test_the_roles_alone_take_up_their_runs(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = FACTS["orchestrator"]
    go_on_from(monkeypatch, max(facts["at"], FACTS["ingress"]["at"]))
    orchestrator = await start_orchestrator(
        settings_of(homes / "orchestrator", INGRESS_URL="http://127.0.0.1:1")
    )
    async with stopping(orchestrator):
        url = orchestrator.urls["orchestrator"]
        ingress = await start_ingress(
            settings_of(homes / "ingress", ORCHESTRATOR_URL=url, ON_DISCONNECT="keep")
        )
        async with stopping(ingress), aiohttp.ClientSession(headers=INTERNAL) as http:

            async def status(name: str) -> str:
                async with http.get(f"{url}/internal/runs/{facts['runs'][name]}") as answer:
                    return str((await answer.json())["status"])

            client = await Client.connect(
                ingress.urls["ingress_ws"],
                session_id=facts["runs"]["session_id"],
                client_meta={"tools": ["look"]},
            )
            assert await status("ended") == "DONE"
            assert await status("approval") == "PAUSED_WAITING_APPROVAL"
            assert await status("pushed") == "PAUSED_WAITING_APPROVAL"
            (call,) = Rows(homes / "ingress").by_collection["remote_calls"]
            ids = {"run_id": facts["runs"]["tool"], "tool_call_id": call}
            await client.say("tool_result", **ids, ok=True, result={"seen": "a page"})

            async def is_done() -> bool:
                return await status("tool") == "DONE"

            await until(is_done)
