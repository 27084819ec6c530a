"""The checks of a phase: effects, answers, events, approvals, audit rows and the evidence agree."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.e2e.forked import toolgate
from tests.e2e.harness import PATIENCE, environment
from tests.e2e.kills.commands import Client, CommandClient, SocketClient
from tests.e2e.kills.installation import TICK, Installation
from tests.e2e.kills.operations import Claim, Counts, Operation
from tests.e2e.kills.tasks import TaskClient
from toolgate.contracts.gateway_v1 import MAX_AUDIT_ROWS, MAX_EVENTS, EventStatus
from toolgate.evidence.audit import TOOL_RUN

ENDS: Final = frozenset({EventStatus.SUCCEEDED, EventStatus.FAILED, EventStatus.REFUSED})
STEPS: Final = ENDS | {EventStatus.STARTED, EventStatus.PENDING}
# `system-exec` runs in a sandbox, whose files go with it; the others change nothing.
NOT_COUNTED: Final = frozenset(
    {"echo", "read", "unkeyed-read", "system-exec", "ws-echo", "ws-client-tool"}
)
ASKED_AGAIN: Final = 100  # requests of a client and a phase that are sent again


@dataclass
class Checks:
    """Reads every surface from where the last phase ended."""

    at: Installation
    chance: random.Random
    cursor: int = 0
    audit_id: int = 0
    ticks: Counter[str] = field(default_factory=Counter)  # of the schedule, by status
    calls: Counter[str] = field(default_factory=Counter)  # audit rows by request id
    problems: list[str] = field(default_factory=list)

    async def settled(self, clients: Sequence[Client]) -> None:
        """Check the operations since the last phase; `problems` has what is wrong."""
        for client in clients:
            phase = client.operations[client.checked :]
            answered = [one for one in phase if one.is_acknowledged]
            assert len(answered) == len(phase) or not client.has_id, client.name
            stored = [one for one in answered if one.is_stored]
            for one in self.chance.sample(stored, min(len(stored), ASKED_AGAIN)):
                await self._try(client, one)
        await self._events(clients)
        await self._approvals(clients)
        await self._audit(clients)
        self._effects(clients)
        for client in clients:
            client.checked = len(client.operations)

    def jobs(self) -> Counts:
        """The schedule's jobs that ended; after a kill a job ends without its tool's answer."""
        ended = Counts(interrupted=self.ticks[EventStatus.FAILED])
        ended.acknowledged = ended.interrupted + self.ticks[EventStatus.SUCCEEDED]
        return ended

    async def _try(self, client: Client, one: Operation) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await client.check_again(self.at, one)
        except AssertionError as wrong:
            self.problems.append(f"{client.name}: asked again: {wrong}")

    async def _events(self, clients: Iterable[Client]) -> None:
        """Each command has one start and one end, and the end says what the answer says."""
        steps: dict[str, list[str]] = {}
        traces: dict[str, set[str]] = {}
        for event in await self._new_events():
            about = event["metadata"]
            if "command" in about and event["status"] in STEPS:
                steps.setdefault(about["requestId"], []).append(event["status"])
                traces.setdefault(about["requestId"], set()).add(about["traceId"])
            elif _is_tick(event):
                self.ticks[event["status"]] += 1
        if self.ticks[EventStatus.STARTED] != sum(self.ticks[end] for end in ENDS):
            self.problems.append(f"the schedule: {self.ticks}")
        for request_id, statuses in steps.items():
            ends = [status for status in statuses if status in ENDS]
            started = statuses.count(EventStatus.STARTED)
            in_order = statuses[0] == EventStatus.STARTED and statuses[-1] in ENDS
            if started != 1 or len(ends) != 1 or not in_order:
                self.problems.append(f"{request_id}: its events are {statuses}")
            if len(traces[request_id]) != 1:
                self.problems.append(f"{request_id}: its traces are {traces[request_id]}")
        for client in clients:
            if isinstance(client, CommandClient | SocketClient):
                for one in client.operations[client.checked :]:
                    self._end_of(client, one, steps.get(one.id, []))

    def _end_of(self, client: Client, one: Operation, statuses: Sequence[str]) -> None:
        ends = [status for status in statuses if status in ENDS]
        if one.is_acknowledged and not ends:
            self.problems.append(f"{client.name} {one.id}: answered, without an end: {statuses}")
        elif one.is_acknowledged and (ends[-1] == EventStatus.SUCCEEDED) != _was_carried_out(one):
            self.problems.append(f"{client.name} {statuses}: {one}")

    async def _new_events(self) -> list[dict[str, Any]]:
        """Wait until no job of the schedule is under way."""
        found: list[dict[str, Any]] = []
        while True:
            query = f"/events/poll?since={self.cursor}&limit={MAX_EVENTS}"
            page = await self.at.operator("GET", query)
            found += page["events"]
            self.cursor = page["cursor"]
            ticks = [one for one in found if _is_tick(one)]
            if not page["events"] and (not ticks or ticks[-1]["status"] in ENDS):
                return found

    async def _approvals(self, clients: Iterable[Client]) -> None:
        """Each call that needed a person was asked about once."""
        asked: Counter[str] = Counter()
        cursor = ""
        while True:
            page = (await self.at.operator("GET", f"/approvals?limit=200{cursor}"))["data"]
            asked.update(_payment(one["argsSummary"]) for one in page["items"])
            if "nextCursor" not in page:
                break
            cursor = f"&cursor={page['nextCursor']}"
        self.problems += [f"{id_}: asked {n} times" for id_, n in asked.items() if n > 1]
        for client in clients:
            for one in client.operations:
                if one.approval_id and asked[one.id] != 1:
                    self.problems.append(f"{client.name} {one.id}: asked {asked[one.id]} times")

    async def _audit(self, clients: Iterable[Client]) -> None:
        """Rows have consecutive ids; each call has one row."""
        rows: list[dict[str, Any]] = []
        cursor = ""
        while True:
            query = f"/audit/query?limit={MAX_AUDIT_ROWS}{cursor}"
            page = (await self.at.operator("GET", query))["data"]
            rows += [row for row in page["items"] if row["id"] > self.audit_id]
            if "nextCursor" not in page or page["items"][-1]["id"] <= self.audit_id:
                break
            cursor = f"&cursor={page['nextCursor']}"
        ids = [row["id"] for row in reversed(rows)]
        if ids != list(range(self.audit_id + 1, self.audit_id + 1 + len(ids))):
            self.problems.append(f"audit ids with a gap after {self.audit_id}")
        self.audit_id = ids[-1] if ids else self.audit_id
        found = Counter(row["metadata"]["requestId"] for row in rows if row["action"] == TOOL_RUN)
        self.calls.update(found)
        for request_id in found:
            if self.calls[request_id] > 1:
                self.problems.append(f"{request_id}: {self.calls[request_id]} audit rows")
        for client in clients:
            for one in client.operations if isinstance(client, TaskClient) else ():
                if one.is_acknowledged and not self.calls[one.answer["runId"]]:
                    self.problems.append(f"{one}: no audit row")

    def _effects(self, clients: Iterable[Client]) -> None:
        """At most once; exactly once where the answer says so; never where it says not started."""
        counted = self.at.effects()
        for client in clients:
            for one in client.operations:
                for id_, claim in zip(one.effects, _claims_of(one), strict=False):
                    self._effect(client, one, id_, claim, counted[id_])
        succeeded, started = self.ticks[EventStatus.SUCCEEDED], self.ticks[EventStatus.STARTED]
        if not succeeded <= counted[TICK] <= started:
            self.problems.append(f"the schedule took effect {counted[TICK]} times: {self.ticks}")

    def _effect(self, client: Client, one: Operation, id_: str, claim: Claim, times: int) -> None:
        if client.name in NOT_COUNTED or "look" in id_:
            return
        if times > 1 or (claim is Claim.THERE and times != 1) or (claim is Claim.ABSENT and times):
            self.problems.append(f"{id_}: {times} times: {one}")


def _was_carried_out(one: Operation) -> bool:
    """By the answer: an agent's run that ended well has succeeded, whatever its calls came to."""
    told = one.answer if isinstance(one.answer, dict) else json.loads(one.answer)
    return bool(told["ok"]) and ("runId" in told["data"] or one.succeeded)


def _claims_of(one: Operation) -> Sequence[Claim]:
    return one.claims if one.is_acknowledged else [Claim.UNKNOWN] * len(one.effects)


def _is_tick(event: Mapping[str, Any]) -> bool:
    return str(event["message"]).startswith(f"{TICK} ")


def _payment(summary: str) -> str:
    return str(json.loads(summary.partition(" ")[2])["id"])


def verify(at: Installation) -> list[str]:
    """`toolgate evidence verify` on the home of the program that was killed."""
    home = str(at.program.home)
    ran = toolgate("evidence", "verify", "--home", home, env=environment({}))
    return [] if ran.returncode == 0 else [f"evidence verify: {ran.stdout}{ran.stderr}"]
