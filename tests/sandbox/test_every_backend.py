"""What a session does, whichever backend it is on."""

import asyncio
import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import aiodocker
import pytest
from aiodocker.containers import DockerContainer, DockerContainers

from tests.support import docker_engine
from tests.support.engines import need, sandbox_of
from toolgate.core.errors import Misconfigured, Unavailable
from toolgate.sandbox.agent import STATIC_BASH
from toolgate.sandbox.bwrap import BwrapSandbox, find_programs
from toolgate.sandbox.choice import make_sandbox
from toolgate.sandbox.docker import DockerSandbox, host_image_name
from toolgate.sandbox.sandbox import (
    MIB,
    Command,
    FileRefused,
    Finished,
    Interpreter,
    Lost,
    NotStarted,
    Sandbox,
    Session,
    SessionKey,
    SessionSpec,
    Stream,
)
from toolgate.sandbox.session import AgentSession

BOUND = 15.0
PR_SET_CHILD_SUBREAPER = 36


async def test_output_and_exit_code_are_kept_apart(session: Session) -> None:
    done = await session.exec(Command("echo out; echo err >&2; exit 3"))
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3)


async def test_a_command_is_never_taken_for_an_option_of_the_shell(session: Session) -> None:
    for text in ("--version", "-x", "+x"):
        done = await session.exec(Command(text))
        assert (done.exit_code, done.stdout) == (127, b""), text
        assert text.encode() in done.stderr


async def test_the_shell_is_bash_however_it_was_linked(session: Session) -> None:
    done = await session.exec(
        Command('word=grün; echo "$0 $BASH ${#word} ${word^^}"; echo ~root; readlink /proc/$$/exe')
    )
    said, home, program = done.stdout.decode().splitlines()
    assert said == "/bin/bash /bin/bash 4 GRÜN"
    assert home.startswith("/")  # a name was looked up
    static = Path(STATIC_BASH).exists()
    assert Path(program).name == ("bash-static" if static else "bash")


async def test_directory_and_exported_variables_last_from_command_to_command(
    session: Session,
) -> None:
    await session.exec(Command("mkdir -p deep && cd deep && export COLOUR='dark blue'"))
    done = await session.exec(Command('basename "$PWD"; echo "$COLOUR"'))
    assert done.stdout == b"deep\ndark blue\n"


ENDS = (
    ("trap 'echo $?; exit 7' EXIT; cd deep; export COLOUR=blue; exit 3", "3\n", 7),
    (
        "set -eu; trap 'echo \"bye $?\"' EXIT INT; cd deep; export COLOUR=blue; false",
        "bye 1\n",
        1,
    ),
    ("trap 'echo no' EXIT; cd deep; trap - EXIT; export COLOUR=blue", "", 0),
    (
        "cd deep; export COLOUR=blue; (trap 'echo sub' EXIT; cd ..; export COLOUR=red)",
        "sub\n",
        0,
    ),
    ("cd deep; export COLOUR=blue; exec printf %s done", "done", 0),
    ("shopt -s extdebug; cd deep; export COLOUR=blue; exec printf %s done", "done", 0),
    ("exec 3>&1; cd deep; echo out >&3; export COLOUR=blue; exec 3>&-", "out\n", 0),
)


async def test_they_last_however_the_command_ends(session: Session) -> None:
    await session.exec(Command("mkdir -p deep; export POSIXLY_CORRECT=1"))
    shown = Command('basename "$PWD"; echo "$COLOUR"')
    for command, said, code in ENDS:
        done = await session.exec(Command(command))
        assert (done.stdout.decode(), done.stderr, done.exit_code) == (said, b"", code), command
        assert (await session.exec(shown)).stdout == b"deep\nblue\n", command
        await session.exec(Command("cd ..; unset COLOUR"))
        assert b"blue" not in (await session.exec(shown)).stdout


async def test_the_directory_lasts_also_where_more_is_exported_than_is_kept(
    session: Session,
) -> None:
    much = f"cd deep; export KEPT=new; for n in {{1..9}}; do export BIG$n={'0' * 10_000}; done"
    await session.exec(Command("mkdir -p deep; export KEPT=old"))
    await session.exec(Command(much))
    done = await session.exec(Command('basename "$PWD"; echo "$KEPT$BIG9"'))
    assert done.stdout == b"deep\nold\n"


