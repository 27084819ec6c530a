"""The registry: tokens as hashes, compared in constant time."""

import ast
import asyncio
import inspect
from itertools import chain

import pytest

from tests.support.people import known_to
from toolgate.access import authentication
from toolgate.access import registry as module
from toolgate.access.devices import OPERATOR, Scope, Who
from toolgate.access.refusals import AuthRequired, InvalidToken
from toolgate.access.registry import Credentials, Registry
from toolgate.core.errors import Conflict, NotFound, Unavailable
from toolgate.journal.journal import Append, Check, Event, NewEvent, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def make(journal: MemoryJournal | None = None) -> Registry:
    clock = FakeClock()
    journal = journal or MemoryJournal(clock=clock, bus=LocalBus())
    return Registry(journal, clock)


@pytest.mark.requirement("002/pairing/token-constant-time")
def test_no_token_or_hash_is_compared_by_equality() -> None:
    nodes = (ast.walk(ast.parse(inspect.getsource(one))) for one in (module, authentication))
    for node in chain.from_iterable(nodes):
        if isinstance(node, ast.Compare):
            compared = ast.unparse(node)
            assert not ("hash" in compared and ("==" in compared or "!=" in compared)), compared
    assert "hmac.compare_digest" in inspect.getsource(module.same)


async def test_who_a_token_belongs_to() -> None:
    registry = make()
    token = await registry.pair("d", Scope(), public_key="")
    assert known_to(registry).device(Credentials("d", token)).who is Who.DEVICE
    assert known_to(registry).bearer("op") is OPERATOR
    service = await registry.add_service("ci", Scope())
    assert known_to(registry).bearer(service).name == "service:ci"
    again = await registry.add_service("ci", Scope())
    for wrong in ("", "nope", service, token, "\ud800"):
        with pytest.raises(InvalidToken):
            known_to(registry).bearer(wrong)
    assert known_to(registry).bearer(again).who is Who.SERVICE
    with pytest.raises(AuthRequired):
        known_to(registry).device(Credentials("stranger", token))
    with pytest.raises(InvalidToken):
        known_to(registry).device(Credentials("d", "op"))


async def test_what_was_paired_is_there_after_a_restart_and_hashed() -> None:
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    first = make(journal)
    token = await first.pair("d", Scope(), public_key="k")
    service = await first.add_service("ci", Scope())
    second = make(journal)
    await second.load()
    assert known_to(second).device(Credentials("d", token)).name == "d"
    assert known_to(second).bearer(service).name == "service:ci"
    for collection, key in (("devices", "d"), ("services", "ci")):
        row = await journal.get(collection, key)
        assert row is not None
        assert token.encode() not in row.value
        assert service.encode() not in row.value


