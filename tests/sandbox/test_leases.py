"""Which session a call gets, and when it loses it; on a sandbox that runs nothing."""

import asyncio
import errno
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.sandbox import FakeSandbox
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Caller, ToolRequest
from toolgate.sandbox import sessions as sandbox_sessions
from toolgate.sandbox.sandbox import Command, Limits, NotStarted, SessionKey
from toolgate.sandbox.sessions import Sessions
from toolgate.testing.clock import FakeClock

LIMITS = Limits(idle_seconds=60, life_seconds=600)


def key(name: str) -> SessionKey:
    return SessionKey("t", "w", name)


class Door:
    def __init__(self) -> None:
        self.open_for: set[SessionKey] = set()

    async def open(self, key: SessionKey) -> Path | None:
        self.open_for.add(key)
        return Path("/run/door")

    async def close(self, key: SessionKey) -> None:
        self.open_for.discard(key)


class Leased:
    def __init__(self, *, most: int = 4) -> None:
        self.clock = FakeClock()
        self.sandbox = FakeSandbox()
        self.door = Door()
        self.sessions = Sessions(
            self.sandbox, clock=self.clock, limits=LIMITS, most=most, egress=self.door
        )

    def hold(self, name: str) -> asyncio.Event:
        """Keep that session from ending for as long as the event isn't set."""
        exit_gate = self.sandbox.session_of(key(name)).exit
        exit_gate.clear()
        return exit_gate


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0)


async def test_a_session_is_opened_once_and_stays_warm() -> None:
    leased = Leased()
    first, second = await asyncio.gather(
        leased.sessions.open(key("a")), leased.sessions.open(key("a"))
    )
    assert first is second
    assert len(leased.sandbox.opened) == 1


async def test_tenants_workspaces_and_sessions_never_share() -> None:
    leased = Leased(most=10)
    names = [("t", "w", "s"), ("t2", "w", "s"), ("t", "w2", "s"), ("t", "w", "s2"), ("tw", "", "s")]
    opened = [
        await leased.sessions.open_for(
            ToolRequest("r", "echo", {}, Caller(*name[:2], session=name[2]))
        )
        for name in names
    ]
    assert len({id(session) for session in opened}) == len(names)
    assert len({SessionKey(*name).digest for name in names}) == len(names)


@pytest.mark.requirement("000/workspace/idle-lease")
async def test_a_session_that_was_not_used_for_its_idle_time_is_removed() -> None:
    leased = Leased()
    session = await leased.sessions.open(key("a"))
    leased.clock.advance(59_000)
    await leased.sessions.sweep()
    assert session.alive
    leased.clock.advance(2_000)
    await leased.sessions.sweep()
    assert not leased.sandbox.opened[0].alive
    assert len(leased.sessions) == 0


@pytest.mark.requirement("000/workspace/maximum-life")
async def test_a_session_ends_at_its_maximum_life_even_when_in_use() -> None:
    leased = Leased()
    session = await leased.sessions.open(key("a"))
    leased.sandbox.opened[0].gate.clear()
    running = asyncio.create_task(session.exec(Command("x")))
    await asyncio.sleep(0)
    leased.clock.advance(601_000)
    await leased.sessions.sweep()
    assert not session.alive
    assert await leased.sessions.open(key("a")) is not session
    running.cancel()


async def test_one_that_runs_a_command_is_not_idle() -> None:
    leased = Leased()
    session = await leased.sessions.open(key("a"))
    leased.sandbox.opened[0].gate.clear()
    running = asyncio.create_task(session.exec(Command("x")))
    await asyncio.sleep(0)
    leased.clock.advance(61_000)
    await leased.sessions.sweep()
    assert session.alive
    running.cancel()


async def test_the_longest_unused_one_makes_room() -> None:
    leased = Leased(most=2)
    first = await leased.sessions.open(key("a"))
    leased.clock.advance(1)
    second = await leased.sessions.open(key("b"))
    leased.clock.advance(1)
    await leased.sessions.open(key("a"))
    leased.clock.advance(1)
    await leased.sessions.open(key("c"))
    assert first.alive
    assert not second.alive


async def test_the_caller_with_the_most_sessions_loses_one_and_never_one_with_fewer() -> None:
    leased = Leased(most=6)
    victims = [await leased.sessions.open(key(f"v{n}"), owner="victim") for n in range(2)]
    for n in range(66):
        leased.clock.advance(1)
        await leased.sessions.open(key(f"a{n}"), owner="attacker")
    assert all(session.alive for session in victims)
    assert len(leased.sessions) == 6
    third = await leased.sessions.open(key("v3"), owner="victim")
    assert third.alive
    assert all(session.alive for session in victims), "the other one has more"


