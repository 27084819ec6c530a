"""Programs of MCP servers in the sandbox: what they cannot reach, and what they need and have."""

import asyncio
import json
import os
import sys
import venv
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.upstreams import mcp_upstreams, programs_in
from toolgate.core.enums import HealthStatus, Isolation
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tools.capabilities import Mount, Server
from toolgate.tools.upstream.programs import Programs
from toolgate.tools.upstream.servers import McpUpstreams
from toolgate.web.guard import Guard

SERVERS = Path(__file__).parent / "servers"
PRYING = Server(command=sys.executable, args=(str(SERVERS / "prying.py"),))
ROOT = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "tmp"} | {
    "usr",
    "workspace",
}
CANARY = "canary-that-only-the-gateway-may-read"


@dataclass
class House:
    """A gateway's home with its secrets, and the servers that are registered there."""

    home: Path
    programs: Programs
    servers: dict[str, Server] = field(default_factory=dict)
    health: dict[str, tuple[HealthStatus, str]] = field(default_factory=dict)
    sessions: McpUpstreams = field(init=False)

    def __post_init__(self) -> None:
        def report(name: str, found: HealthStatus, why: str) -> None:
            self.health[name] = (found, why)

        self.sessions = mcp_upstreams(self.servers.get, report=report, programs=self.programs)

    async def call(self, action: str, /, *, to: str = "mcp.test", **args: JsonValue) -> ToolOutput:
        async with asyncio.timeout(60):
            return await self.sessions.run(ToolRequest("r", f"{to}.{action}", args))

    async def refused(self, action: str, /, *, to: str = "mcp.test", **args: JsonValue) -> str:
        """The server's own error: it ran, and could not."""
        output = await self.call(action, to=to, **args)
        assert isinstance(output.data, dict), output.stderr
        assert output.data["isError"] is True
        return output.stderr

    async def told(self, action: str, /, *, to: str = "mcp.test", **args: JsonValue) -> Any:
        output = await self.call(action, to=to, **args)
        assert output.ok, output.stderr
        return json.loads(output.stdout)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("operator.token", "evidence.key", "journal.db"):
        (home / name).write_text(CANARY)
    house = House(home, programs_in(home / "servers", protected=[home]))
    house.servers["mcp.test"] = PRYING
    yield house
    await house.sessions.close()
    await house.programs.sandbox.close()


def on_the_way_from(folder: str) -> set[str]:
    """The entries of a folder that lead to the server's program and its interpreter."""
    shown = (SERVERS, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable))
    both = {path for one in shown for path in (one, one.resolve())}
    return {one.relative_to(folder).parts[0] for one in both if one.is_relative_to(folder)}


@pytest.mark.requirement("002/mcp/sandboxed")
async def test_a_server_cannot_read_the_gateways_files(house: House) -> None:
    for path in (house.home / "operator.token", house.home / "evidence.key", Path("/etc/shadow")):
        assert "FileNotFoundError" in await house.refused("read", path=str(path))
    assert set(await house.told("list_all", path="/")) <= ROOT | on_the_way_from("/")
    assert set(await house.told("list_all", path="/tmp")) <= on_the_way_from("/tmp")
    assert (await house.told("list_all", path="/workspace")) == []


async def test_a_server_sees_no_process_of_the_machine(house: House) -> None:
    os.environ["CANARY"] = CANARY
    try:
        seen = await house.told("processes")
    finally:
        del os.environ["CANARY"]
    assert len(seen) <= 3
    assert CANARY not in str(seen)
    assert str(house.home) not in str(seen)
    assert await house.refused("read", path=f"/proc/{os.getpid()}/environ")


