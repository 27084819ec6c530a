"""Files to and from artifacts, in a sandbox of this machine; once also in a container and over HTTP.

`tests/sandbox/test_every_backend.py` proves that the sandboxes behave alike.
"""

import base64
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import sandbox_of
from tests.support.sandbox import FakeSandbox
from toolgate.core.enums import Outcome, TargetKind
from toolgate.core.errors import Invalid, NotFound
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.http import asgi
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.local_bus import LocalBus
from toolgate.sandbox.sessions import Sessions
from toolgate.surfaces.runner.app import Options, RunnerApp, usage_of
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.engines.remote_runner import DockerRunners
from toolgate.tools.engines.sandbox import SandboxEngine
from toolgate.tools.engines.transfers import Transfers
from toolgate.tools.files import LARGEST_FILE, OVERLAP, WINDOW, FileArtifacts
from toolgate.tools.routing import UnknownTool
from toolgate.tools.targets.targets import Target
from toolgate.tools.targets.tools import GET, PIECE_BYTES, PUT

OWNER = Caller("t_1", "w_1", session="s_1")
SECRET = "known-secret-of-the-operator"


def call(tool: str, caller: Caller = OWNER, **args: Any) -> ToolRequest:
    return ToolRequest("req_1", tool, args, caller)


@contextlib.asynccontextmanager
async def behind_http(engine: Engine | None) -> AsyncIterator[Engine]:
    options = Options("bwrap", "bwrap", "token-of-the-runner")
    app = RunnerApp(
        engine, options=options, clock=SystemClock(), usage=lambda: usage_of(0.0, 0.0, 0.0)
    )
    bound = asgi.bind("127.0.0.1", 0, setting="RUNNER_PORT")
    listener = asgi.Listener(app, bound)
    await listener.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/execute"
    runners = DockerRunners(clock=SystemClock())
    target = Target("target_1", "t_1", "w_1", TargetKind.DOCKER_RUNNER, url, "token-of-the-runner")
    await runners.health(target)
    yield runners.engine(target)
    await runners.close()
    await listener.stop()


class Place:
    """A target, the artifacts of a gateway, and the transfers between them."""

    def __init__(self, target: Engine, home: Path) -> None:
        clock = FakeClock()
        self.target = target
        self.files = FileArtifacts(
            DiskBlobs(home / "blobs"),
            MemoryJournal(clock=clock, bus=LocalBus()),
            clock=clock,
            holds_secret=lambda text: SECRET in text,
        )
        self.engine = Transfers(target, self.files)

    async def run(self, tool: str, caller: Caller = OWNER, **args: Any) -> ToolOutput:
        return await self.engine.run(call(tool, caller, **args))


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    where = getattr(request, "param", "bwrap")
    async with sandbox_of("bwrap" if where == "runner" else where, request) as sandbox:
        sessions = Sessions(sandbox, clock=SystemClock())
        local = SandboxEngine(sessions)
        async with contextlib.AsyncExitStack() as stack:
            target: Engine = local
            if where == "runner":
                target = await stack.enter_async_context(behind_http(local))
            yield Place(target, tmp_path)
        await sessions.close()


def told(output: ToolOutput) -> dict[str, Any]:
    assert output.ok, output.stderr
    assert isinstance(output.data, dict)
    return output.data


@pytest.mark.parametrize("place", ["bwrap", "docker", "runner"], indirect=True)
async def test_bytes_go_out_and_in_again_as_they_are(place: Place) -> None:
    large = os.urandom(2 * PIECE_BYTES + 17)
    for name, content in (
        ("empty", b""),
        ("bytes", bytes(range(256))),
        ("piece", b"x" * PIECE_BYTES),
        ("large", large),
    ):
        kept = await place.files.keep(content, owner=OWNER)
        written = told(await place.run("file.write", path=f"in/{name}", artifact=kept.ref))
        assert written["size"] == len(content)
        seen = await place.run("bash.exec", cmd=f"sha256sum < in/{name}; cp in/{name} out-{name}")
        assert seen.stdout.split()[0] == hashlib.sha256(content).hexdigest()
        read = told(await place.run("file.read", path=f"out-{name}", artifact=True))
        assert (read["artifact"], read["sha256"]) == (kept.ref, kept.sha256)
        assert await place.files.fetch(read["artifact"]) == content
    missing = await place.run("file.read", path="missing", artifact=True)
    assert (missing.ok, missing.outcome) == (False, Outcome.EXECUTED)


