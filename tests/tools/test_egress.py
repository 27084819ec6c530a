"""From a policy's grant to a connection out of a real sandbox, and nothing beside it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import ISOLATING, sandbox_of
from tests.support.pipelines import Rig, open_rig
from tests.support.runner import FakeRunner, whole
from toolgate.bootstrap.tools import policed_egress
from toolgate.core.errors import Unavailable
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import AuditQuery
from toolgate.policy.file import load_policy
from toolgate.policy.model import Policy
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.sandbox.sandbox import Command, Interpreter, Sandbox, Session, SessionKey
from toolgate.sandbox.sessions import Sessions
from toolgate.tools.egress import MOST_KEPT, MOST_REFUSED, EgressRecords, PolicyEgress
from toolgate.web.guard import Guard

GRANTED, OTHER = SessionKey("t", "build", "s"), SessionKey("t", "other", "s")
POLICY = """\
version: 1
egress:
  - id: packages
    hosts: [granted.test, metadata.test, inside.test, "*.sub.test"]
    ports: [PORT]
    for: {workspace: build}
    reason: Packages are installed while building
"""


@dataclass
class Names:
    """A resolver of the test's own; it remembers what it was asked."""

    asked: list[str] = field(default_factory=list)

    async def __call__(self, name: str, _port: int) -> Sequence[str]:
        self.asked.append(name)
        return {"metadata.test": ["169.254.169.254"], "inside.test": ["10.0.0.1"]}.get(
            name, ["127.0.0.1"]
        )


class Outside:
    """A host on loopback that is reached by the name `granted.test`, and a policy that grants it."""

    def __init__(self, sandbox: Sandbox, server: FakeRunner, rig: Rig) -> None:
        self.port = int(server.url.rpartition(":")[2].partition("/")[0])
        self.server = server
        self.sandbox = sandbox
        self.names = Names()
        self.rig = rig
        self.policy = self.load(POLICY.replace("PORT", str(self.port)))
        opened = frozenset(
            {f"{name}.test:{self.port}" for name in ("granted", "other", "a.sub", "revoked")}
        )
        self.sessions = Sessions(
            sandbox,
            clock=SystemClock(),
            egress=policed_egress(
                Guard(resolve=self.names, allow_private=opened),
                lambda _: self.policy,
                evidence=rig.evidence,
                audit=rig.audit,
            ),
        )

    def load(self, text: str) -> Policy:
        return load_policy(text, parse_shell=TreeSitterShellParser())

    async def python(self, code: str, key: SessionKey = GRANTED) -> str:
        session: Session = await self.sessions.open(key)
        done = await session.exec(Command(code, Interpreter.PYTHON, timeout_seconds=10))
        return (done.stdout + done.stderr).decode()

    async def fetch(self, url: str, key: SessionKey = GRANTED) -> str:
        return await self.python(
            "import urllib.request\n"
            f"try: print(urllib.request.urlopen({url!r}, timeout=5).read().decode())\n"
            "except (OSError, ValueError) as no: print('refused:', no)\n",
            key,
        )

    async def rows(self) -> list[Any]:
        page = await self.rig.audit.query(AuditQuery(action="sandbox.egress"))
        return [(row.resource_id, row.metadata["decision"]) for row in reversed(page.items)]


@asynccontextmanager
async def outside_of(sandbox: Sandbox, home: Path) -> AsyncIterator[Outside]:
    async with (
        FakeRunner(whole(b"from outside", connection="close")) as server,
        open_rig(home) as rig,
    ):
        outside = Outside(sandbox, server, rig)
        yield outside
        await outside.sessions.close()


@pytest.fixture(params=ISOLATING)
async def outside(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Outside]:
    async with (
        sandbox_of(request.param, request) as sandbox,
        outside_of(sandbox, tmp_path) as opened,
    ):
        yield opened


@pytest.fixture
async def bwrapped(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Outside]:
    async with sandbox_of("bwrap", request) as sandbox, outside_of(sandbox, tmp_path) as opened:
        yield opened


async def test_a_granted_host_is_reached_and_no_other_even_by_its_address(
    outside: Outside,
) -> None:
    port = outside.port
    assert await outside.fetch(f"http://granted.test:{port}/") == "from outside\n"
    assert await outside.fetch(f"http://a.sub.test:{port}/") == "from outside\n"
    for url in (
        f"http://other.test:{port}/",
        f"http://127.0.0.1:{port}/",
        f"http://localhost:{port}/",
        f"http://granted.test:{port}@other.test:{port}/",
        "http://169.254.169.254/latest/meta-data/",
    ):
        assert (await outside.fetch(url)).startswith("refused:"), url
    assert len(outside.server.asked) == 2
    assert outside.names.asked == ["granted.test", "a.sub.test"]  # no other name was looked up


async def test_a_granted_name_that_leads_inside_is_refused(bwrapped: Outside) -> None:
    for name in ("metadata.test", "inside.test"):
        said = await bwrapped.fetch(f"http://{name}:{bwrapped.port}/")
        assert "403" in said, said
    rows = await bwrapped.rows()
    assert rows == [
        (f"metadata.test:{bwrapped.port}", "deny"),
        (f"inside.test:{bwrapped.port}", "deny"),
    ]


