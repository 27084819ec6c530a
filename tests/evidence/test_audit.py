"""audit.query, sentence by sentence, on a real journal file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.errors import Conflict, Invalid
from toolgate.evidence.audit import (
    CLOCK_SLACK_MS,
    AuditEntry,
    AuditLog,
    AuditPage,
    AuditQuery,
    format_time,
    parse_time,
)
from toolgate.journal.journal import Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import MASK
from toolgate.testing.clock import START_MS, FakeClock

SECRET = "swordfish-9000"


class Audited:
    def __init__(self, journal: SqliteJournal, clock: FakeClock) -> None:
        self.journal = journal
        self.clock = clock
        self.log = AuditLog(journal, redactor=SecretPatterns([SECRET]).redactor())

    async def query(self, **parameters: str) -> AuditPage:
        given = {name.rstrip("_"): value for name, value in parameters.items()}
        return await self.log.query(AuditQuery.parse(given))

    async def ids(self, **parameters: str) -> list[int]:
        return [row.id for row in (await self.query(**parameters)).items]


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[Audited]:
    clock = FakeClock()
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock, bus=LocalBus())
    yield Audited(journal, clock)
    await journal.close()


async def add(audited: Audited, count: int, action: str = "tool.run", **changed: object) -> None:
    for number in range(count):
        entry: dict[str, object] = {
            "action": action,
            "actor": "dev_1",
            "metadata": {"number": number},
        }
        await audited.log.record(AuditEntry(**(entry | changed)))  # type: ignore[arg-type]


@pytest.mark.requirement("000/audit/row-shape")
@pytest.mark.requirement("000/audit/created-at")
@pytest.mark.requirement("000/audit/newest-first")
async def test_a_row_is_on_the_wire_as_the_contract_has_it(audited: Audited) -> None:
    await audited.log.record(
        AuditEntry(
            action="tool.run",
            actor="user:u1",
            tenant_id="t1",
            workspace_id="w1",
            resource_type="tool",
            resource_id="echo",
            metadata={"deviceId": "d1", "n": 1},
        )
    )
    await audited.log.record(AuditEntry(action="policy.changed", actor="operator"))
    page = msgspec.json.decode(msgspec.json.encode(await audited.query()))
    assert page == {
        "items": [
            {
                "id": 2,
                "tenantId": "t_default",
                "workspaceId": "w_default",
                "action": "policy.changed",
                "actor": "operator",
                "metadata": {},
                "createdAt": "2023-11-14T22:13:20.000Z",
            },
            {
                "id": 1,
                "tenantId": "t1",
                "workspaceId": "w1",
                "action": "tool.run",
                "actor": "user:u1",
                "resourceType": "tool",
                "resourceId": "echo",
                "metadata": {"deviceId": "d1", "n": 1},
                "createdAt": "2023-11-14T22:13:20.000Z",
            },
        ]
    }


@pytest.mark.requirement("000/audit/filter-tenant")
@pytest.mark.requirement("000/audit/filter-workspace")
@pytest.mark.requirement("000/audit/filter-action")
@pytest.mark.requirement("000/audit/filter-device-run-decision")
async def test_filters_are_exact_and_combine(audited: Audited) -> None:
    await add(audited, 2, "tool.run", tenant_id="t1")
    await add(audited, 2, "tool.run", tenant_id="t2", workspace_id="w2")
    await add(audited, 2, "tool.runner", tenant_id="t1")
    await add(audited, 1, metadata={"deviceId": "d1", "runId": "run_1", "decision": "deny"})
    await add(audited, 1, metadata={"deviceId": "d1", "runId": "run_2", "decision": "allow"})
    assert await audited.ids(tenantId="t1") == [6, 5, 2, 1]
    assert await audited.ids(action="tool.run") == [8, 7, 4, 3, 2, 1]
    assert await audited.ids(action="tool.run", tenantId="t1") == [2, 1]
    assert await audited.ids(workspaceId="w2") == [4, 3]
    assert await audited.ids(tenantId="t1", workspaceId="w2") == []
    assert await audited.ids(deviceId="d1") == [8, 7]
    assert await audited.ids(deviceId="d1", decision="deny") == [7]
    assert await audited.ids(runId="run_2") == [8]
    assert await audited.ids(tenantId="t") == []


async def test_a_run_that_is_called_like_an_action_is_not_mixed_up_with_it(
    audited: Audited,
) -> None:
    await add(audited, 1, action="policy.changed", metadata={})
    await add(audited, 1, metadata={"runId": "policy.changed"})
    await add(audited, 1, action="run.cancelled", metadata={"runId": "run_1"})
    await add(audited, 2, metadata={"runId": "run_1"})
    assert await audited.ids(action="policy.changed") == [1]
    assert await audited.ids(runId="policy.changed") == [2]
    assert await audited.ids(runId="run_1") == [5, 4, 3]
    assert await audited.ids(runId="run_1", action="run.cancelled") == [3]
    assert await audited.ids(action="tool.run") == [5, 4, 2]


@pytest.mark.requirement("000/audit/unknown-action")
async def test_an_unknown_action_is_no_items_and_no_error(audited: Audited) -> None:
    await add(audited, 3)
    page = await audited.query(action="no.such.action")
    assert page.items == []
    assert page.next_cursor is None


@pytest.mark.requirement("000/audit/filter-from-to")
async def test_from_and_to_are_inclusive(audited: Audited) -> None:
    for _ in range(5):
        await add(audited, 1)
        audited.clock.advance(1000)
    at = [format_time(START_MS + 1000 * number) for number in range(5)]
    assert await audited.ids(from_=at[1], to=at[3]) == [4, 3, 2]
    assert await audited.ids(from_=at[4]) == [5]
    assert await audited.ids(to=at[0]) == [1]
    assert await audited.ids(from_=at[2], to=at[2]) == [3]
    assert await audited.ids(from_=at[3], to=at[1]) == []
    assert await audited.ids(from_=format_time(START_MS + 1001), to=at[2]) == [3]
    assert await audited.ids(to=format_time(START_MS - 1)) == []


async def test_a_time_far_back_is_found_without_reading_all_that_came_after(
    audited: Audited,
) -> None:
    for day in range(40):
        await add(audited, 5, metadata={"day": day})
        audited.clock.advance(86_400_000)
    start = START_MS + 3 * 86_400_000
    page = await audited.query(from_=format_time(start), to=format_time(start + 1000))
    assert [row.metadata["day"] for row in page.items] == [3] * 5


async def test_a_clock_that_was_set_back_hides_no_row(audited: Audited) -> None:
    await add(audited, 3)
    audited.clock.advance(CLOCK_SLACK_MS // 2)
    await add(audited, 3)
    audited.clock.advance(-CLOCK_SLACK_MS // 2)
    await add(audited, 3)
    assert await audited.ids(to=format_time(START_MS)) == [9, 8, 7, 3, 2, 1]
    assert await audited.ids(from_=format_time(START_MS + 1)) == [6, 5, 4]


@pytest.mark.requirement("000/audit/limit-default")
@pytest.mark.requirement("000/audit/limit-maximum")
async def test_limit_is_50_unless_told_and_500_at_most(audited: Audited) -> None:
    await asyncio.gather(
        *(audited.log.record(AuditEntry(action="a", actor="b")) for _ in range(510))
    )
    assert len((await audited.query()).items) == 50
    assert len((await audited.query(limit="1")).items) == 1
    assert len((await audited.query(limit="100000")).items) == 500


@pytest.mark.requirement("000/audit/next-cursor")
async def test_next_cursor_is_there_only_where_more_rows_follow(audited: Audited) -> None:
    await add(audited, 3)
    await add(audited, 2, "other")
    assert (await audited.query(limit="5")).next_cursor is None
    assert (await audited.query(limit="4")).next_cursor == 2
    assert (await audited.query(action="tool.run", limit="3")).next_cursor is None
    assert (await audited.query(action="tool.run", limit="2")).next_cursor == 2
    assert (await audited.query(action="other", limit="2")).next_cursor is None


@pytest.mark.parametrize("filters", [{}, {"action": "tool.run"}, {"tenantId": "t1"}])
@pytest.mark.requirement("000/audit/stable-paging")
@pytest.mark.requirement("000/audit/cursor")
async def test_paging_is_stable_while_new_rows_arrive(
    audited: Audited, filters: dict[str, str]
) -> None:
    for _ in range(10):
        await add(audited, 2, tenant_id="t1")
        await add(audited, 1, "other", tenant_id="t2")
    expected = await audited.ids(limit="500", **filters)
    seen: list[int] = []
    parameters = dict(filters, limit="4")
    while True:
        page = await audited.query(**parameters)
        seen += [row.id for row in page.items]
        await add(audited, 3, tenant_id="t1")
        if page.next_cursor is None:
            break
        parameters["cursor"] = str(page.next_cursor)
    assert seen == expected


async def test_a_row_is_written_with_what_it_is_about_or_not_at_all(audited: Audited) -> None:
    row = audited.log.prepare(AuditEntry(action="a", actor="b"))
    await audited.journal.commit(*row, Put("runs", "r1", b"{}", expected=0))
    with pytest.raises(Conflict):
        await audited.journal.commit(*row, Put("runs", "r1", b"{}", expected=0))
    assert await audited.ids() == [1]


@pytest.mark.requirement("002/audit/redacted")
async def test_secrets_do_not_reach_a_row(audited: Audited) -> None:
    await audited.log.record(
        AuditEntry(
            action=f"a {SECRET}",
            actor=f"b {SECRET}",
            resource_type=SECRET,
            resource_id=SECRET,
            tenant_id=SECRET,
            workspace_id=SECRET,
            metadata={"args": {"password": "x", "note": SECRET.encode().hex()}},
        )
    )
    raw = msgspec.json.encode(await audited.query())
    assert SECRET.encode() not in raw
    assert SECRET.encode().hex().encode() not in raw
    [row] = (await audited.query()).items
    assert row.metadata == {"args": {"password": MASK, "note": MASK}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("from", "yesterday"), ("to", "2026-13-01"), ("limit", "0"), ("limit", "-1"),
        ("limit", "ten"), ("limit", "1" * 30), ("cursor", "0"), ("cursor", "²"), ("nonsense", "x"),
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Invalid) as refused:
        AuditQuery.parse({name: value})
    assert refused.value.field == name


def test_an_empty_parameter_is_as_if_it_were_not_there() -> None:
    assert AuditQuery.parse({"action": "", "limit": ""}) == AuditQuery()


@given(st.integers(0, 32_503_680_000_000))
def test_times_read_back_from_the_text_they_are_written_as(at: int) -> None:
    assert parse_time(format_time(at)) == at


def test_times_with_an_offset_and_without_are_understood() -> None:
    assert parse_time("2026-02-14T13:00:00+01:00") == parse_time("2026-02-14T12:00:00.000Z")
    assert parse_time("2026-02-14T12:00:00") == parse_time("2026-02-14T12:00:00Z")
    assert parse_time("2026-02-14") == parse_time("2026-02-14T00:00:00Z")