async def test_a_variable_without_a_name_is_not_kept(session: Session) -> None:
    """No program could be started with it, so that the session could run nothing any more."""
    told = r"printf '/tmp\0=x\0COLOUR=blue\0' > /proc/self/fd/198"
    await session.exec(Command(f"cd .; {told}; kill -9 $$"))
    done = await session.exec(Command('echo "$PWD $COLOUR"'))
    assert done.stdout == b"/tmp blue\n"


async def test_a_workspace_that_was_closed_to_everyone_can_be_opened_again(
    session: Session,
) -> None:
    for mode in ("000", "600"):
        await session.exec(Command(f"echo kept {mode} > note; chmod {mode} ."))
        done = await session.exec(Command("cat note"))
        assert (done.exit_code, done.stdout.decode()) == (0, f"kept {mode}\n")


async def test_a_shell_that_shows_its_steps_shows_none_of_ours(session: Session) -> None:
    await session.exec(Command("mkdir -p deep"))
    done = await session.exec(Command("set -x; trap 'echo bye' EXIT; cd deep"))
    assert done.stderr.decode().splitlines() == [
        "+ trap 'echo bye' EXIT",
        "+ cd deep",
        "+ echo bye",
    ]
    done = await session.exec(Command("set -x; cd ..; exec true"))
    assert done.stderr.decode().splitlines() == ["+ cd ..", "+ exec true"]


async def test_what_is_said_for_one_command_does_not_last(session: Session) -> None:
    await session.exec(Command("mkdir -p once; export KEPT=1"))
    first = await session.exec(
        Command('basename "$PWD"; echo $ONCE; export X=1', cwd="once", env={"ONCE": "here"})
    )
    second = await session.exec(Command('basename "$PWD"; echo "$ONCE$KEPT"'))
    assert first.stdout == b"once\nhere\n"
    assert second.stdout.splitlines()[1] == b"1"
    assert second.stdout.splitlines()[0] != b"once"


async def test_what_is_said_for_one_command_gives_way_to_what_was_there_before(
    session: Session,
) -> None:
    await session.exec(Command("export COLOUR=blue"))
    shown = Command('echo "$COLOUR $HOME $PATH"; X=1')
    before = await session.exec(shown)
    for_one = {"COLOUR": "red", "HOME": "/tmp", "PATH": "/usr/bin:/bin"}
    during = await session.exec(dataclasses.replace(shown, env=for_one))
    assert during.stdout == b"red /tmp /usr/bin:/bin\n"
    assert (await session.exec(shown)).stdout == before.stdout


@pytest.mark.requirement("000/tools/bash-timeout")
async def test_a_command_past_its_deadline_is_killed_and_the_session_goes_on(
    session: Session,
) -> None:
    done = await session.exec(Command("echo before; sleep 30", timeout_seconds=0.3))
    assert done.timed_out
    assert done.exit_code != 0
    assert done.stdout == b"before\n"
    assert (await session.exec(Command("echo again"))).stdout == b"again\n"


async def test_cancelling_the_task_kills_the_command_and_the_session_goes_on(
    session: Session,
) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(
        session.exec(Command("echo begun; sleep 30"), piece=lambda *_: begun.set())
    )
    await asyncio.wait_for(begun.wait(), BOUND)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    done = await asyncio.wait_for(session.exec(Command("pgrep -f 'sleep 3[0]' | wc -l")), BOUND)
    assert session.alive
    assert done.exit_code == 0


async def test_kill_ends_the_command_that_runs(session: Session) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(
        session.exec(Command("echo begun; sleep 30"), piece=lambda *_: begun.set())
    )
    await asyncio.wait_for(begun.wait(), BOUND)
    await session.kill()
    done = await asyncio.wait_for(task, BOUND)
    assert done.killed
    assert (await session.exec(Command("echo again"))).stdout == b"again\n"


async def test_output_comes_while_the_command_runs(session: Session) -> None:
    pieces: list[tuple[Stream, bytes]] = []
    both = asyncio.Event()

    def piece(stream: Stream, data: bytes) -> None:
        pieces.append((stream, data))
        if len(pieces) == 2:
            both.set()

    task = asyncio.create_task(
        session.exec(Command("echo one; sleep 0.05; echo two >&2; sleep 30"), piece=piece)
    )
    await asyncio.wait_for(both.wait(), BOUND)
    await session.kill()
    await task
    assert pieces == [(Stream.STDOUT, b"one\n"), (Stream.STDERR, b"two\n")]


