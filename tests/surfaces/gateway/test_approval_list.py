"""`GET /approvals`: those that wait are found without reading all that ever was."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from toolgate.access.devices import OPERATOR
from toolgate.commands.answers import Problem
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.enums import ApprovalStatus
from toolgate.journal.journal import Append, NewEvent, Operation, Put, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.surfaces.gateway.approvals import ApprovalRoutes
from toolgate.surfaces.gateway.routes import Call
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools import approval_records as kept
from toolgate.tools.approvals import Approval, Question

DECIDED = 450


class Counting(MemoryJournal):
    rows_read = 0

    async def scan(
        self, collection: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[Row]:
        rows = await super().scan(collection, after=after, limit=limit, newest_first=newest_first)
        self.rows_read += len(rows)
        return rows


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def journal(clock: FakeClock) -> Counting:
    """Two that wait and one whose time is over, and after those many that were decided."""
    journal, now = Counting(clock=clock, bus=LocalBus()), clock.now_ms()
    waits = [_approval(number, asked_at=now, expires_at=now + 600_000) for number in (0, 1)]
    late = _approval(2, asked_at=now - 600_000, expires_at=now)
    decided = [
        replace(_approval(number, now, now + 600_000), status=ApprovalStatus.APPROVED)
        for number in range(3, 3 + DECIDED)
    ]
    await journal.commit(*_rows([*waits, late, *decided]))
    return journal


def _approval(number: int, asked_at: int, expires_at: int) -> Approval:
    return Approval(
        approval_id=f"apr_{number:04}",
        request_id=f"{number:04}",
        binding="b",
        tool="pay",
        summary="",
        reason="",
        rule_id="r",
        policy_version="v",
        asked_by=("agent",),
        asked_at=asked_at,
        expires_at=expires_at,
    )


class NoArguments:
    async def question(self, approval: Approval) -> Question:
        return Question(approval, approval.summary, None)


def _rows(approvals: Sequence[Approval]) -> list[Operation]:
    rows: list[Operation] = []
    for one in approvals:
        value = kept.encode(one)
        asked = kept.encode(replace(one, status=ApprovalStatus.PENDING))
        rows.append(Put(kept.COLLECTION, one.approval_id, value, expected=0))
        rows.append(Append(kept.STREAM, [NewEvent("asked", asked)]))
        if one.status is ApprovalStatus.PENDING:
            rows.append(Put(kept.OPEN, one.approval_id, value, expected=0))
        else:
            rows.append(Append(kept.STREAM, [NewEvent("decided", value)]))
    return rows


async def listed(journal: Counting, clock: FakeClock, **query: str) -> wire.ApprovalPage:
    nobody = cast(Any, None)  # listing asks neither the pipeline nor the runs
    routes = ApprovalRoutes(cast(Any, NoArguments()), nobody, journal, clock).routes()
    (handle,) = [route.handle for route in routes if route.key == "GET /approvals"]
    page: wire.ApprovalPage = (await handle(Call(OPERATOR, "trace", query=query))).data
    return page


@pytest.mark.parametrize("status", ["PENDING", "pending"])
async def test_those_that_wait_are_listed_without_reading_those_that_were_decided(
    journal: Counting, clock: FakeClock, status: str
) -> None:
    first = await listed(journal, clock, status=status, limit="1")
    assert [one.approval_id for one in first.items] == ["apr_0001"]
    rest = await listed(journal, clock, status=status, limit="1", cursor=str(first.next_cursor))
    assert [one.approval_id for one in rest.items] == ["apr_0000"]
    assert not rest.next_cursor
    assert journal.rows_read < 20


async def test_the_others_are_found_by_their_status_too(
    journal: Counting, clock: FakeClock
) -> None:
    assert len((await listed(journal, clock, status="APPROVED", limit="500")).items) == DECIDED
    expired = await listed(journal, clock, status="EXPIRED")
    assert [one.approval_id for one in expired.items] == ["apr_0002"]


@pytest.mark.parametrize("status", ["", "PENDING"])
async def test_they_come_newest_first_whatever_they_are_called(
    clock: FakeClock, status: str
) -> None:
    """A schedule's, a command's and an executor's: their ids are of different making."""
    journal, now = Counting(clock=clock, bus=LocalBus()), clock.now_ms()
    for number, name in enumerate(("tool-7", "cmd_1", "a", "run_2", "cron_x_3")):
        one = replace(_approval(number, now + number, now + 600_000), approval_id=f"apr_{name}")
        await journal.commit(*_rows([one]))
    names, cursor = [], ""
    while True:
        page = await listed(journal, clock, status=status, limit="2", cursor=cursor)
        names += [one.approval_id.removeprefix("apr_") for one in page.items]
        if not page.next_cursor:
            break
        cursor = str(page.next_cursor)
    assert names == ["cron_x_3", "run_2", "a", "cmd_1", "tool-7"]


async def test_one_that_is_decided_while_they_are_paged_is_told_as_it_is_now(
    clock: FakeClock,
) -> None:
    journal, now = Counting(clock=clock, bus=LocalBus()), clock.now_ms()
    both = [_approval(number, now + number, now + 600_000) for number in (0, 1)]
    await journal.commit(*_rows(both))
    first = await listed(journal, clock, limit="1")
    decided = kept.encode(replace(both[0], status=ApprovalStatus.REJECTED))
    await journal.commit(
        Put(kept.COLLECTION, both[0].approval_id, decided, expected=1),
        Append(kept.STREAM, [NewEvent("decided", decided)]),
    )
    rest = await listed(journal, clock, limit="1", cursor=str(first.next_cursor))
    assert [(one.approval_id, one.status) for one in rest.items] == [("apr_0000", "REJECTED")]


async def test_a_status_that_there_is_not_is_invalid(journal: Counting, clock: FakeClock) -> None:
    with pytest.raises(Problem):
        await listed(journal, clock, status="OPEN")
    assert journal.rows_read == 0
