"""What a command costs in a warm sandbox, beside the same command as a plain subprocess."""

import asyncio
import shutil
import statistics
from collections.abc import Awaitable, Callable
from typing import Final

import aiodocker

from bench.measure import Cost, Result, at_least, at_most, interleave_async, run, table, timed_async
from toolgate.adapters.sandbox_bwrap import BwrapSandbox, BwrapSession
from toolgate.adapters.sandbox_docker import DockerSandbox, host_image_name
from toolgate.ports.sandbox import Command, SessionKey, SessionSpec
from toolgate.testing import docker_engine

COMMAND: Final = "echo hi"
AT_ONCE: Final = 8
EACH: Final = 12
OPEN_MS: Final = 120
OPEN_MB: Final = 8.0
FIRST_BYTE_MS: Final = 5.0

Work = Callable[[], Awaitable[object]]


async def plain() -> None:
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", COMMAND,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert out == b"hi\n"


async def plain_first_byte() -> None:
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"{COMMAND}; sleep 5", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.read(1)
    process.kill()


class Opened:
    """A sandbox with a warm session for each of the eight."""

    def __init__(self, sandbox: BwrapSandbox | DockerSandbox) -> None:
        self.sandbox = sandbox
        self.sessions: list[BwrapSession] = []

    async def open(self) -> None:
        for number in range(AT_ONCE):
            key = SessionKey("bench", "bench", str(number))
            session = await self.sandbox.open(SessionSpec(key))
            self.sessions.append(session)  # type: ignore[arg-type]

    async def warm(self, number: int = 0) -> None:
        done = await self.sessions[number].exec(Command(COMMAND))
        assert done.stdout == b"hi\n"


async def first_byte(session: BwrapSession) -> Cost:
    """Until the first piece is here; ending the command is not counted."""
    seen = asyncio.Event()
    task: asyncio.Task[object] | None = None

    async def until_seen() -> None:
        nonlocal task
        command = Command(f"{COMMAND}; sleep 5")
        task = asyncio.create_task(session.exec(command, piece=lambda *_: seen.set()))
        await seen.wait()

    cost = await timed_async(until_seen)
    assert task is not None
    await session.kill()
    await task
    return cost


def many(work: Callable[[int], Awaitable[None]]) -> Work:
    """Eight at once, each a number of times in turn."""

    async def one(number: int) -> None:
        for _ in range(EACH):
            await work(number)

    return lambda: asyncio.gather(*(one(number) for number in range(AT_ONCE)))


async def warm_commands(opened: Opened) -> list[Result]:
    async def plain_one(_: int) -> None:
        await plain()

    one = await interleave_async(
        {
            "plain": lambda: timed_async(plain),
            "warm": lambda: timed_async(opened.warm),
            "plain first byte": lambda: timed_async(plain_first_byte),
            "first byte": lambda: first_byte(opened.sessions[0]),
        },
        rounds=80,
    )
    eight = await interleave_async(
        {
            "plain": lambda: timed_async(many(plain_one)),
            "warm": lambda: timed_async(many(opened.warm)),
        },
        rounds=7,
    )
    later = (one["first byte"].wall - one["plain first byte"].wall) * 1000
    count = AT_ONCE * EACH
    return [
        at_most(
            "bash.exec in a warm sandbox, against bash -c",
            one["warm"].wall / one["plain"].wall,
            1.5,
            detail=f"{one['warm'].wall * 1000:.2f} ms, {one['plain'].wall * 1000:.2f} ms",
        ),
        Result(
            "first byte of output, later than plain",
            f"{later:.2f} ms",
            f"<= {FIRST_BYTE_MS} ms",
            later <= FIRST_BYTE_MS,
        ),
        at_least(
            "commands/s at 8 at once, against plain",
            eight["plain"].wall / eight["warm"].wall,
            2.0,
            detail=f"{count / eight['warm'].wall:.0f}/s, {count / eight['plain'].wall:.0f}/s",
        ),
    ]


async def openings(sandbox: BwrapSandbox) -> list[Result]:
    times: list[float] = []
    sizes: list[float] = []
    for number in range(15):
        session: BwrapSession | None = None

        async def open_one(number: int = number) -> None:
            nonlocal session
            key = SessionKey("bench", "openings", str(number))
            session = await sandbox.open(SessionSpec(key))

        times.append((await timed_async(open_one)).wall * 1000)
        assert session is not None
        sizes.append(session.group.memory_bytes() / 1e6)
        await session.close()
    time, size = statistics.median(times), statistics.median(sizes)
    return [
        Result("opening a session", f"{time:.0f} ms", f"<= {OPEN_MS} ms", time <= OPEN_MS),
        Result("memory of an open session", f"{size:.1f} MB", f"<= {OPEN_MB} MB", size <= OPEN_MB),
    ]


async def docker_run(docker: aiodocker.Docker, cgroup: str) -> None:
    """What `docker run --rm` does, without the cost of its command-line program."""
    container = await docker.containers.create(
        {
            "Image": host_image_name(),
            "Cmd": ["/bin/bash", "-c", COMMAND],
            "NetworkDisabled": True,
            "HostConfig": {
                "NetworkMode": "none",
                "Binds": ["/usr:/usr:ro"],
                "CgroupParent": cgroup,
            },
        }
    )
    await container.start()
    await container.wait()
    await container.delete(force=True)


async def against_docker_run(opened: Opened) -> list[Result]:
    if docker_engine.why_not() or shutil.which("dockerd") is None:
        return [Result("docker run", f"not measured: {docker_engine.why_not()}")]
    with docker_engine.private_engine() as engine:
        sandbox = DockerSandbox(url=engine.url, cgroup_parent=engine.cgroup)
        session = await sandbox.open(SessionSpec(SessionKey("bench", "docker", "1")))
        async with aiodocker.Docker(url=engine.url) as docker:

            async def runs() -> None:
                await asyncio.gather(*(docker_run(docker, engine.cgroup) for _ in range(AT_ONCE)))

            eight = await interleave_async(
                {
                    "docker run": lambda: timed_async(runs),
                    "warm": lambda: timed_async(many(opened.warm)),
                },
                rounds=3,
            )
        one = await interleave_async(
            {
                "plain": lambda: timed_async(plain),
                "warm": lambda: timed_async(lambda: session.exec(Command(COMMAND))),
            },
            rounds=40,
        )
        await sandbox.close()
    by_docker = AT_ONCE / eight["docker run"].wall
    warm = AT_ONCE * EACH / eight["warm"].wall
    return [
        at_least(
            "commands/s at 8 at once, against docker run",
            warm / by_docker,
            50,
            detail=f"{warm:.0f}/s, {by_docker:.1f}/s",
        ),
        Result(
            "the same in a warm container, against bash -c",
            f"{one['warm'].wall / one['plain'].wall:.2f}x ({one['warm'].wall * 1000:.2f} ms)",
        ),
    ]


async def beside_plain(*, with_docker: bool) -> list[Result]:
    sandbox = BwrapSandbox()
    opened = Opened(sandbox)
    try:
        results = await openings(sandbox) if with_docker else []
        await opened.open()
        results += await warm_commands(opened)
        if with_docker:
            results += await against_docker_run(opened)
    finally:
        await sandbox.close()
    return results


def main() -> list[str]:
    on_asyncio = asyncio.run(beside_plain(with_docker=True))
    on_uvloop = run(beside_plain(with_docker=False))
    return table("sandbox, on asyncio", on_asyncio) + table("sandbox, on uvloop", on_uvloop)


if __name__ == "__main__":
    print("\n".join(main()))