async def test_of_much_output_head_and_tail_are_kept(session: Session) -> None:
    done = await session.exec(Command("echo first; seq 200000; echo last"))
    assert done.stdout.startswith(b"first\n1\n2\n")
    assert done.stdout.endswith(b"\n200000\nlast\n")
    assert b"bytes left out]" in done.stdout
    assert len(done.stdout) < 257 * 1024
    assert done.stdout_total > 1_000_000


async def test_a_flood_is_killed(session: Session) -> None:
    done = await session.exec(Command("yes"))
    assert done.flooded
    assert done.stdout_total < 17 * MIB
    assert (await session.exec(Command("echo again"))).stdout == b"again\n"


async def test_commands_of_one_session_follow_each_other(session: Session) -> None:
    both = await asyncio.gather(
        session.exec(Command("sleep 0.2; echo x > order; echo 1")),
        session.exec(Command("cat order")),
    )
    assert [done.stdout for done in both] == [b"1\n", b"x\n"]


@pytest.mark.requirement("000/tools/python-exec")
async def test_python_runs_where_the_shell_does(session: Session) -> None:
    await session.exec(Command("echo data > file"))
    done = await session.exec(Command("print(open('file').read())", Interpreter.PYTHON))
    assert done.stdout == b"data\n\n"


async def test_a_command_of_200_kilobytes_runs(session: Session) -> None:
    text = "\n".join(["# " + "x" * 1000] * 200) + "\necho end"
    assert (await session.exec(Command(text))).stdout == b"end\n"


async def test_a_long_python_program_finds_the_modules_of_its_workspace(session: Session) -> None:
    await session.files.write("ours.py", "word = 'grün'".encode())
    text = "# " + "x" * 200_000 + "\nimport sys, ours\nprint(ours.word, sys.argv, __name__)"
    done = await session.exec(Command(text, Interpreter.PYTHON))
    assert done.stdout.decode() == "grün ['-c'] __main__\n", done.stderr


async def test_a_directory_that_nobody_may_read_is_listed_and_not_looked_into(
    isolating: Sandbox,
) -> None:
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "shut")))
    await session.exec(Command("mkdir -p a b/c; chmod 000 a; echo 1 > b/c/d"))
    found = await session.files.list("", recursive=True, limit=10)
    assert [each.path for each in found] == ["a", "b", "b/c", "b/c/d"]
    with pytest.raises(FileRefused, match="Permission denied"):
        await session.files.list("a", recursive=True, limit=10)


async def test_output_that_is_no_text_arrives_as_it_is(session: Session) -> None:
    done = await session.exec(Command(r"printf '\0\377\376a'"))
    assert done.stdout == b"\0\xff\xfea"


async def test_what_cannot_start_says_so_and_harms_nothing(session: Session) -> None:
    for command in (
        Command("echo \0"),
        Command("echo", cwd="nowhere"),
        Command("echo", cwd="../.."),
        Command("echo", env={"BIG": "x" * 3_000_000}),
        Command("echo \ud800"),
    ):
        with pytest.raises(NotStarted):
            await session.exec(command)
    assert (await session.exec(Command("echo again"))).stdout == b"again\n"


async def test_files_are_written_appended_read_and_listed(session: Session) -> None:
    assert await session.files.write("a/b/note.txt", b"one") == 3
    assert await session.files.write("a/b/note.txt", b" two", append=True) == 7
    assert await session.files.read("a/b/note.txt", limit=100) == b"one two"
    assert await session.files.read("a/b/note.txt", limit=3) == b"one"
    found = await session.files.list("", recursive=True, limit=10)
    assert [(each.path, each.kind) for each in found] == [
        ("a", "dir"),
        ("a/b", "dir"),
        ("a/b/note.txt", "file"),
    ]
    assert len(await session.files.list("", recursive=True, limit=2)) == 2


async def test_a_large_file_goes_in_and_out(session: Session) -> None:
    content = bytes(range(256)) * 4096 * 8
    await session.files.write("big", content)
    assert await session.files.read("big", limit=len(content) + 1) == content


