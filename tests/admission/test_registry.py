"""The registry: tokens as hashes, compared in constant time."""

import ast
import inspect

import pytest

from toolgate.adapters.bus_local import LocalBus
from toolgate.admission import registry as module
from toolgate.admission.refusals import AuthRequired, InvalidToken
from toolgate.admission.registry import Credentials, Registry
from toolgate.domain.devices import OPERATOR, Scope, Who
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def make(journal: MemoryJournal | None = None) -> Registry:
    clock = FakeClock()
    journal = journal or MemoryJournal(clock=clock, bus=LocalBus())
    return Registry(journal, clock, operator_token="op")


@pytest.mark.requirement("002/pairing/token-constant-time")
def test_no_token_or_hash_is_compared_by_equality() -> None:
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            compared = ast.unparse(node)
            assert not ("hash" in compared and ("==" in compared or "!=" in compared)), compared
    assert "hmac.compare_digest" in inspect.getsource(module.same)


async def test_who_a_token_belongs_to() -> None:
    registry = make()
    token = await registry.pair("d", Scope(), public_key="")
    assert registry.device_of(Credentials("d", token)).who is Who.DEVICE
    assert registry.bearer_of("op") is OPERATOR
    service = await registry.add_service("ci", Scope())
    assert registry.bearer_of(service).name == "service:ci"
    again = await registry.add_service("ci", Scope())
    for wrong in ("", "nope", service, token, "\ud800"):
        with pytest.raises(InvalidToken):
            registry.bearer_of(wrong)
    assert registry.bearer_of(again).who is Who.SERVICE
    with pytest.raises(AuthRequired):
        registry.device_of(Credentials("stranger", token))
    with pytest.raises(InvalidToken):
        registry.device_of(Credentials("d", "op"))


async def test_what_was_paired_is_there_after_a_restart_and_hashed() -> None:
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    first = make(journal)
    token = await first.pair("d", Scope(), public_key="k")
    service = await first.add_service("ci", Scope())
    second = make(journal)
    await second.load()
    assert second.device_of(Credentials("d", token)).name == "d"
    assert second.bearer_of(service).name == "service:ci"
    for collection, key in (("devices", "d"), ("services", "ci")):
        row = await journal.get(collection, key)
        assert row is not None
        assert token.encode() not in row.value
        assert service.encode() not in row.value
