"""From inside a sandbox to a host on its list, and to no other."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.runner import FakeRunner, whole
from toolgate.core.errors import Misconfigured
from toolgate.core.system_clock import SystemClock
from toolgate.sandbox.egress import SandboxEgress, same_for_all
from toolgate.sandbox.egress_hosts import allows
from toolgate.sandbox.sandbox import Command, Interpreter, Sandbox, SessionKey
from toolgate.sandbox.sessions import Sessions
from toolgate.web.egress_proxy import EgressDecision
from toolgate.web.guard import Guard

ALLOWED, REFUSED = SessionKey("t", "w", "granted"), SessionKey("t", "w", "not granted")


def fetch(url: str) -> Command:
    code = (
        "import urllib.request, urllib.error\n"
        f"try: print(urllib.request.urlopen({url!r}, timeout=5).read().decode())\n"
        "except (OSError, ValueError) as no: print('refused:', no)\n"
    )
    return Command(code, Interpreter.PYTHON)


async def test_a_session_reaches_what_its_list_has_and_nothing_else(isolating: Sandbox) -> None:
    async def resolve(_name: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    decided: list[EgressDecision] = []
    async with FakeRunner(whole(b"from outside", connection="close")) as outside:
        port = outside.url.rpartition(":")[2].partition("/")[0]
        opened = frozenset({f"allowed.test:{port}", f"other.test:{port}"})
        egress = SandboxEgress(
            Guard(resolve=resolve, allow_private=opened),
            grants=lambda key: allows([f"allowed.test:{port}"]) if key == ALLOWED else None,
            note=lambda _, decision: decided.append(decision),
        )
        sessions = Sessions(isolating, clock=SystemClock(), egress=egress)
        session = await sessions.open(ALLOWED)
        done = await session.exec(fetch(f"http://allowed.test:{port}/"))
        assert done.stdout == b"from outside\n", done.stderr
        for url in (f"http://other.test:{port}/", "http://127.0.0.1/", "http://169.254.169.254/"):
            assert (await session.exec(fetch(url))).stdout.startswith(b"refused:")
        without = await sessions.open(REFUSED)
        said = (await without.exec(fetch(f"http://allowed.test:{port}/"))).stdout
        assert said.startswith(b"refused:")
        assert len(outside.asked) == 1
        assert [each.host for each in decided if each.allowed] == ["allowed.test"]
        await sessions.close()
    assert list(Path("/tmp").glob(f"toolgate-egress-{os.getpid()}-*")) == []


async def test_the_sockets_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    abandoned = Path("/tmp/toolgate-egress-4999999-x")
    abandoned.mkdir(exist_ok=True)
    egress = SandboxEgress(Guard(), grants=lambda _: allows(["example.org"]))
    door = await egress.open(ALLOWED)
    assert door is not None
    assert door.exists()
    assert not abandoned.exists()
    await egress.close(ALLOWED)
    assert not door.parent.exists()


async def test_a_way_out_opens_also_where_the_machine_has_cleaned_up_its_temporary_files() -> None:
    egress = SandboxEgress(Guard(), grants=lambda _: allows(["example.org"]))
    first = await egress.open(REFUSED)
    assert first is not None
    shutil.rmtree(first.parent)
    second = await egress.open(ALLOWED)
    assert second is not None
    assert second.is_socket()
    for key in (REFUSED, ALLOWED):
        await egress.close(key)
    assert not second.parent.exists()


async def test_a_way_out_opens_also_in_a_temporary_folder_with_a_long_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The path of a socket has room for 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="a-temporary-folder-of-its-own-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    egress = SandboxEgress(Guard(), grants=lambda _: allows(["example.org"]))
    try:
        assert await egress.open(ALLOWED) is not None
    finally:
        await egress.close(ALLOWED)
        folder.rmdir()


async def test_a_way_out_that_opens_while_the_last_other_one_closes_stays() -> None:
    egress = SandboxEgress(Guard(), grants=lambda _: allows(["example.org"]))
    await egress.open(REFUSED)
    opening = asyncio.create_task(egress.open(ALLOWED))
    await asyncio.sleep(0)  # its socket is there, and the proxy not yet known to listen
    await egress.close(REFUSED)
    door = await opening
    assert door is not None
    assert door.exists()
    await egress.close(ALLOWED)
    assert not door.parent.exists()


@pytest.mark.parametrize(
    ("hosts", "host", "port", "expected"),
    [
        (["example.org"], "example.org", 443, True),
        (["example.org"], "EXAMPLE.org.", 80, True),
        (["example.org"], "example.org", 8080, False),
        (["example.org:8080"], "example.org", 8080, True),
        (["example.org:8080"], "example.org", 443, False),
        (["example.org"], "notexample.org", 443, False),
        (["example.org"], "www.example.org", 443, False),
        (["*.example.org"], "www.example.org", 443, True),
        (["*.example.org"], "example.org", 443, False),
        (["*.example.org"], "evilexample.org", 443, False),
        (["Example.org."], "example.org", 443, True),
        (["192.0.2.1:8080"], "192.0.2.1", 8080, True),
        ([], "example.org", 443, False),
    ],
)
def test_what_a_list_allows(hosts: list[str], host: str, port: int, expected: bool) -> None:
    assert allows(hosts)(host, port) is expected


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", "https://example.org", "example.org/path", "exa mple.org", "a.org:0", "a.org:99999",
     "example.*", "bücher.example"],
)  # fmt: skip
def test_an_entry_that_would_never_match_is_refused_at_once(entry: str) -> None:
    """And not found out later, by those who are kept from where they may go."""
    with pytest.raises(Misconfigured, match="egress"):
        same_for_all(["example.org", entry])