@pytest.mark.requirement("000/workspace/confined")
@pytest.mark.requirement("000/workspace/confined-symlinks")
async def test_a_path_that_leads_out_or_to_no_file_is_refused(session: Session) -> None:
    await session.exec(
        Command(
            "mkdir -p a dir; ln -s /etc/passwd out; ln -s / up; mkfifo fifo; ln -s gone dangling"
        )
    )
    ways = ["../x", "/etc/passwd", "a/../../x", "out", "up/etc/passwd", "fifo", "dir", "x\0y"]
    for path in ways:
        with pytest.raises(FileRefused):
            await session.files.write(path, b"x")
        with pytest.raises(FileRefused):
            await session.files.list(path if path != "dir" else "up", recursive=False, limit=5)
    for path in (*ways, "gone", "dangling"):
        with pytest.raises(FileRefused):
            await session.files.read(path, limit=100)


async def test_without_links_a_path_is_what_it_is_spelt_or_refused(session: Session) -> None:
    await session.exec(
        Command(
            "mkdir -p a/b; echo in > a/b/f; ln -s b a/way; ln -s f a/b/alias; ln -s . self; "
            "ln -s nowhere dangling; ln -s /etc/passwd out"
        )
    )
    for path in ("a/b/alias", "a/way/f", "self/a/b/f", "a/way/../b/f", "dangling", "out"):
        for attempt in (
            session.unlinked_files.read(path, limit=100),
            session.unlinked_files.version(path),
            session.unlinked_files.write(path, b"changed"),
            session.unlinked_files.write(path + "/new/file", b"changed"),
            session.unlinked_files.list(path, recursive=True, limit=5),
        ):
            with pytest.raises(FileRefused, match="link"):
                await attempt
    assert await session.unlinked_files.read("a/../a/./b//f", limit=100) == b"in\n"
    assert await session.unlinked_files.write("a/c/new", b"new") == 3
    found = await session.unlinked_files.list("", recursive=True, limit=20)
    assert {each.path for each in found if each.kind == "dir"} == {"a", "a/b", "a/c"}
    assert await session.files.read("self/a/way/alias", limit=100) == b"in\n"
    for path in ("../x", "/etc/passwd"):
        with pytest.raises(FileRefused, match="out of the workspace"):
            await session.unlinked_files.read(path, limit=100)


async def test_without_links_a_file_of_two_names_is_refused_by_either(session: Session) -> None:
    """As an archive may leave one: its own name for a file that was there before."""
    await session.exec(Command("mkdir a; echo in > a/f; ln a/f other; echo in > single"))
    for path in ("a/f", "other"):
        for attempt in (
            session.unlinked_files.read(path, limit=100),
            session.unlinked_files.version(path),
            session.unlinked_files.write(path, b"changed"),
        ):
            with pytest.raises(FileRefused, match="name"):
                await attempt
        assert await session.files.read(path, limit=100) == b"in\n"
    await session.exec(Command("rm other"))
    assert await session.unlinked_files.read("a/f", limit=100) == b"in\n"


async def test_a_command_goes_where_a_link_leads_whatever_was_read_before(
    session: Session,
) -> None:
    await session.exec(Command("mkdir d; echo in > d/f; ln -s d way"))
    with pytest.raises(FileRefused):
        await session.unlinked_files.read("way/f", limit=100)
    assert (await session.exec(Command("cat f", cwd="way"))).stdout == b"in\n"


async def test_a_write_that_is_refused_makes_no_directories(session: Session) -> None:
    for path in ("/etc/new/file", "//workspace/new/file", "../new/file"):
        with pytest.raises(FileRefused, match="out of the workspace"):
            await session.files.write(path, b"x")
    assert await session.files.list("", recursive=True, limit=10) == []


async def test_a_listing_names_what_can_be_read_however_its_directory_was_written(
    session: Session,
) -> None:
    await session.files.write("a/b/c", b"x")
    for path in ("a", "a/", "a//"):
        found = await session.files.list(path, recursive=True, limit=10)
        assert [each.path for each in found] == ["a/b", "a/b/c"]
    with pytest.raises(FileRefused):
        await session.files.list("/", recursive=True, limit=10)


async def test_a_link_that_stays_inside_is_followed(session: Session) -> None:
    await session.exec(Command("echo in > real; ln -s real alias"))
    assert await session.files.read("alias", limit=10) == b"in\n"