async def test_a_file_that_a_command_left_can_be_had_and_given_to_another_session(
    place: Place,
) -> None:
    await place.run("bash.exec", cmd="printf 'a\\0b' > report.bin")
    kept = told(await place.run("file.read", path="report.bin", artifact=True))
    other = Caller("t_1", "w_1", session="s_2")
    told(await place.run("file.write", other, path="got.bin", artifact=kept["artifact"]))
    seen = await place.run("bash.exec", other, cmd="od -An -c got.bin; ls")
    assert seen.stdout.split() == ["a", "\\0", "b", "got.bin"]


async def test_another_tenant_or_workspace_cannot_have_it_by_its_ref(place: Place) -> None:
    kept = await place.files.keep(b"of t_1 and w_1", owner=OWNER)
    for other in (Caller("t_2", "w_1"), Caller("t_1", "w_2"), Caller("t_1w_", "1")):
        refused = await place.run("file.write", other, path="x", artifact=kept.ref)
        assert not refused.ok
        assert refused.outcome is Outcome.NOT_STARTED
        assert (await place.run("bash.exec", other, cmd="ls")).stdout == ""


PREPARE = "ln -s /etc/passwd link; ln -s / root; mkdir d; mkfifo fifo; ln -s ../../etc up"


async def test_no_path_leads_out_of_the_workspace(place: Place) -> None:
    await place.run("bash.exec", cmd=PREPARE)
    kept = await place.files.keep(b"attack", owner=OWNER)
    for path in ("link", "root/etc/passwd", "../etc/passwd", "/etc/passwd", "up/x"):
        read = await place.run("file.read", path=path, artifact=True)
        assert not read.ok, path
        assert "root:" not in read.stdout + read.stderr, path
        assert not (await place.run("file.write", path=path, artifact=kept.ref)).ok, path


async def test_what_is_no_file_is_refused_and_the_session_goes_on(place: Place) -> None:
    await place.run("bash.exec", cmd=PREPARE)
    for path in ("d", "fifo", "missing", "", "a\0b"):
        assert not (await place.run("file.read", path=path, artifact=True)).ok, path
        assert (await place.run("bash.exec", cmd="echo on")).stdout == "on\n", path


async def test_a_file_larger_than_what_is_kept_is_refused(place: Place) -> None:
    await place.run("bash.exec", cmd=f"head -c {LARGEST_FILE + 1} /dev/zero > huge")
    refused = await place.run("file.read", path="huge", artifact=True)
    assert (refused.ok, refused.outcome) == (False, Outcome.EXECUTED)
    assert str(LARGEST_FILE) in refused.stderr


class Between:
    """Does something on the target once the first piece has gone through."""

    def __init__(self, engine: Engine, then: Callable[[], Awaitable[object]]) -> None:
        self._engine = engine
        self._then = then
        self.pieces = 0

    @property
    def ref(self) -> str:
        return self._engine.ref

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        output = await self._engine.run(request, update=update)
        self.pieces += 1
        if self.pieces == 1:
            await self._then()
        return output


async def test_a_file_that_becomes_a_link_between_two_pieces_is_refused(place: Place) -> None:
    await place.run("bash.exec", cmd=f"head -c {2 * PIECE_BYTES} /dev/zero > f")

    async def swap() -> None:
        await place.target.run(call("bash.exec", cmd="rm f; ln -s /etc/passwd f"))

    between = Between(place.target, swap)
    refused = await Transfers(between, place.files).run(call("file.read", path="f", artifact=True))
    assert not refused.ok
    assert between.pieces == 2