async def test_one_caller_has_at_most_its_quota_open_at_once_also_while_others_have_none() -> None:
    leased = Leased(most=6)
    leased.sessions = Sessions(
        leased.sandbox, clock=leased.clock, limits=LIMITS, most=6, most_of_one=3
    )
    await asyncio.gather(*(leased.sessions.open(key(f"a{n}"), owner="a") for n in range(9)))
    assert len(leased.sessions) == 3
    running = []
    for session in [session for session in leased.sandbox.opened if session.alive]:
        session.gate.clear()
        running.append(asyncio.create_task(session.exec(Command("x"))))
    await asyncio.sleep(0)
    with pytest.raises(NotStarted):
        await leased.sessions.open(key("one more"), owner="a")
    assert (await leased.sessions.open(key("b"), owner="b")).alive
    for task in running:
        task.cancel()


async def test_a_named_session_says_once_that_its_workspace_is_new_and_again_when_its_files_are_gone() -> (
    None
):
    leased = Leased()

    async def said(session: str) -> bool:
        request = ToolRequest("r", "shell", {}, Caller("t", "w", session=session))
        await leased.sessions.open_for(request)
        return leased.sessions.is_new(request)

    assert [await said("a"), await said("a"), await said("")] == [True, False, False]
    leased.clock.advance(61_000)
    await leased.sessions.sweep()
    assert [await said("a"), await said("a")] == [True, False]


async def test_where_all_are_busy_another_is_refused_and_nothing_is_taken_away() -> None:
    leased = Leased(most=1)
    session = await leased.sessions.open(key("a"))
    leased.sandbox.opened[0].gate.clear()
    running = asyncio.create_task(session.exec(Command("x")))
    await asyncio.sleep(0)
    with pytest.raises(NotStarted):
        await leased.sessions.open(key("b"))
    assert session.alive
    running.cancel()


async def test_a_dead_session_is_replaced() -> None:
    leased = Leased()
    session = await leased.sessions.open(key("a"))
    await session.close()
    assert (await leased.sessions.open(key("a"))).alive


async def test_the_way_out_is_opened_and_closed_with_its_session() -> None:
    door, sandbox = Door(), FakeSandbox()
    sessions = Sessions(sandbox, clock=FakeClock(), egress=door)
    await sessions.open(key("a"))
    assert sandbox.opened[0].spec.egress == Path("/run/door")
    assert door.open_for == {key("a")}
    sandbox.refuses = "no"
    with pytest.raises(NotStarted):
        await sessions.open(key("b"))
    assert door.open_for == {key("a")}
    await sessions.close()
    assert door.open_for == set()
    assert sandbox.closed


async def test_a_way_out_that_cannot_be_made_starts_nothing_and_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leased = Leased(most=1)

    async def full(_: SessionKey) -> Path | None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as opening:
        opening.setattr(leased.door, "open", full)
        with pytest.raises(NotStarted, match="No space left"):
            await leased.sessions.open(key("a"))
    await leased.sessions.open(key("a"))


async def test_opening_many_at_once_never_passes_the_limit() -> None:
    leased = Leased(most=3)
    await asyncio.gather(
        *(leased.sessions.open(key(str(n))) for n in range(10)), return_exceptions=True
    )
    assert sum(session.alive for session in leased.sandbox.opened) <= 3
    assert len(leased.sessions) <= 3


async def test_idleness_counts_from_the_end_of_a_command() -> None:
    leased = Leased()
    session = await leased.sessions.open(key("a"))
    leased.sandbox.opened[0].gate.clear()
    running = asyncio.create_task(session.exec(Command("x")))
    await asyncio.sleep(0)
    leased.clock.advance(61_000)
    await leased.sessions.sweep()
    leased.sandbox.opened[0].gate.set()
    await running
    await leased.sessions.sweep()
    assert await leased.sessions.open(key("a")) is session


async def test_a_sweep_spares_what_was_opened_anew_while_it_ended_another() -> None:
    leased = Leased()
    for name in ("a", "b"):
        await leased.sessions.open(key(name))
    held = leased.hold("a")
    leased.clock.advance(61_000)
    sweeping = asyncio.create_task(leased.sessions.sweep())
    await until(lambda: not leased.sandbox.session_of(key("a")).alive)
    renewed = await leased.sessions.open(key("b"))
    held.set()
    await sweeping
    assert renewed.alive