async def test_a_closed_session_starts_nothing(session: Session) -> None:
    await session.close()
    assert not session.alive
    with pytest.raises(NotStarted):
        await session.exec(Command("echo"))


async def test_the_self_test_passes(isolating: Sandbox) -> None:
    await isolating.check()


async def test_the_self_test_sees_that_a_plain_process_is_no_sandbox(
    request: pytest.FixtureRequest,
) -> None:
    async with sandbox_of("process", request) as nothing:
        session = await nothing.open(SessionSpec(SessionKey("t", "w", "s")))
        assert isinstance(session, AgentSession)
        with pytest.raises(Unavailable, match="no-filter"):
            await session.check()


async def test_a_backend_whose_program_fails_says_why_and_never_opens() -> None:
    need("bwrap")
    programs = dataclasses.replace(find_programs(), bwrap="/bin/false")
    sandbox = BwrapSandbox(programs=programs)
    try:
        with pytest.raises(Unavailable, match="did not open"):
            await sandbox.check()
        with pytest.raises(NotStarted):
            await sandbox.open(SessionSpec(SessionKey("t", "w", "s")))
    finally:
        await sandbox.close()


async def test_where_nothing_can_be_written_a_sandbox_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("bwrap")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox = BwrapSandbox()
    try:
        with monkeypatch.context() as writing:
            writing.setattr(Path, "write_bytes", full)
            with pytest.raises(Unavailable, match="No space left"):
                await sandbox.check()
        assert list(tmp_path.iterdir()) == []
        await sandbox.check()
        assert sandbox._groups is not None
        with monkeypatch.context() as opening:
            opening.setattr(os, "memfd_create", full)
            with pytest.raises(NotStarted, match="No space left"):
                await sandbox.open(SessionSpec(SessionKey("t", "w", "s")))
        for parent in sandbox._groups.parents:
            assert [each for each in parent.iterdir() if each.is_dir()] == []
    finally:
        await sandbox.close()


async def test_a_plain_process_opens_also_where_the_machine_has_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox = make_sandbox("process", unsafe=True)
    try:
        await (await sandbox.open(SessionSpec(SessionKey("t", "w", "1")))).close()
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)
        session = await sandbox.open(SessionSpec(SessionKey("t", "w", "2")))
        assert (await session.exec(Command("echo hi"))).stdout == b"hi\n"
    finally:
        await sandbox.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gone", ["", "seccomp", "hosts"])
