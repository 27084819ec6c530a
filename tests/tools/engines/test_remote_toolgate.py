"""The driver that calls another installation: what is raised, and what is an answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.people import keyed
from tests.support.pipelines import open_rig
from toolgate.contracts import executor_v0 as wire
from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, Refused, Unavailable
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import ToolRequest
from toolgate.http import asgi
from toolgate.surfaces.executor.server import ExecutorApi
from toolgate.testing.driver_suite import request
from toolgate.tools.engines.remote_toolgate import ExecutorHttp, RemoteEngine

TOKEN = "executor-bearer-of-the-tests"
DENY = (
    b'{"ok":false,"policy_check":{"decision":"deny","reason":"no"},'
    b'"evidence_refs":["requests/r1/request.json"],"engine_ref":"e"}'
)
ALLOW = DENY.replace(b"deny", b"allow")


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that says the same to everyone; with nothing to say, it says nothing."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if not answer:
            await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    done.set()
    server.close()
    await server.wait_closed()


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.requirement("003/errors/network-raises")
async def test_an_executor_that_is_not_there_is_raised() -> None:
    bound = asgi.bind("127.0.0.1", 0, setting="X")  # bound, and nobody listens
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with ExecutorHttp(url, token=TOKEN, clock=SystemClock()) as driver:
        with pytest.raises(Unavailable):
            await driver.run_tool(request("r1", "count"))
    bound.close()


@pytest.mark.requirement("003/errors/timeout-raises")
async def test_an_executor_that_takes_too_long_is_raised() -> None:
    async with (
        answering(b"") as url,
        ExecutorHttp(url, token=TOKEN, clock=SystemClock(), timeout_s=0.2) as driver,
    ):
        with pytest.raises(Unavailable):
            await driver.run_tool(request("r1", "count"))


@pytest.mark.requirement("003/errors/non-json-raises")
@pytest.mark.parametrize(
    "answer",
    [
        http(200, b"<html>"), http(403, b"forbidden"), http(200, b"{}"), http(200, b""),
        http(500, b"oops"), http(200, DENY), http(403, ALLOW), http(302, ALLOW), b"garbage\r\n\r\n",
        http(200, ALLOW)[:-5], http(404, b'{"ok":false}'), http(200, b"x" * (9 * 1024 * 1024)),
    ],
)  # fmt: skip
async def test_an_answer_that_the_contract_does_not_have_is_raised(answer: bytes) -> None:
    async with (
        answering(answer) as url,
        ExecutorHttp(url, token=TOKEN, clock=SystemClock(), timeout_s=5) as driver,
    ):
        with pytest.raises(Unavailable):
            await driver.run_tool(request("r1", "count"))


@pytest.mark.requirement("003/errors/deny-403-returned")
async def test_a_deny_is_returned() -> None:
    async with (
        answering(http(403, DENY)) as url,
        ExecutorHttp(url, token=TOKEN, clock=SystemClock()) as driver,
    ):
        response = await driver.run_tool(request("r1", "count"))
    assert response.policy_check.decision is wire.Decision.DENY


@pytest.mark.parametrize(
    ("status", "error"), [(400, Invalid), (401, Refused), (503, Unavailable), (500, Unavailable)]
)
async def test_a_refusal_is_raised_as_what_it_is(
    status: int, error: Callable[..., Exception]
) -> None:
    body = b'{"ok":false,"error":{"code":"x","message":"y"}}'
    async with (
        answering(http(status, body)) as url,
        ExecutorHttp(url, token=TOKEN, clock=SystemClock()) as driver,
    ):
        with pytest.raises(error):  # type: ignore[call-overload]
            await driver.run_tool(request("r1", "count"))


@pytest.mark.requirement("003/http/chained")
async def test_one_installation_runs_tools_through_another(tmp_path: Path) -> None:
    async with open_rig(tmp_path / "far") as far:
        bound = asgi.bind("127.0.0.1", 0, setting="X")
        listener = asgi.Listener(
            ExecutorApi(far.executor, keyed(executor=TOKEN).executor).app(), bound
        )
        await listener.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with ExecutorHttp(url, token=TOKEN, clock=SystemClock()) as driver:
            engine = RemoteEngine(driver, prefix="far")
            output = await engine.run(ToolRequest("r1", "far.count", {}))
            assert (output.exit_code, output.stdout) == (0, "1")
            again = await engine.run(ToolRequest("r1", "far.count", {}))
            assert again == output
            assert far.engine.runs["count"] == 1
            failed = await engine.run(ToolRequest("r2", "far.fail", {}))
            assert (failed.exit_code, failed.stderr) == (1, "no")
            denied = await engine.run(ToolRequest("r3", "far.denied", {}))
            assert (denied.exit_code, denied.outcome) == (1, Outcome.NOT_STARTED)
            absent = await engine.run(ToolRequest("r4", "far.kv.get", {"key": "k"}))
            assert (absent.exit_code, absent.data, absent.says_null) == (0, None, True)
        await listener.stop()
