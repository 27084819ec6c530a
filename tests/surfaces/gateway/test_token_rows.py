"""A service token and its row of the audit: both are there or neither, also on a disk that gives up."""

from typing import Any

import pytest

from toolgate.adapters.bus_local import LocalBus
from toolgate.admission.registry import Registry
from toolgate.contracts import gateway_v1 as wire
from toolgate.domain.devices import OPERATOR
from toolgate.domain.errors import Unavailable
from toolgate.domain.redaction import Redactor
from toolgate.execution.audit import AuditLog, AuditQuery
from toolgate.ports.journal import Event, Operation
from toolgate.surfaces.gateway.pairing import TokenRoutes
from toolgate.surfaces.gateway.routes import Call
from toolgate.surfaces.gateway.trail import AuditTrail
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


class GivesUp(MemoryJournal):
    """A disk that takes so many commits more, and then none."""

    left = 1

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if not self.left:
            raise Unavailable("the disk is full")
        self.left -= 1
        return await super().commit(*operations, durable=durable)


class Tokens:
    def __init__(self, journal: GivesUp) -> None:
        self.journal = journal
        self.audit = AuditLog(journal, redactor=Redactor(lambda _text: []))
        registry = Registry(journal, FakeClock(), operator_token="op")
        routes = TokenRoutes(registry, AuditTrail(self.audit)).routes()
        self.handle = {route.method: route.handle for route in routes}

    async def call(self, method: str, **members: Any) -> None:
        await self.handle[method](Call(OPERATOR, "trace", **members))

    async def actions(self) -> list[str]:
        rows = (await self.audit.query(AuditQuery())).items
        return [row.action for row in reversed(rows)]


@pytest.fixture
def tokens() -> Tokens:
    return Tokens(GivesUp(clock=FakeClock(), bus=LocalBus()))


async def test_a_token_that_was_made_is_in_the_audit_with_the_same_commit(tokens: Tokens) -> None:
    await tokens.call("POST", body=wire.ServiceTokenMake(name="ci"))
    assert await tokens.actions() == ["token.made"]


async def test_a_token_that_was_ended_is_in_the_audit_with_the_same_commit(tokens: Tokens) -> None:
    await tokens.call("POST", body=wire.ServiceTokenMake(name="ci"))
    tokens.journal.left = 1
    await tokens.call("DELETE", path={"name": "ci"})
    assert await tokens.actions() == ["token.made", "token.ended"]