async def test_a_sandbox_opens_also_where_the_machine_has_cleaned_up_its_temporary_files(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("bwrap")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox = BwrapSandbox()
    try:
        await (await sandbox.open(SessionSpec(SessionKey("t", "w", "1")))).close()
        (folder,) = tmp_path.iterdir()
        if gone:
            (folder / gone).unlink()
        else:
            shutil.rmtree(folder)
        session = await sandbox.open(SessionSpec(SessionKey("t", "w", "2")))
        assert (await session.exec(Command("cat /etc/hosts"))).stdout.startswith(b"127.0.0.1")
    finally:
        await sandbox.close()
    assert list(tmp_path.iterdir()) == []


async def test_an_opening_that_is_cancelled_leaves_nothing(isolating: Sandbox) -> None:
    for seconds in (0.005, 0.02, 0.05):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (await isolating.open(SessionSpec(SessionKey("t", "w", "s")))).close()
    assert isinstance(isolating, BwrapSandbox | DockerSandbox)
    async with asyncio.timeout(BOUND):  # one that was cancelled as it closed still does
        while isolating.sessions:
            await asyncio.sleep(0.01)


async def test_a_container_that_is_made_while_whoever_wanted_it_goes_is_removed(
    engine: docker_engine.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, heard = asyncio.Event(), asyncio.Event()
    create = DockerContainers.create

    async def late(self: DockerContainers, *args: Any, **named: Any) -> DockerContainer:
        container = await create(self, *args, **named)
        made.set()
        await heard.wait()
        return container

    monkeypatch.setattr(DockerContainers, "create", late)
    sandbox = DockerSandbox(url=engine.url, cgroup_parent=engine.cgroup)
    docker = aiodocker.Docker(url=engine.url)
    try:
        opening = asyncio.create_task(sandbox.open(SessionSpec(SessionKey("t", "w", "s"))))
        await asyncio.wait_for(made.wait(), 60)
        opening.cancel()
        heard.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        label = json.dumps({"label": [f"toolgate.instance={sandbox._instance}"]})
        assert await docker.containers.list(all=True, filters=label) == []
    finally:
        await docker.close()
        await sandbox.close()


@pytest.mark.parametrize("by", ["open", "close"])
async def test_a_container_that_the_engine_did_not_remove_is_removed_later(
    engine: docker_engine.Engine, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """An engine that was being restarted, or too busy; the container would be there for ever."""

    async def refuse(*_: object, **__: object) -> None:
        raise aiodocker.DockerError(500, "not now")

    sandbox = DockerSandbox(url=engine.url, cgroup_parent=engine.cgroup)
    docker = aiodocker.Docker(url=engine.url)
    try:
        session = await sandbox.open(SessionSpec(SessionKey("t", "w", "1")))
        with monkeypatch.context() as busy:
            busy.setattr(DockerContainer, "delete", refuse)
            await session.close()
        if by == "open":
            await sandbox.open(SessionSpec(SessionKey("t", "w", "2")))
        else:
            await sandbox.close()
        label = json.dumps({"label": [f"toolgate.instance={sandbox._instance}"]})
        left = await docker.containers.list(all=True, filters=label)
        assert len(left) == sandbox.sessions
    finally:
        await docker.close()
        await sandbox.close()


async def test_an_image_that_was_removed_meanwhile_is_had_again(
    engine: docker_engine.Engine,
) -> None:
    """As `docker image prune --all` does it with one that no container uses."""
    sandbox = DockerSandbox(url=engine.url, cgroup_parent=engine.cgroup)
    docker = aiodocker.Docker(url=engine.url)
    try:
        await (await sandbox.open(SessionSpec(SessionKey("t", "w", "1")))).close()
        await docker.images.delete(host_image_name(), force=True)
        session = await sandbox.open(SessionSpec(SessionKey("t", "w", "2")))
        assert (await session.exec(Command("echo hi"))).stdout == b"hi\n"
    finally:
        await docker.close()
        await sandbox.close()


async def test_an_image_that_cannot_be_had_opens_nothing(engine: docker_engine.Engine) -> None:
    sandbox = DockerSandbox(url=engine.url, image="127.0.0.1:1/none:latest")
    with pytest.raises(NotStarted):
        await sandbox.open(SessionSpec(SessionKey("t", "w", "s")))
    with pytest.raises(Unavailable):
        await sandbox.check()
    await sandbox.close()


def test_the_unsafe_backend_is_not_had_by_accident() -> None:
    with pytest.raises(Misconfigured):
        make_sandbox("process")
    with pytest.raises(Misconfigured):
        make_sandbox("chroot")
    assert make_sandbox("process", unsafe=True).isolation == "none"
    assert make_sandbox("docker", runtime="runsc").isolation == "docker+runsc"


@pytest.mark.requirement("000/workspace/disk-quota")
async def test_writing_past_the_quota_fails_and_the_session_goes_on(isolating: Sandbox) -> None:
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "full")))
    done = await session.exec(Command("for i in 1 2 3; do head -c 30000000 /dev/zero > f$i; done"))
    assert b"No space left" in done.stderr
    with pytest.raises(FileRefused):
        await session.files.write("more", b"x" * 20 * MIB)
    assert (await session.exec(Command("rm f*; echo again"))).stdout == b"again\n"


async def test_a_write_for_which_there_is_no_room_leaves_the_file_as_it_was(
    isolating: Sandbox,
) -> None:
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "kept")))
    await session.files.write("kept", b"still here")
    await session.exec(Command("head -c 50000000 /dev/zero > much"))
    for append in (True, False):
        with pytest.raises(FileRefused, match="No space"):
            await session.files.write("kept", b"x" * 20 * MIB, append=append)
        assert await session.files.read("kept", limit=100) == b"still here"
    with pytest.raises(FileRefused, match="No space"):
        await session.files.write("new", b"x" * 20 * MIB)
    assert await session.files.write("kept", b"!", append=True) == 11
    assert await session.files.write("kept", b"!") == 1