class SlowJournal(MemoryJournal):
    """What it is given from `slow` on it keeps for a while, in order."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock(), bus=LocalBus())
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        await self.may_go_on.wait()
        return await super().commit(*operations, durable=durable)


@pytest.mark.parametrize("meanwhile", ["pair", "bind"])
async def test_a_device_that_is_revoked_while_it_is_changed_stays_revoked(meanwhile: str) -> None:
    journal = SlowJournal()
    registry = make(journal)
    token = await registry.pair("d", Scope(), public_key="")
    journal.may_go_on.clear()
    changing: asyncio.Task[object] = asyncio.create_task(
        registry.pair("d", Scope(), public_key="")
        if meanwhile == "pair"
        else registry.bind_key("d", "k")
    )
    await asyncio.sleep(0)
    revoking = asyncio.create_task(registry.revoke("d"))
    await asyncio.sleep(0)
    with pytest.raises(InvalidToken):
        known_to(registry).device(Credentials("d", token))
    journal.may_go_on.set()
    await asyncio.gather(changing, revoking)
    after_a_restart = make(journal)
    await after_a_restart.load()
    for known in (registry, after_a_restart):
        assert known.devices == []


async def test_a_service_token_that_is_ended_while_it_is_made_anew_has_ended() -> None:
    journal = SlowJournal()
    registry = make(journal)
    await registry.add_service("ci", Scope())
    journal.may_go_on.clear()
    making = asyncio.create_task(registry.add_service("ci", Scope()))
    await asyncio.sleep(0)
    ending = asyncio.create_task(registry.remove_service("ci"))
    await asyncio.sleep(0)
    journal.may_go_on.set()
    await asyncio.gather(making, ending)
    after_a_restart = make(journal)
    await after_a_restart.load()
    for known in (registry, after_a_restart):
        assert known.services == []


class Full(MemoryJournal):
    """A disk that refuses everything while it is full."""

    is_full = False

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.is_full:
            raise Unavailable("the disk is full")
        return await super().commit(*operations, durable=durable)


async def test_what_a_full_disk_refused_to_revoke_can_be_revoked_again_and_stays_so() -> None:
    journal = Full(clock=FakeClock(), bus=LocalBus())
    registry = Registry(journal, FakeClock())
    device_token = await registry.pair("laptop", Scope(), public_key="")
    service_token = await registry.add_service("backup", Scope())
    journal.is_full = True
    with pytest.raises(Unavailable):
        await registry.revoke("laptop")
    with pytest.raises(Unavailable):
        await registry.remove_service("backup")
    journal.is_full = False
    with pytest.raises(InvalidToken):
        known_to(registry).bearer(service_token)
    assert registry.service("backup").name == "backup"  # whoever ends it looks for it first
    await registry.revoke("laptop")
    await registry.remove_service("backup")
    with pytest.raises(NotFound):
        await registry.revoke("laptop")
    with pytest.raises(NotFound):
        await registry.remove_service("backup")
    again = Registry(journal, FakeClock())
    await again.load()
    with pytest.raises(InvalidToken):
        known_to(again).device(Credentials("laptop", device_token))
    with pytest.raises(InvalidToken):
        known_to(again).bearer(service_token)


async def test_a_new_token_that_waited_its_turn_does_not_bring_back_who_was_revoked_meanwhile() -> (
    None
):
    journal = SlowJournal()
    registry = make(journal)
    await registry.pair("d", Scope(), public_key="")
    journal.may_go_on.clear()
    binding = asyncio.create_task(registry.bind_key("d", "k"))
    await asyncio.sleep(0)
    pairing = asyncio.create_task(registry.pair("d", Scope(), public_key=""))
    await asyncio.sleep(0)
    revoking = asyncio.create_task(registry.revoke("d"))
    await asyncio.sleep(0)
    journal.may_go_on.set()
    _, refused, _ = await asyncio.gather(binding, pairing, revoking, return_exceptions=True)
    assert isinstance(refused, NotFound)
    after_a_restart = make(journal)
    await after_a_restart.load()
    for known in (registry, after_a_restart):
        assert known.devices == []


async def test_a_key_that_waited_its_turn_is_not_bound_once_its_token_is_another() -> None:
    journal = SlowJournal()
    registry = make(journal)
    await registry.pair("d", Scope(), public_key="")
    journal.may_go_on.clear()
    pairing = asyncio.create_task(registry.pair("d", Scope(), public_key=""))
    await asyncio.sleep(0)
    binding = asyncio.create_task(registry.bind_key("d", "k"))
    await asyncio.sleep(0)
    journal.may_go_on.set()
    _, refused = await asyncio.gather(pairing, binding, return_exceptions=True)
    assert isinstance(refused, InvalidToken)
    after_a_restart = make(journal)
    await after_a_restart.load()
    for known in (registry, after_a_restart):
        assert [one.public_key for one in known.devices] == [""]


async def test_of_two_keys_that_come_at_once_the_first_stays() -> None:
    journal = SlowJournal()
    registry = make(journal)
    await registry.pair("d", Scope(), public_key="")
    journal.may_go_on.clear()
    both = [asyncio.create_task(registry.bind_key("d", key)) for key in ("first", "second")]
    await asyncio.sleep(0)
    journal.may_go_on.set()
    await asyncio.gather(*both)
    assert [one.public_key for one in registry.devices] == ["first"]


@pytest.mark.parametrize("name", ["d", "service:ci"])
async def test_the_scope_agent_is_refused_already_while_it_is_taken_away(name: str) -> None:
    journal = SlowJournal()
    registry = make(journal)

    async def give(scope: Scope) -> str:
        if name == "d":
            return await registry.pair("d", scope, public_key="")
        return await registry.add_service("ci", scope)

    await give(Scope(agent=True))
    journal.may_go_on.clear()
    taking = asyncio.create_task(give(Scope()))
    await asyncio.sleep(0)
    known = registry.identity(name)
    assert known is not None
    assert not known.scope.agent
    journal.may_go_on.set()
    await taking


async def two_nodes() -> tuple[MemoryJournal, Registry, Registry]:
    """Two registries on one journal, both loaded with device d and service ci."""
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    here, there = make(journal), make(journal)
    await here.pair("d", Scope(agent=True), public_key="")
    await here.add_service("ci", Scope(agent=True))
    await there.load()
    return journal, here, there


def check_of(registry: Registry, name: str) -> Check:
    check = registry.check_of(name)
    assert check is not None
    return check


async def test_the_check_of_a_caller_is_that_its_row_is_the_one_in_memory() -> None:
    journal, here, there = await two_nodes()
    assert here.check_of("operator") is None
    assert here.check_of("d") == there.check_of("d") == Check("devices", "d", 1)
    assert here.check_of("service:ci") == there.check_of("service:ci") == Check("services", "ci", 1)
    await journal.commit(check_of(here, "d"), check_of(here, "service:ci"))
    await here.bind_key("d", "key")
    assert here.check_of("d") == Check("devices", "d", 2)
    for unknown in ("nobody", "service:nobody", "ci", "service:d"):
        with pytest.raises(NotFound):
            here.check_of(unknown)


@pytest.mark.parametrize("name", ["d", "service:ci"])
async def test_a_node_that_missed_a_revocation_cannot_commit_for_the_revoked(name: str) -> None:
    journal, here, there = await two_nodes()
    if name == "d":
        await here.revoke("d")
    else:
        await here.remove_service("ci")
    with pytest.raises(NotFound):
        here.check_of(name)
    with pytest.raises(Conflict):
        await journal.commit(check_of(there, name), Append("a", [NewEvent("called", b"")]))
    assert await journal.read("a") == []


@pytest.mark.parametrize("name", ["d", "service:ci"])
async def test_the_check_of_a_revoked_token_does_not_hold_for_a_new_one(name: str) -> None:
    journal, here, there = await two_nodes()
    if name == "d":
        await here.revoke("d")
        await here.pair("d", Scope(), public_key="")
    else:
        await here.remove_service("ci")
        await here.add_service("ci", Scope())
    with pytest.raises(Conflict):
        await journal.commit(check_of(there, name))
    await journal.commit(check_of(here, name))
    after_a_restart = make(journal)
    await after_a_restart.load()
    assert after_a_restart.check_of(name) == here.check_of(name)


async def test_a_service_that_was_removed_stays_removed_after_a_restart() -> None:
    journal, here, _ = await two_nodes()
    await here.remove_service("ci")
    after_a_restart = make(journal)
    await after_a_restart.load()
    assert after_a_restart.services == []
    token = await after_a_restart.add_service("ci", Scope())
    assert known_to(after_a_restart).bearer(token).name == "service:ci"


async def test_a_device_that_was_paired_again_elsewhere_is_revoked_all_the_same() -> None:
    journal, here, there = await two_nodes()
    token = await here.pair("d", Scope(agent=True), public_key="")
    await there.revoke("d")
    after_a_restart = make(journal)
    await after_a_restart.load()
    for registry in (there, after_a_restart):
        with pytest.raises(InvalidToken):
            known_to(registry).device(Credentials("d", token))


async def test_a_device_that_was_revoked_elsewhere_is_not_given_another_token() -> None:
    _, here, there = await two_nodes()
    await here.revoke("d")
    with there.watch("d") as cut, pytest.raises(NotFound):
        await there.pair("d", Scope(), public_key="")
    assert there.identity("d") is None
    with pytest.raises(InvalidToken):
        await there.bind_key("d", "key")
    assert not cut.is_set()


async def test_a_key_is_not_bound_for_a_token_that_was_replaced_elsewhere() -> None:
    journal, here, there = await two_nodes()
    token = await here.pair("d", Scope(), public_key="")
    with there.watch("d") as cut, pytest.raises(InvalidToken):
        await there.bind_key("d", "key")
    assert cut.is_set()
    assert known_to(there).device(Credentials("d", token)).name == "d"
    assert there.check_of("d") == here.check_of("d")
    row = await journal.get("devices", "d")
    assert row is not None
    assert b'"key"' not in row.value


async def test_a_service_that_was_changed_elsewhere_is_read_again() -> None:
    journal, here, there = await two_nodes()
    old = await here.add_service("ci", Scope(agent=True))
    token = await there.add_service("ci", Scope())
    assert known_to(there).bearer(token).name == "service:ci"
    with pytest.raises(InvalidToken):
        known_to(there).bearer(old)
    await here.remove_service("ci")
    after_a_restart = make(journal)
    await after_a_restart.load()
    assert after_a_restart.services == here.services == []


async def test_a_revocation_that_was_not_carried_out_is_written_again() -> None:
    journal, here, _ = await two_nodes()
    await here.revoke("d")
    await here.pair("d", Scope(), public_key="")
    await here.revoke("d")
    (row,) = [row for row in await journal.scan("revocations") if row.key == "d"]
    assert row.version == 2
