"""What the operator changes and its row of the audit: both are there or neither, also on a disk
that gives up."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.policies import open_policy
from tests.support.seal import PlainSeal
from toolgate.access.devices import OPERATOR
from toolgate.access.registry import Registry
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.enums import Level, TargetKind
from toolgate.core.errors import Unavailable
from toolgate.evidence.audit import AuditLog, AuditQuery
from toolgate.journal.journal import Event, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.secrets.redaction import Redactor
from toolgate.surfaces.gateway.capabilities import CapabilityRoutes
from toolgate.surfaces.gateway.pairing import TokenRoutes
from toolgate.surfaces.gateway.policy import PolicyRoutes
from toolgate.surfaces.gateway.routes import Call, Route
from toolgate.surfaces.gateway.targets import TargetRoutes
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.simulation import Simulation
from toolgate.tools.targets.registry import Targets

RoutesOf = Callable[[MemoryJournal, AuditLog], Sequence[Route]]


class GivesUp(MemoryJournal):
    """A disk that takes so many commits more, and then none."""

    left = 1

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if not self.left:
            raise Unavailable("the disk is full")
        self.left -= 1
        return await super().commit(*operations, durable=durable)


class Office:
    """Some routes, on a disk that takes one commit for each of their calls."""

    def __init__(self, routes_of: RoutesOf) -> None:
        self.journal = GivesUp(clock=FakeClock(), bus=LocalBus())
        self.audit = AuditLog(self.journal, redactor=Redactor(lambda _text: []))
        self.serve(routes_of(self.journal, self.audit))

    def serve(self, routes: Sequence[Route]) -> None:
        self.handle = {route.method: route.handle for route in routes}

    async def call(self, method: str, **members: Any) -> None:
        self.journal.left = 1
        await self.handle[method](Call(OPERATOR, "trace", **members))

    async def actions(self) -> list[str]:
        rows = (await self.audit.query(AuditQuery())).items
        return [row.action for row in reversed(rows)]


def of_tokens(journal: MemoryJournal, trail: AuditLog) -> Sequence[Route]:
    return TokenRoutes(Registry(journal, FakeClock()), FakeClock(), trail).routes()


def of_capabilities(journal: MemoryJournal, trail: AuditLog) -> Sequence[Route]:
    capabilities = Capabilities(journal, FakeClock(), PlainSeal(), trail)
    return CapabilityRoutes(capabilities, FakeClock()).routes()


def of_targets(journal: MemoryJournal, trail: AuditLog) -> Sequence[Route]:
    targets = Targets(journal, clock=FakeClock(), seal=PlainSeal())
    return TargetRoutes(targets, trail, lambda _secret, _name: None).routes()


async def test_a_token_is_made_and_ended_in_one_commit_with_its_row() -> None:
    office = Office(of_tokens)
    scope = wire.Scope(tools=Level.WRITE, mcp=True)
    await office.call("POST", body=wire.ServiceTokenMake(name="ci", scope=scope))
    assert await office.actions() == ["token.made"]
    (row,) = (await office.audit.query(AuditQuery())).items
    granted = {"tools": "write", "system": False, "mcp": True, "agent": False, "approve": False}
    assert row.metadata["scope"] == granted
    await office.call("DELETE", path={"name": "ci"})
    assert await office.actions() == ["token.made", "token.ended"]


async def test_the_row_of_a_capability_says_where_its_server_is_and_no_secret_of_it() -> None:
    office = Office(of_capabilities)
    server = wire.McpServer(
        url="http://127.0.0.1:1/mcp", headers={"Authorization": "Bearer s3cret"}
    )
    wanted = wire.CapabilityRegister("mcp.docs", "docs", Level.WRITE, server=server)
    await office.call("POST", body=wanted)
    (row,) = (await office.audit.query(AuditQuery())).items
    assert row.metadata == {"level": "write", "status": "healthy", "server": server.url}


async def test_a_target_is_changed_and_deleted_in_one_commit_with_its_row() -> None:
    office = Office(of_targets)
    wanted = wire.TargetUpsert(
        tenant_id="t_default",
        kind=TargetKind.DOCKER_RUNNER,
        endpoint="http://127.0.0.1:18081",
    )
    await office.call("PUT", path={"targetId": "box"}, body=wanted)
    assert await office.actions() == ["target.upserted"]
    await office.call("DELETE", path={"targetId": "box"})
    assert await office.actions() == ["target.upserted", "target.deleted"]


POLICY = "version: 1\nrules:\n  - {id: a, allow: kv.get, match: any, reason: It only reads}\n"


async def test_a_policy_is_not_changed_where_it_cannot_be_written_who_did(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    office = Office(lambda _journal, _trail: ())
    policy = await open_policy(path, journal=office.journal)
    office.serve(PolicyRoutes(policy, cast(Simulation, None), office.audit).routes())
    wanted = wire.PolicyPut(text=POLICY.replace("kv.get", "kv.list"))
    office.journal.left = 0
    with pytest.raises(Unavailable):
        await office.handle["PUT"](Call(OPERATOR, "trace", body=wanted))
    assert (path.read_text(), policy.text) == (POLICY, POLICY)
    assert [each.name for each in tmp_path.iterdir()] == ["policy.yaml"]
    await office.call("PUT", body=wanted)
    assert path.read_text() == policy.text == wanted.text
    assert await office.actions() == ["policy.active", "policy.active", "policy.changed"]