async def test_shared_memory_ends_with_the_command_that_made_it(isolating: Sandbox) -> None:
    """And semaphores and queues: nobody sees them, and the memory would be gone from the session."""
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "shared")))
    shared = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "ids = [libc.shmget(0, 1 << 20, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)]\n"
        "print(min(ids) >= 0)"
    )
    assert (await session.exec(Command(shared, Interpreter.PYTHON))).stdout == b"True\n"
    done = await session.exec(Command("cat /proc/sysvipc/* | grep -vc key"))
    assert done.stdout == b"0\n"


async def test_files_without_number_end_their_maker_and_can_be_removed(isolating: Sandbox) -> None:
    """Empty ones take no room of the quota, only memory: with none left not even `rm` would run."""
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "crowd")))
    endless = "for n in __import__('itertools').count(): open(f'/dev/shm/{n}', 'x').close()"
    done = await session.exec(Command(endless, Interpreter.PYTHON))
    assert done.crowded
    assert done.exit_code != 0
    done = await session.exec(
        Command("find /dev/shm -type f -delete; find /dev/shm -type f | wc -l")
    )
    assert done.stdout == b"0\n"
    assert not done.crowded


async def test_where_memory_runs_out_the_command_dies_and_the_session_lives(
    isolating: Sandbox,
) -> None:
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "hungry")))
    await session.files.write("kept", b"still here")
    done = await session.exec(Command("b = bytearray(b'x' * (400 << 20))", Interpreter.PYTHON))
    assert done.exit_code == 128 + 9
    assert await session.files.read("kept", limit=100) == b"still here"


async def test_no_signal_from_inside_ends_the_session(isolating: Sandbox) -> None:
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "signals")))
    done = await session.exec(Command("for s in {1..64}; do kill -$s 1; done; sleep 0.1; echo on"))
    assert done.stdout == b"on\n"
    done = await session.exec(Command("sleep 5 & kill -INT $$; echo not reached"))
    assert done.exit_code == 128 + 2  # and whoever it is meant for still hears it


async def test_processes_with_the_same_number_do_not_stand_in_each_other_s_way() -> None:
    """As in two containers that see the machine's cgroups, or in one that was killed and started."""
    need("bwrap")
    first, second = BwrapSandbox(), BwrapSandbox()
    key = SessionKey("t", "w", "s")
    try:
        await first.open(SessionSpec(key))
        session = await second.open(SessionSpec(key))
        await first.close()
        assert (await session.exec(Command("echo hi"))).stdout == b"hi\n"
        await session.close()
        await (await first.open(SessionSpec(key))).close()
        await first.close()  # and with it goes what both were in
        session = await second.open(SessionSpec(key))
        assert (await session.exec(Command("echo hi"))).stdout == b"hi\n"
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize("doing", ["nothing", "a command", "dying"])
async def test_a_closed_session_leaves_no_zombie_to_whoever_takes_in_orphans(doing: str) -> None:
    """In a container that is the first process of all, which is us."""
    need("bwrap")
    libc = ctypes.CDLL(None)
    sandbox = BwrapSandbox()
    left: list[int] = []
    running: asyncio.Task[Finished] | None = None
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        session = await sandbox.open(SessionSpec(SessionKey("t", "w", "s")))
        if doing == "a command":
            begun = asyncio.Event()
            running = asyncio.create_task(
                session.exec(Command("sleep 30 & echo; sleep 30"), piece=lambda *_: begun.set())
            )
            await asyncio.wait_for(begun.wait(), BOUND)
        pids = session.group.pids()
        if doing == "dying":
            os.kill(max(pids), signal.SIGKILL)  # the agent; bubblewrap was there before it
        await session.close()
        if running is not None:
            with pytest.raises(Lost):
                await running
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert left == []
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in left:
            os.waitpid(pid, os.WNOHANG)
        await sandbox.close()


def zombies_of_ours() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                found.append(int(stat.parent.name))
    return found


async def test_nor_does_one_whose_opening_was_cancelled() -> None:
    need("bwrap")
    libc = ctypes.CDLL(None)
    sandbox = BwrapSandbox()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        for milliseconds in range(2, 34, 4):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(milliseconds / 1000):
                    await sandbox.open(SessionSpec(SessionKey("t", "w", "s")))
        await sandbox.close()
        assert zombies_of_ours() == []
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in zombies_of_ours():
            os.waitpid(pid, os.WNOHANG)
        await sandbox.close()