@pytest.mark.parametrize(
    "change",
    [
        f"head -c {2 * PIECE_BYTES} /dev/zero > f",
        f"head -c {2 * PIECE_BYTES} /dev/zero > g; touch -r f g; mv g f",
        "echo more >> f",
    ],
)
async def test_a_file_that_another_command_changes_between_two_pieces_is_not_kept(
    place: Place, change: str
) -> None:
    await place.run("bash.exec", cmd=f"head -c {2 * PIECE_BYTES} /dev/zero | tr '\\0' x > f")

    async def meddle() -> None:
        assert (await place.target.run(call("bash.exec", cmd=change))).ok

    between = Between(place.target, meddle)
    refused = await Transfers(between, place.files).run(call("file.read", path="f", artifact=True))
    assert (refused.ok, refused.outcome) == (False, Outcome.EXECUTED)
    assert "changed" in refused.stderr


async def test_what_is_written_meanwhile_is_noticed(place: Place) -> None:
    kept = await place.files.keep(os.urandom(2 * PIECE_BYTES), owner=OWNER)

    async def meddle() -> None:
        await place.target.run(call("bash.exec", cmd="echo x >> f"))

    between = Between(place.target, meddle)
    request = call("file.write", path="f", artifact=kept.ref)
    refused = await Transfers(between, place.files).run(request)
    assert (refused.ok, refused.outcome) == (False, Outcome.EXECUTED)


@pytest.mark.requirement("003/tools/file-read")
async def test_file_read_gives_as_many_bytes_as_are_asked_for(place: Place) -> None:
    await place.run("bash.exec", cmd="head -c 300000 /dev/zero | tr '\\0' x > f")
    first = await place.run("file.read", path="f", max_bytes=10)
    assert (first.stdout, first.truncated) == ("x" * 10, True)
    most = await place.run("file.read", path="f")
    assert (len(most.stdout), most.truncated) == (256 * 1024, True)
    assert not (await place.run("file.read", path="f", max_bytes=0)).ok


@pytest.fixture
def faked(tmp_path: Path) -> Place:
    return Place(SandboxEngine(Sessions(FakeSandbox(), clock=FakeClock())), tmp_path)


async def test_a_file_with_a_secret_is_not_kept(faked: Place) -> None:
    texts = (SECRET.encode(), b"\xff\xfe" + SECRET.encode() + b"\x00\x80")
    for content in texts:
        encoded = base64.b64encode(content).decode()
        assert (await faked.target.run(call(PUT, path="f", content=encoded))).ok
        refused = await faked.run("file.read", path="f", artifact=True)
        assert not refused.ok
        assert SECRET not in refused.stderr
        with pytest.raises(NotFound):
            await faked.files.fetch(f"files/{hashlib.sha256(content).hexdigest()}")


@pytest.mark.parametrize("at", [0, WINDOW - 5, 3 * WINDOW + OVERLAP - 1])
async def test_a_secret_is_found_wherever_it_lies(tmp_path: Path, at: int) -> None:
    place = Place(UnknownTool(), tmp_path)
    with pytest.raises(Invalid):
        await place.files.keep(b"x" * at + SECRET.encode() + b"x" * WINDOW, owner=OWNER)


async def test_a_secret_of_other_letters_is_found_in_a_file_that_is_no_text(tmp_path: Path) -> None:
    secret = "geheim-für-日本-🙂"
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    files = FileArtifacts(
        DiskBlobs(tmp_path), journal, clock=clock, holds_secret=lambda text: secret in text
    )
    for around in (b"\x80\n", b"\xe2\x82", b"\x00\xff"):
        with pytest.raises(Invalid):
            await files.keep(around + secret.encode() + around, owner=OWNER)