@pytest.mark.parametrize("why", ["idle", "room"])
async def test_a_session_opens_anew_only_once_the_one_before_has_ended(why: str) -> None:
    leased = Leased(most=2)
    before = await leased.sessions.open(key("a"))
    await leased.sessions.open(key("b"))
    held = leased.hold("a")
    if why == "idle":
        leased.clock.advance(61_000)
        ending = asyncio.create_task(leased.sessions.sweep())
    else:
        ending = asyncio.create_task(_open(leased, "c"))
    await until(lambda: not before.alive)
    opening = asyncio.create_task(_open(leased, "a"))
    await asyncio.sleep(0)
    assert leased.sandbox.session_of(key("a")) is before
    held.set()
    await asyncio.gather(opening, ending)
    assert leased.sandbox.session_of(key("a")).alive
    assert key("a") in leased.door.open_for  # the old one did not close the new one's way out


async def test_a_place_that_is_being_made_free_is_not_given_away_twice() -> None:
    leased = Leased(most=2)
    for name in ("a", "b"):
        await leased.sessions.open(key(name))
    held = [leased.hold("a"), leased.hold("b")]
    first = asyncio.create_task(_open(leased, "c"))
    second = asyncio.create_task(_open(leased, "d"))
    await until(lambda: not leased.sandbox.session_of(key("a")).alive)
    await asyncio.sleep(0)
    for gate in held:
        gate.set()
    await asyncio.gather(first, second)
    assert sum(session.alive for session in leased.sandbox.opened) == 2


async def _open(leased: Leased, name: str) -> None:
    await leased.sessions.open(key(name))


async def test_the_way_out_closes_even_where_nobody_waits_for_the_room_any_more() -> None:
    leased = Leased(most=1)
    await leased.sessions.open(key("a"))
    held = leased.hold("a")
    opening = asyncio.create_task(_open(leased, "b"))
    await until(lambda: not leased.sandbox.session_of(key("a")).alive)
    opening.cancel()
    await asyncio.wait([opening])
    held.set()
    assert leased.door.open_for == set()


async def test_an_isolation_that_did_not_hold_is_tried_again_when_a_session_is_wanted() -> None:
    """As where a disk was full when we started; whoever is asked later may find it free."""
    leased = Leased()
    tries: list[int] = []

    async def check() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise Unavailable("no space left")

    leased.sandbox.check = check  # type: ignore[method-assign]
    leased.sessions.start_soon()
    assert (await leased.sessions.health())["ok"] is False
    with pytest.raises(NotStarted, match="no space left"):
        await leased.sessions.open(key("a"))
    assert leased.sandbox.opened == []
    await asyncio.gather(leased.sessions.open(key("a")), leased.sessions.open(key("b")))
    assert (await leased.sessions.health())["ok"] is True
    await leased.sessions.open(key("c"))
    assert len(tries) == 3
    await leased.sessions.close()


async def test_when_all_must_end_none_waits_for_another() -> None:
    leased = Leased()
    gates = []
    for name in ("a", "b", "c"):
        await leased.sessions.open(key(name))
        gates.append(leased.hold(name))
    closing = asyncio.create_task(leased.sessions.close())
    await until(lambda: not any(session.alive for session in leased.sandbox.opened))
    assert not closing.done()
    for gate in gates:
        gate.set()
    await closing
    assert leased.sandbox.closed
    assert leased.door.open_for == set()


async def test_an_isolation_that_does_not_hold_is_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator should not learn it from the first command that is refused."""

    async def check() -> None:
        raise Unavailable("missing here: bwrap")

    leased = Leased()
    monkeypatch.setattr(leased.sandbox, "check", check)
    leased.sessions.start_soon()
    await leased.sessions.close()
    del leased
    gc.collect()  # an error that nobody looked at would be told here
    assert [record.message for record in caplog.records] == [
        "sandbox_unavailable isolation=fake reason=missing here: bwrap"
    ]


async def test_a_session_that_cannot_be_closed_does_not_keep_the_others_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox_sessions, "SWEEP_SECONDS", 0)
    leased = Leased()
    await leased.sessions.start()
    for name in ("a", "b"):
        await leased.sessions.open(key(name))

    async def fails() -> None:
        raise OSError(errno.EIO, "the container does not answer")

    monkeypatch.setattr(leased.sandbox.session_of(key("a")), "close", fails)
    leased.clock.advance(int(LIMITS.idle_seconds) * 1000 + 1)
    await until(lambda: not len(leased.sessions))
    await leased.sessions.open(key("c"))  # the sweeper is still there, and the stop ends it too
    await leased.sessions.close()
    assert leased.sandbox.closed


async def test_a_stop_waits_for_every_session_though_one_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leased = Leased()
    for name in ("a", "b"):
        await leased.sessions.open(key(name))

    async def fails() -> None:
        raise RuntimeError("the container does not answer")

    monkeypatch.setattr(leased.sandbox.session_of(key("a")), "close", fails)
    gate = leased.hold("b")
    closing = asyncio.create_task(leased.sessions.close())
    await until(lambda: not len(leased.sessions))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    await asyncio.wait_for(closing, 5)
    assert leased.sandbox.closed