@pytest.mark.parametrize("own", [0, 300, 800])
async def test_where_we_are_offered_to_the_kernel_first_a_command_is_before_its_agent(
    own: int,
) -> None:
    """As a service's OOMScoreAdjust or a container's has it; nobody may go below what it was given."""
    need("bwrap")
    if os.geteuid() != 0:
        pytest.skip("only root may take its own score back")
    ours = Path("/proc/self/oom_score_adj")
    before = ours.read_text()
    sandbox = BwrapSandbox()
    try:
        ours.write_text(str(own))
        session = await sandbox.open(SessionSpec(SessionKey("t", "w", "s")))
        done = await session.exec(Command("cat /proc/self/oom_score_adj"))
        agent = next(
            pid
            for pid in session.group.pids()
            if b"/run/agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            and b"bwrap" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        assert int(Path(f"/proc/{agent}/oom_score_adj").read_text()) == own
        assert int(done.stdout) == min(own + 500, 1000)
    finally:
        ours.write_text(before)
        await sandbox.close()


@pytest.mark.requirement("000/workspace/per-session")
async def test_two_sessions_see_nothing_of_each_other(isolating: Sandbox) -> None:
    one = await isolating.open(SessionSpec(SessionKey("t", "w", "1")))
    two = await isolating.open(SessionSpec(SessionKey("t", "w", "2")))
    await one.files.write("secret", b"of one")
    running = asyncio.create_task(one.exec(Command("sleep 0.5")))
    done = await two.exec(Command("ls; ls /proc | grep -c '^[0-9]'"))
    await running
    # The agent, the shell, and its two children.
    assert int(done.stdout) <= 4


def open_to_others(door: Path) -> None:
    """The sandbox's user is nobody we know: it must be able to walk there and to connect."""
    for folder in door.parents:
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o711)
    door.chmod(0o666)


async def test_a_sandbox_knows_itself_by_name_and_nobody_else(isolating: Sandbox) -> None:
    session = await isolating.open(SessionSpec(SessionKey("t", "w", "names")))
    text = "import socket\nfor name in ('localhost', socket.gethostname()): print(socket.gethostbyname(name))"
    done = await session.exec(Command(text, Interpreter.PYTHON))
    assert done.stdout == b"127.0.0.1\n127.0.0.1\n", done.stderr
    done = await session.exec(Command("grep -v 127.0.0.1 /etc/resolv.conf"))
    assert done.stdout == b""  # not the machine's own servers and domains


async def test_what_a_command_serves_itself_is_not_looked_for_outside(
    isolating: Sandbox, tmp_path: Path
) -> None:
    door = Path(f"{tmp_path}/proxy.sock")
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.0 403 Forbidden\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(refuse, door)
    open_to_others(door)
    text = """
import http.server, threading, urllib.request
own = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=own.serve_forever, daemon=True).start()
for host in ("127.0.0.1", "localhost"):
    print(urllib.request.urlopen(f"http://{host}:{own.server_port}/here").read().decode())
"""
    try:
        session = await isolating.open(SessionSpec(SessionKey("t", "w", "own"), egress=door))
        await session.files.write("here", b"from inside")
        done = await session.exec(Command(text, Interpreter.PYTHON))
        assert done.stdout == b"from inside\n" * 2, done.stderr
        assert asked == []
    finally:
        await isolating.close()
        server.close()
        await server.wait_closed()


async def test_the_way_out_leads_to_the_proxy_and_nowhere_else(
    isolating: Sandbox, tmp_path: Path
) -> None:
    door = Path(f"{tmp_path}/proxy.sock")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(line), line))
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, door)
    open_to_others(door)
    try:
        key = SessionKey("t", "w", "out")
        session = await isolating.open(SessionSpec(key, egress=door))
        fetch = "import urllib.request as u; print(u.urlopen('http://example.org/x').read())"
        done = await session.exec(Command(fetch, Interpreter.PYTHON))
        assert b"GET http://example.org/x HTTP/1.1" in done.stdout, done.stderr
        direct = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
        assert b"unreachable" in (await session.exec(Command(direct, Interpreter.PYTHON))).stderr
    finally:
        server.close()
        await server.wait_closed()