async def test_a_file_that_takes_too_long_to_check_is_not_kept(tmp_path: Path) -> None:
    clock = FakeClock()

    def slow(_: str) -> bool:
        clock.advance(3_000)
        return False

    journal = MemoryJournal(clock=clock, bus=LocalBus())
    files = FileArtifacts(DiskBlobs(tmp_path), journal, clock=clock, holds_secret=slow)
    await files.keep(b"x" * 3 * WINDOW, owner=OWNER)
    with pytest.raises(Invalid):
        await files.keep(b"x" * 6 * WINDOW, owner=OWNER)


@pytest.mark.parametrize(
    "args",
    [
        {"path": "f", "artifact": "files/" + "0" * 64},
        {"path": "f", "artifact": "files/../../etc/passwd"},
        {"path": "f", "artifact": "requests/r1/request.json"},
        {"path": "f", "artifact": 5},
        {"path": "f", "artifact": True},
        {"path": 5, "artifact": "files/" + "0" * 64},
        {"artifact": "files/" + "0" * 64},
        {"path": "f", "artifact": "files/" + "0" * 64, "content": "both"},
        {"path": "f", "artifact": "files/" + "0" * 64, "append": True},
    ],
)
async def test_what_is_no_ref_of_theirs_writes_nothing(faked: Place, args: dict[str, Any]) -> None:
    refused = await faked.run("file.write", **args)
    assert (refused.ok, refused.outcome) == (False, Outcome.NOT_STARTED)
    assert not (await faked.run("file.read", path="f")).ok


@pytest.mark.parametrize("tool", [GET, PUT])
async def test_the_tools_between_gateway_and_runner_cannot_be_called_from_outside(
    faked: Place, tool: str
) -> None:
    refused = await faked.run(tool, path="f", content="eA==")
    assert (refused.ok, refused.stderr) == (False, f"Unknown tool: {tool}")


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", '{"content": 5}', '{"content": "!"}', "[" * 9999, '{"size": true}']
)
async def test_a_runner_that_answers_nonsense_is_a_failure(tmp_path: Path, answer: str) -> None:
    class Nonsense:
        ref = "nonsense"

        async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
            return ToolOutput(0, stdout=answer)

    place = Place(Nonsense(), tmp_path)
    kept = await place.files.keep(b"x", owner=OWNER)
    assert not (await place.run("file.read", path="f", artifact=True)).ok
    assert not (await place.run("file.write", path="f", artifact=kept.ref)).ok


async def test_a_file_of_which_a_piece_is_written_is_not_told_as_not_started(
    tmp_path: Path,
) -> None:
    class GoneAfterOne:
        ref = "gone"
        pieces = 0

        async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
            self.pieces += 1
            if self.pieces > 1:
                return ToolOutput(1, stderr="no answer", outcome=Outcome.NOT_STARTED)
            return ToolOutput(0, stdout=f'{{"size": {PIECE_BYTES}}}')

    place = Place(GoneAfterOne(), tmp_path)
    kept = await place.files.keep(os.urandom(2 * PIECE_BYTES), owner=OWNER)
    cut = await place.run("file.write", path="f", artifact=kept.ref)
    assert (cut.ok, cut.outcome) == (False, Outcome.EXECUTED)
    assert "no answer" in cut.stderr


async def test_a_runner_that_does_not_know_files_says_so(tmp_path: Path) -> None:
    async with behind_http(None) as mock:
        place = Place(mock, tmp_path)
        refused = await place.run("file.read", path="f", artifact=True)
        assert "does not know how to carry files" in refused.stderr


async def test_a_ref_is_checked_before_anything_is_looked_up(faked: Place) -> None:
    for ref in ("files/", "files/" + "G" * 64, "files/" + "0" * 63, "files/" + "0" * 64 + "\n"):
        with pytest.raises(Invalid):
            await faked.files.fetch(ref)
