"""Processes of `toolgate`, forked from one that has imported it: imports take a second."""

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, BinaryIO

from toolgate.cli.main import COMMANDS
from toolgate.cli.start import run

PIPES_SECONDS = 1.0  # for the end of its output after its own; a child of its may hold a pipe open

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        *(f"toolgate.cli.{module}" for module, _ in COMMANDS.values()),
        "uvicorn.lifespan.off",  # uvicorn imports these two by name when it starts
        "uvicorn.protocols.websockets.websockets_sansio_impl",
        "mcp.client.stdio",  # and these come with the first MCP server or client
        "mcp.client.streamable_http",
        "mcp.server.sse",
        "mcp.server.streamable_http_manager",
        "toolgate.surfaces.mcp.server",
        __name__,
    ]
)


@dataclass(eq=False)
class Forked:
    """A command's process, with the methods of asyncio.subprocess.Process."""

    process: ForkServerProcess
    stdin: BinaryIO | None = None
    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None
    pipes: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        loop = asyncio.get_running_loop()
        if self.process.exitcode is None:
            ended = asyncio.Event()
            loop.add_reader(self.process.sentinel, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self.process.sentinel)
        if self.pipes:
            await asyncio.wait(self.pipes, timeout=PIPES_SECONDS)
        if self.stdin is not None:
            self.stdin.close()
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode

    async def communicate(self, said: bytes = b"") -> tuple[bytes, bytes]:
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.write(said)
            self.stdin.close()
        out, err = await asyncio.gather(_rest(self.stdout), _rest(self.stderr))
        await self.wait()
        return out, err


async def fork(
    *arguments: str | bytes,
    env: dict[str, str],
    cwd: Path | None = None,
    stdin: int | BinaryIO = DEVNULL,
    stdout: int | BinaryIO = DEVNULL,
    stderr: int | BinaryIO = DEVNULL,
) -> Forked:
    """Start a command, as asyncio.create_subprocess_exec(PROGRAM, ...) would."""
    with ExitStack() as closing:
        theirs: list[int] = []
        ours: list[int | None] = []
        for number, given in enumerate((stdin, stdout, stderr)):
            their_end, our_end = _stream(given, is_input=number == 0, closing=closing)
            theirs.append(their_end)
            ours.append(our_end)
        process = await asyncio.to_thread(start, arguments, env, cwd, theirs)
    forked = Forked(process)
    if ours[0] is not None:
        forked.stdin = os.fdopen(ours[0], "wb", buffering=0)
    forked.stdout = await _reader(ours[1], forked.pipes)
    forked.stderr = await _reader(ours[2], forked.pipes)
    return forked


def toolgate(
    *arguments: str | bytes,
    env: dict[str, str],
    cwd: Path | None = None,
    said: bytes = b"",
    timeout: float = 90,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as subprocess.run([PROGRAM, ...]) would."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(said)
        given.seek(0)
        process = start(arguments, env, cwd, (given, out, err))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(["toolgate", *arguments], timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            ["toolgate", *arguments], process.exitcode, out.read().decode(), err.read().decode()
        )


def start(
    arguments: tuple[str | bytes, ...],
    env: dict[str, str],
    cwd: Path | None,
    streams: Sequence[int | BinaryIO],
) -> ForkServerProcess:
    """Start a command on its three streams."""
    words = [os.fsdecode(one) for one in arguments]
    numbers = [one if isinstance(one, int) else one.fileno() for one in streams]
    given = (words, env, cwd or Path.cwd(), [_Descriptor(one) for one in numbers])
    process = _forks.Process(target=_program, args=given, daemon=True)
    process.start()
    return process


@dataclass
class _Descriptor:
    """A file descriptor; pickled for another process, it is passed to that process."""

    number: int

    def __reduce__(self) -> tuple[Callable[..., "_Descriptor"], tuple[object]]:
        return _received, (DupFd(self.number),)


def _received(handed: Any) -> _Descriptor:
    return _Descriptor(handed.detach())


def _program(
    words: list[str], given: dict[str, str], cwd: Path, streams: list[_Descriptor]
) -> None:
    """Set up the forked process as a shell does, then run the program."""
    gc.freeze()
    os.environ.clear()
    os.environ.update(given)
    os.chdir(cwd)
    for number, one in enumerate(streams):
        os.dup2(one.number, number)
        os.close(one.number)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = ["toolgate", *words]
    run()


def _stream(given: int | BinaryIO, *, is_input: bool, closing: ExitStack) -> tuple[int, int | None]:
    """The child's end of a stream, and ours if there is one."""
    if not isinstance(given, int):
        return given.fileno(), None
    if given == DEVNULL:
        theirs = os.open(os.devnull, os.O_RDWR)
        closing.callback(os.close, theirs)
        return theirs, None
    if given != PIPE:
        return given, None
    reads, writes = os.pipe()
    theirs, ours = (reads, writes) if is_input else (writes, reads)
    closing.callback(os.close, theirs)
    return theirs, ours


async def _reader(
    number: int | None, pipes: list[asyncio.Future[None]]
) -> asyncio.StreamReader | None:
    if number is None:
        return None
    reader = asyncio.StreamReader()
    protocol = _Protocol(reader)
    pipes.append(protocol.lost)
    pipe = os.fdopen(number, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return reader


class _Protocol(asyncio.StreamReaderProtocol):
    """A stream protocol that has a future for the close of its pipe."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)


async def _rest(reader: asyncio.StreamReader | None) -> bytes:
    return b"" if reader is None else await reader.read()
