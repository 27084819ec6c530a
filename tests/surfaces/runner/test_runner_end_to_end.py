"""A gateway's client, the runner's door, and a real sandbox behind it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.engines import sandbox_of
from toolgate.core.enums import Outcome, TargetKind
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolRequest
from toolgate.http import asgi
from toolgate.sandbox.sessions import Sessions
from toolgate.surfaces.runner.app import Options, RunnerApp, usage_of
from toolgate.tools.engines.remote_runner import DockerRunners
from toolgate.tools.engines.sandbox import SandboxEngine
from toolgate.tools.targets.targets import Target

TOKEN = "token-of-the-runner"
BOUND = 10.0


def call(cmd: str, session: str = "s_1") -> ToolRequest:
    return ToolRequest("tool_1", "bash.exec", {"cmd": cmd}, Caller("t_1", "w_1", session=session))


def processes_with(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "cmdline").read_text():
                    found.append(entry.name)
            except OSError:
                continue
    return found


async def until_gone(command: str) -> None:
    for _ in range(500):
        if not processes_with(command.replace(" ", "\0")):
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{command} still runs")


@pytest.fixture
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    async with sandbox_of("bwrap", request) as sandbox:
        sessions = Sessions(sandbox, clock=SystemClock())
        app = RunnerApp(
            SandboxEngine(sessions),
            options=Options("bwrap", sandbox.isolation, TOKEN),
            clock=SystemClock(),
            usage=lambda: usage_of(0, 0, 0),
        )
        bound = asgi.bind("127.0.0.1", 0, setting="RUNNER_PORT")
        listener = asgi.Listener(app, bound)
        await listener.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/execute"
        yield Target("target_1", "t_1", "w_1", TargetKind.DOCKER_RUNNER, url, TOKEN)
        await listener.stop()
        await sessions.close()


async def test_two_gateways_share_a_runner_and_its_sessions(target: Target) -> None:
    one, two = DockerRunners(clock=SystemClock()), DockerRunners(clock=SystemClock())
    await one.engine(target).run(call("echo from one > note; export X=1"))
    seen = await two.engine(target).run(call("cat note; echo $X"))
    assert seen.stdout == "from one\n1\n"
    assert seen.isolation == "runner:bwrap"
    both = await asyncio.gather(
        *(each.engine(target).run(call("echo x >> log; wc -l < log")) for each in (one, two) * 5)
    )
    assert sorted(int(output.stdout) for output in both) == list(range(1, 11))
    other = await two.engine(target).run(call("ls", session="s_2"))
    assert other.stdout == ""
    await one.close()
    await two.close()


async def test_a_cancelled_call_ends_its_command_on_the_runner(target: Target) -> None:
    runners = DockerRunners(clock=SystemClock())
    begun = asyncio.Event()
    mark = "sleep 86.421"
    task = asyncio.create_task(
        runners.engine(target).run(call(f"echo begun; {mark}"), update=lambda _: begun.set())
    )
    await asyncio.wait_for(begun.wait(), BOUND)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_gone(mark)
    again = await runners.engine(target).run(call("echo again"))
    assert again.stdout == "again\n"
    await runners.close()


async def test_the_gateway_s_deadline_ends_the_command_too(target: Target) -> None:
    runners = DockerRunners(clock=SystemClock())
    short = Target(
        "target_1", "t_1", "w_1", target.kind, target.endpoint, TOKEN, config={"timeoutMs": 300}
    )
    mark = "sleep 86.422"
    output = await runners.engine(short).run(call(mark))
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED
    await until_gone(mark)
    await runners.close()


async def test_a_failing_command_comes_back_whole(target: Target) -> None:
    runners = DockerRunners(clock=SystemClock())
    output = await runners.engine(target).run(call("echo half; echo why >&2; exit 9"))
    assert (output.exit_code, output.stdout, output.stderr) == (9, "half\n", "why\n")
    assert output.outcome is Outcome.EXECUTED
    wrong = Target("target_1", "t_1", "w_1", target.kind, target.endpoint, "another")
    refused = await runners.engine(wrong).run(call("echo"))
    assert refused.outcome is Outcome.NOT_STARTED
    await runners.close()
