"""What an operator changes of a capability, and what stays as whoever registered it has said."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from starlette.requests import Request

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from toolgate.access.registry import Registry
from toolgate.core.enums import HealthStatus, Level
from toolgate.journal.local_bus import LocalBus
from toolgate.surfaces.console.admissions import AdmissionPages
from toolgate.surfaces.console.parts import Parts
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.capabilities import Capability
from toolgate.tools.capability_registry import Capabilities


def asking(name: str, **body: object) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": msgspec.json.encode(body)}

    scope = {"type": "http", "headers": [], "method": "PUT", "path_params": {"id": name}}
    return Request(scope, receive)


async def test_another_rate_does_not_take_away_when_a_capability_expires() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    capabilities = Capabilities(journal, clock, PlainSeal(), SilentAudit())
    await capabilities.register(
        Capability("mcp.docs", "docs", Level.READ, updated_at=1, version="2.1", expires_at=5),
        by="phone",
    )
    admission = SimpleNamespace(capabilities=capabilities)
    pages = AdmissionPages(cast(Parts, SimpleNamespace(clock=clock, admission=admission)))
    shown = await pages.register(asking("mcp.docs", level="read", scope="docs", rate=7))
    assert (shown["rate"], shown["expires_at"], shown["version"]) == (7, 5, "2.1")


async def test_another_rate_leaves_a_capability_as_healthy_as_it_was_registered() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    capabilities = Capabilities(journal, clock, PlainSeal(), SilentAudit())
    for name, status in (("mcp.off", HealthStatus.OFFLINE), ("mcp.docs", HealthStatus.HEALTHY)):
        docs = Capability(name, "docs", Level.READ, updated_at=1, status=status)
        await capabilities.register(docs, by="phone")
    capabilities.report("mcp.docs", HealthStatus.DEGRADED)
    admission = SimpleNamespace(capabilities=capabilities)
    pages = AdmissionPages(cast(Parts, SimpleNamespace(clock=clock, admission=admission)))
    for name in ("mcp.off", "mcp.docs"):
        await pages.register(asking(name, level="read", scope="docs", rate=7))
    registered = {one.capability_id: one.status for one in capabilities._known.values()}
    assert registered == {"mcp.off": HealthStatus.OFFLINE, "mcp.docs": HealthStatus.HEALTHY}


async def test_the_isolation_of_a_server_and_what_it_may_reach_are_shown() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    capabilities = Capabilities(journal, clock, PlainSeal(), SilentAudit())
    admission = SimpleNamespace(capabilities=capabilities)
    pages = AdmissionPages(cast(Parts, SimpleNamespace(clock=clock, admission=admission)))
    boxed = {"command": "notes", "mounts": ["/srv/notes:/notes:rw"], "egress": ["example.com"]}
    shown = await pages.register(asking("mcp.notes", **boxed))
    assert (shown["isolation"], shown["mounts"]) == ("sandbox", boxed["mounts"])
    assert shown["egress"] == boxed["egress"]
    shown = await pages.register(asking("mcp.open", command="notes", isolation="none"))
    assert shown["isolation"] == "none"


async def test_the_row_of_a_token_says_what_it_may_do() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    rows: list[Any] = []

    def row(action: str, resource: tuple[str, str], metadata: Any = None) -> tuple[()]:
        rows.append((action, resource, metadata))
        return ()

    admission = SimpleNamespace(registry=Registry(journal, clock))
    pages = AdmissionPages(cast(Parts, SimpleNamespace(clock=clock, admission=admission, row=row)))
    await pages.make_token(asking("ci", tools="write", mcp=True))
    granted = {"tools": "write", "system": False, "mcp": True, "agent": False, "approve": False}
    assert rows == [("token.made", ("token", "ci"), {"scope": granted})]