async def test_beside_the_proxy_everything_stays_cut(outside: Outside) -> None:
    direct = "import socket\ntry: socket.create_connection((%r, %d), 2); print('reached')\nexcept OSError as no: print('cut:', no)\n"
    for address in ("127.0.0.1", "169.254.169.254", "192.0.2.1"):
        assert (await outside.python(direct % (address, outside.port))).startswith("cut:"), address
    raw = "import socket\nfor kind in (socket.SOCK_RAW,):\n  try: socket.socket(socket.AF_INET, kind, 1); print('raw')\n  except OSError: print('cut:')\n"
    assert await outside.python(raw) == "cut:\n"
    names = "import socket\ntry: print('resolved', socket.getaddrinfo('granted.test', 80))\nexcept OSError: print('cut:')\n"
    assert await outside.python(names) == "cut:\n"
    udp = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: s.sendto(b'q', ('192.0.2.53', 53)); print('sent')\nexcept OSError: print('cut:')\n"
    assert await outside.python(udp) == "cut:\n"
    assert outside.names.asked == []


async def test_a_session_without_a_grant_has_no_proxy_at_all(outside: Outside) -> None:
    said = await outside.fetch(f"http://granted.test:{outside.port}/", OTHER)
    assert said.startswith("refused:")
    listening = "import socket\ntry: socket.create_connection(('127.0.0.1', 3128), 2); print('open')\nexcept OSError: print('cut:')\n"
    assert await outside.python(listening, OTHER) == "cut:\n"
    assert outside.names.asked == []
    assert outside.server.asked == []
    assert await outside.rows() == []


async def test_each_host_is_on_record_once_before_a_byte_goes_there(bwrapped: Outside) -> None:
    port = bwrapped.port
    for _ in range(3):
        await bwrapped.fetch(f"http://granted.test:{port}/")
        await bwrapped.fetch(f"http://other.test:{port}/")
    assert await bwrapped.rows() == [
        (f"granted.test:{port}", "allow"),
        (f"other.test:{port}", "deny"),
    ]
    records = await bwrapped.rig.journal.read("evidence")
    assert [event.type for event in records] == ["egress", "egress"]
    assert b'"rule_id":"packages"' in records[0].data
    assert bwrapped.policy.version.encode() in records[0].data


async def test_what_cannot_be_recorded_does_not_go_out(bwrapped: Outside) -> None:
    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(bwrapped.rig.evidence, name)

        async def record(self, *_: Any, **__: Any) -> int:
            raise Unavailable("the disk is full")

    sessions = Sessions(
        bwrapped.sandbox,
        clock=SystemClock(),
        egress=policed_egress(
            Guard(
                resolve=bwrapped.names, allow_private=frozenset({f"granted.test:{bwrapped.port}"})
            ),
            lambda _: bwrapped.policy,
            evidence=Full(),
            audit=bwrapped.rig.audit,
        ),
    )
    bwrapped.sessions = sessions
    assert "503" in await bwrapped.fetch(f"http://granted.test:{bwrapped.port}/")
    assert bwrapped.server.asked == []


async def test_a_policy_that_takes_the_grant_back_counts_from_the_next_connection(
    bwrapped: Outside,
) -> None:
    url = f"http://granted.test:{bwrapped.port}/"
    assert await bwrapped.fetch(url) == "from outside\n"
    bwrapped.policy = bwrapped.load("version: 1\n")
    assert "403" in await bwrapped.fetch(url)


async def test_a_session_that_tries_hosts_without_end_leaves_a_bounded_number_of_rows(
    tmp_path: Path,
) -> None:
    async with open_rig(tmp_path) as rig:
        granted = PolicyEgress(lambda _: None)
        records = EgressRecords(rig.evidence, rig.audit, granted.decide)
        tried = [
            records.note(GRANTED, f"h{n}.test", 443, "not granted")
            for n in range(MOST_REFUSED + 50)
        ]
        await asyncio.gather(*tried)
        await records.note(OTHER, "h1.test", 443, "not granted")  # another has its own bound
        page = await rig.audit.query(AuditQuery(action="sandbox.egress", limit=500))
        assert len(page.items) == MOST_REFUSED + 1


async def test_a_session_that_tries_names_nobody_has_leaves_a_bounded_number_of_rows(
    bwrapped: Outside,
) -> None:
    """A grant for *.sub.test grants every name that can be made up below it."""
    names = MOST_REFUSED + 30

    async def nobody(_name: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    egress = policed_egress(
        Guard(resolve=nobody),
        lambda _: bwrapped.policy,
        evidence=bwrapped.rig.evidence,
        audit=bwrapped.rig.audit,
    )
    door = await egress.open(GRANTED)
    assert door is not None
    try:
        for number in range(names):
            reader, writer = await asyncio.open_unix_connection(door)
            writer.write(b"CONNECT n%d.sub.test:%d HTTP/1.1\r\n\r\n" % (number, bwrapped.port))
            assert b" 502 " in await reader.readline()
            writer.close()
    finally:
        await egress.close(GRANTED)
    page = await bwrapped.rig.audit.query(AuditQuery(action="sandbox.egress", limit=500))
    assert len(page.items) == MOST_REFUSED


async def test_a_session_that_reaches_hosts_without_end_is_on_record_and_not_all_in_memory() -> (
    None
):
    written: list[str] = []

    class Written:
        async def record(self, _kind: str, body: dict[str, Any], **_: Any) -> int:
            written.append(body["host"])
            return len(written)

    class NoRows:
        def prepare(self, _: Any) -> list[Any]:
            return []

    granted = PolicyEgress(lambda _: None)
    evidence: Any = Written()
    audit: Any = NoRows()
    records = EgressRecords(evidence, audit, granted.decide)
    for number in range(MOST_KEPT + 50):
        for _ in range(2):
            await records.note(GRANTED, f"h{number}.test", 443, "")
    assert written == [f"h{number}.test" for number in range(MOST_KEPT + 50)]
    assert len(records._noted[GRANTED].hosts) == MOST_KEPT
    records.forget(GRANTED)
    assert GRANTED not in records._noted