async def test_a_server_has_only_its_own_environment_and_pipes(house: House) -> None:
    house.servers["mcp.test"] = replace(PRYING, env=(("API_TOKEN", "its-own"),))
    os.environ["CANARY"] = CANARY
    secret = os.open(house.home / "operator.token", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        found = await house.told("environment")
        descriptors = await house.told("descriptors")
    finally:
        del os.environ["CANARY"]
        os.close(secret)
    assert found["API_TOKEN"] == "its-own"
    assert CANARY not in str(found)
    own = {target for number, target in descriptors.items() if int(number) > 2}
    assert own <= {"/proc/self/fd", f"/proc/{descriptors.get('pid')}/fd"}
    assert {number for number in descriptors if int(number) < 3} == {"0", "1", "2"}
    for commandline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert "its-own" not in commandline.read_text()
        except OSError:
            continue


async def test_a_server_is_not_the_gateways_user_and_has_no_rights(house: House) -> None:
    uid, status = await house.told("user")
    assert uid not in (0, os.getuid())
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert f"CapEff:\t{0:016x}" in status


async def test_a_server_cannot_reach_the_network(house: House) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        for host in ("127.0.0.1", "169.254.169.254"):
            assert await house.refused("connect", host=host, port=port)
    finally:
        listener.close()


async def test_a_server_cannot_see_the_workspace_of_another(house: House) -> None:
    house.servers["mcp.other"] = PRYING
    assert (await house.call("write", path="/workspace/mine", text=CANARY)).ok
    kept = house.programs.workspace_of("mcp.test")
    assert (kept / "mine").read_text() == CANARY
    assert await house.told("list_all", path="/workspace", to="mcp.other") == []
    assert await house.refused("read", path=str(kept / "mine"), to="mcp.other")
    if os.geteuid() == 0:
        other = house.programs.workspace_of("mcp.other")
        assert len({path.stat().st_uid for path in (kept, other)} | {0}) == 3


async def test_nothing_that_a_server_has_started_outlives_it(house: House, tmp_path: Path) -> None:
    assert (await house.call("stay", path="/workspace/beats")).ok
    beats = house.programs.workspace_of("mcp.test") / "beats"
    async with asyncio.timeout(10):
        while not beats.exists() or beats.stat().st_size < 10:
            await asyncio.sleep(0.01)
    await house.sessions.forget("mcp.test")
    size = beats.stat().st_size
    await asyncio.sleep(0.2)
    assert beats.stat().st_size == size


async def test_a_server_that_takes_too_much_memory_is_killed_alone(house: House) -> None:
    output = await house.call("eat", megabytes=600)
    assert not output.ok
    assert (await house.call("read", path="/proc/self/cmdline")).ok  # started again


async def test_a_server_has_a_limit_of_processes(house: House) -> None:
    children = await house.told("multiply")
    assert 10 < children < 64


async def test_a_workspace_stays_between_starts(house: House) -> None:
    house.servers["mcp.test"] = replace(PRYING, args=(*PRYING.args, "one"))
    await house.sessions.tools("mcp.test")
    house.servers["mcp.test"] = replace(PRYING, args=(*PRYING.args, "two"))
    await house.sessions.tools("mcp.test")
    marks = house.programs.workspace_of("mcp.test") / "marks"
    assert marks.read_text().split() == ["one", "two"]


def shared(tmp_path: Path) -> Path:
    """A directory of an ordinary user, as one that servers are given."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "note").write_text("to be read")
    if os.geteuid() == 0:
        for path in (folder, folder / "note"):
            os.chown(path, 12345, 12345)
            path.chmod(0o700)
    return folder


async def test_mounts_are_there_with_the_rights_of_their_owner(
    house: House, tmp_path: Path
) -> None:
    folder = shared(tmp_path)
    mounts = (Mount(str(folder), "/data"), Mount(str(folder), "/srv/rw", writable=True))
    house.servers["mcp.test"] = replace(PRYING, mounts=mounts)
    assert (await house.call("read", path="/data/note")).stdout == "to be read"
    assert await house.refused("write", path="/data/new", text="x")
    assert (await house.call("write", path="/srv/rw/new", text="x")).ok
    assert (folder / "new").read_text() == "x"
    assert (folder / "new").stat().st_uid == folder.stat().st_uid


@pytest.mark.requirement("002/mcp/sandbox-missing")
@pytest.mark.parametrize(
    "which", ["home", "above", "inside", "link", "missing", "program", "bwrap", "root's"]
)
async def test_what_cannot_be_isolated_is_offline_at_once_with_what_to_do(
    house: House, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(house.home)
    hosts = {
        "home": house.home,
        "above": tmp_path,
        "inside": house.home / "operator.token",
        "link": link,
        "missing": tmp_path / "missing",
    }
    said = {
        "home": "Toolgate's own files",
        "above": "Toolgate's own files",
        "inside": "Toolgate's own files",
        "link": str(house.home),
        "missing": "No such file",
        "program": "not found in PATH",
        "bwrap": "apt-get install bubblewrap",
        "root's": "chown",
    }
    if which == "bwrap":
        monkeypatch.setenv("PATH", "/nonexistent")
    elif which == "root's":
        if os.geteuid() != 0:
            pytest.skip("only root's own files are not for a server to write")
        (tmp_path / "roots").mkdir()
        mount = Mount(str(tmp_path / "roots"), "/data", writable=True)
        house.servers["mcp.test"] = replace(PRYING, mounts=(mount,))
    elif which == "program":
        house.servers["mcp.test"] = Server(command="no-such-program")
    else:
        mount = Mount(str(hosts[which]), "/data")
        house.servers["mcp.test"] = replace(PRYING, mounts=(mount,))
    with pytest.raises(Unavailable):
        await house.sessions.tools("mcp.test")
    found, why = house.health["mcp.test"]
    assert found is HealthStatus.OFFLINE
    assert said[which] in why


async def test_a_server_that_does_not_start_says_why(house: House) -> None:
    house.servers["mcp.test"] = Server(command=sys.executable, args=("/nowhere/server.py",))
    with pytest.raises(Unavailable, match="No such file"):
        await house.sessions.tools("mcp.test")


async def test_egress_reaches_the_registered_hosts_alone(tmp_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    async def resolve(_name: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    guard = Guard(resolve=resolve, allow_private=frozenset({f"served.example:{port}"}))
    house = House(tmp_path / "home", programs_in(tmp_path / "servers", guard=guard))
    house.servers["mcp.test"] = replace(PRYING, egress=(f"served.example:{port}",))
    house.servers["mcp.other"] = replace(PRYING, egress=("example.com",))
    try:
        url = f"http://served.example:{port}/"
        assert (await house.call("fetch", url=url)).stdout == "hello"
        assert "403" in await house.refused("fetch", url=url, to="mcp.other")
    finally:
        await house.sessions.close()
        await house.programs.sandbox.close()
        listener.close()


async def test_without_isolation_a_server_runs_as_the_gateways_user(house: House) -> None:
    house.servers["mcp.test"] = replace(PRYING, isolation=Isolation.NONE)
    uid, _ = await house.told("user")
    assert uid == os.getuid()


async def test_a_script_of_a_virtual_environment_finds_its_interpreter(
    house: House, tmp_path: Path
) -> None:
    venv.create(tmp_path / "tool", symlinks=True)
    script = tmp_path / "tool" / "bin" / "prying"
    program = (SERVERS / "prying.py").read_text()
    script.write_text(f"#!{tmp_path / 'tool' / 'bin' / 'python'}\n{program}")
    script.chmod(0o755)
    named = tmp_path / "local" / "bin"
    named.mkdir(parents=True)
    (named / "prying").symlink_to(script)
    (tmp_path / "local" / "private").write_text(CANARY)
    house.servers["mcp.test"] = Server(command=str(named / "prying"))
    uid, _ = await house.told("user")
    assert uid != 0
    assert await house.refused("read", path=str(tmp_path / "local" / "private"))
