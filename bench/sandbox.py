"""What a command costs in a warm sandbox, beside the same command as a plain subprocess.

In this process; and through a gateway and a runner that are processes of their own on loopback.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiodocker
import aiohttp

from bench.measure import Cost, Result, at_least, at_most, interleave_async, run, table, timed_async
from tests.support import docker_engine
from toolgate.sandbox.bwrap import BwrapSandbox, BwrapSession
from toolgate.sandbox.docker import DockerSandbox, host_image_name
from toolgate.sandbox.sandbox import Command, SessionKey, SessionSpec

COMMAND: Final = "echo hi"
AT_ONCE: Final = 8
EACH: Final = 12
OPEN_MS: Final = 120
OPEN_MB: Final = 8.0
FIRST_BYTE_MS: Final = 5.0
PROGRAM: Final = str(Path(sys.executable).with_name("toolgate"))
OPERATOR: Final = "bench-operator-token"
EXECUTOR: Final = "bench-executor-token"
RUNNER: Final = "bench-runner-token"
PORTS: Final = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT", "RUNNER_PORT")
POLICY: Final = """\
version: 1
rules:
  - {id: commands, allow: bash.exec, match: {command: "echo *"}, reason: For the bench}
  - {id: echo, allow: echo, match: any, reason: For the bench}
"""

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


@contextlib.asynccontextmanager
async def program(*words: str, home: Path, **settings: str) -> AsyncIterator[dict[str, Any]]:
    """A process of the installed program; what it says when it is ready."""
    env = {**os.environ, **dict.fromkeys(PORTS, "0"), "TOOLGATE_HOME": str(home), **settings}
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *words,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


class Doors:
    """The ways to the same command: at the runner, and through the gateway."""

    def __init__(self, http: aiohttp.ClientSession, *, gateway: str, runner: str) -> None:
        self._http = http
        self._gateway = gateway
        self._runner = runner
        self._numbers = itertools.count()

    async def set_target(self) -> None:
        body = {"tenantId": "t_default", "kind": "docker-runner", "endpoint": self._runner}
        async with self._http.put(
            f"{self._gateway}/execution-targets/bench",
            json={**body, "authToken": RUNNER, "isDefault": True},
            headers={"authorization": f"Bearer {OPERATOR}"},
        ) as answer:
            assert answer.status == 200, await answer.text()

    async def tool(self, tool: str, **args: str) -> None:
        """With the policy asked, and the evidence on disk before the answer."""
        body = {
            "request_id": f"bench-{next(self._numbers)}",
            "tool_id": tool,
            "args": args,
            "ctx": {"run_id": "bench"},
        }
        async with self._http.post(
            f"{self._gateway}/tool/run",
            json=body,
            headers={"authorization": f"Bearer {EXECUTOR}"},
        ) as answer:
            result = await answer.json()
        assert result["tool_result"]["stdout"].strip() == "hi", result

    async def execute(self, cmd: str = COMMAND) -> None:
        async with self._ask(cmd) as answer:
            assert (await answer.json())["result"]["output"] == "hi\n"

    async def first_byte(self) -> Cost:
        """Until the first line of a streamed answer is here; hanging up ends the command."""
        wall, cpu = time.perf_counter(), time.process_time()
        async with self._ask(f"{COMMAND}; sleep 5", accept="application/x-ndjson") as answer:
            line = await answer.content.readline()
            cost = Cost(time.perf_counter() - wall, time.process_time() - cpu)
            assert b"hi" in line
            answer.close()
        await self.execute()  # the runner has ended the one before
        return cost

    def _ask(
        self, cmd: str, accept: str = "application/json"
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        target = {"targetId": "bench", "kind": "docker-runner", "tenantId": "t_default"}
        return self._http.post(
            self._runner,
            json={
                "call": {"name": "bash.exec", "args": {"cmd": cmd}},
                "ctx": {"runId": "direct", "sessionId": "direct", "runtimeMode": "local"},
                "target": target,
            },
            headers={"authorization": f"Bearer {RUNNER}", "accept": accept},
        )


async def over_http() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "policy.yaml").write_text(POLICY)
        tokens = {"OPERATOR_TOKEN": OPERATOR, "EXECUTOR_TOKEN": EXECUTOR}
        policy = {"POLICY_FILE": str(home / "policy.yaml")}
        async with (
            program("runner", home=home / "runner", RUNNER_AUTH_TOKEN=RUNNER) as runner,
            program("up", home=home / "gateway", **tokens, **policy) as gateway,
            aiohttp.ClientSession() as http,
        ):
            doors = Doors(http, gateway=gateway["urls"]["gateway"], runner=runner["urls"]["runner"])
            await doors.set_target()
            return await _compare(doors)


async def _compare(doors: Doors) -> list[Result]:
    one = await interleave_async(
        {
            "plain": lambda: timed_async(plain),
            "all": lambda: timed_async(lambda: doors.tool("bash.exec", cmd=COMMAND)),
            "runner": lambda: timed_async(doors.execute),
            "pipeline": lambda: timed_async(lambda: doors.tool("echo", text="hi")),
            "plain first byte": lambda: timed_async(plain_first_byte),
            "first byte": doors.first_byte,
        },
        rounds=80,
    )
    later = (one["first byte"].wall - one["plain first byte"].wall) * 1000
    ms = {name: cost.wall * 1000 for name, cost in one.items()}
    return [
        at_most(
            "bash.exec through gateway and runner, against bash -c",
            one["all"].wall / one["plain"].wall,
            4,
            detail=f"{ms['all']:.2f} ms, {ms['plain']:.2f} ms",
        ),
        Result("  of which POST /execute at the runner alone", f"{ms['runner']:.2f} ms"),
        Result("  and POST /tool/run of echo: policy, evidence", f"{ms['pipeline']:.2f} ms"),
        Result(
            "first byte of a runner's stream, later than plain",
            f"{later:.2f} ms",
            f"<= {FIRST_BYTE_MS} ms",
            later <= FIRST_BYTE_MS,
        ),
    ]


def main() -> list[str]:
    on_asyncio = asyncio.run(beside_plain(with_docker=True))
    on_uvloop = run(beside_plain(with_docker=False))
    through = asyncio.run(over_http())
    return [
        *table("sandbox, on asyncio", on_asyncio),
        *table("sandbox, on uvloop", on_uvloop),
        *table("sandbox, through gateway and runner", through),
    ]


if __name__ == "__main__":
    print("\n".join(main()))
