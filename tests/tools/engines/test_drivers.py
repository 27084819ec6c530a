"""Every driver of the executor contract passes the same suite."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec import UnsetType

from tests.support.people import keyed
from tests.support.pipelines import Rig, open_rig
from toolgate.core.errors import Refused
from toolgate.core.system_clock import SystemClock
from toolgate.http import asgi
from toolgate.surfaces.executor.server import ExecutorApi
from toolgate.testing.driver_suite import Bench, DriverSuite, request
from toolgate.tools.engines.remote_toolgate import ExecutorHttp, Traces

TOKEN = "executor-bearer-of-the-tests"


@asynccontextmanager
async def serving(rig: Rig, token: str = TOKEN) -> AsyncIterator[str]:
    """The executor's HTTP form on a free port; its URL."""
    bound = asgi.bind("127.0.0.1", 0, setting="GATEWAY_PORT")
    listener = asgi.Listener(ExecutorApi(rig.executor, keyed(executor=token).executor).app(), bound)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    await listener.start()
    try:
        yield url
    finally:
        await listener.stop()


@pytest.mark.requirement("003/deny/no-tool-result")
@pytest.mark.requirement("003/deny/no-execution")
@pytest.mark.requirement("003/deny/evidence")
@pytest.mark.requirement("003/deny/does-not-throw")
@pytest.mark.requirement("003/deny/unknown-policy-ref")
@pytest.mark.requirement("003/errors/unknown-tool")
@pytest.mark.requirement("003/evidence/refs-never-empty")
@pytest.mark.requirement("003/evidence/ref-format")
@pytest.mark.requirement("003/evidence/always-request")
@pytest.mark.requirement("003/evidence/always-engine-identity")
@pytest.mark.requirement("003/evidence/deny-artifacts")
@pytest.mark.requirement("003/evidence/allow-artifacts")
@pytest.mark.requirement("003/evidence/refs-fetchable")
@pytest.mark.requirement("003/evidence/policy-version")
@pytest.mark.requirement("003/ids/deterministic")
@pytest.mark.requirement("003/ids/derived-run-id")
@pytest.mark.requirement("003/ids/derived-step-id")
@pytest.mark.requirement("003/policy/default-deny")
@pytest.mark.requirement("003/policy/allowlist-match")
@pytest.mark.requirement("003/repeat/stored-response")
@pytest.mark.requirement("003/repeat/run-once")
@pytest.mark.requirement("003/repeat/evidence-untouched")
@pytest.mark.requirement("003/repeat/concurrent")
@pytest.mark.requirement("003/repeat/conflict")
@pytest.mark.requirement("003/repeat/never-overwritten")
@pytest.mark.requirement("003/request/request-id-required")
@pytest.mark.requirement("003/request/tool-id-required")
@pytest.mark.requirement("003/request/args-object")
@pytest.mark.requirement("003/request/ctx-optional")
@pytest.mark.requirement("003/request/policy-ref-default")
@pytest.mark.requirement("003/request/malformed-raises")
@pytest.mark.requirement("003/request/request-id-charset")
@pytest.mark.requirement("003/response/ok-success")
@pytest.mark.requirement("003/response/ok-failed-tool")
@pytest.mark.requirement("003/response/tool-result-kept")
@pytest.mark.requirement("003/response/exit-code")
@pytest.mark.requirement("003/response/stdout-string")
@pytest.mark.requirement("003/response/stderr-string")
@pytest.mark.requirement("003/response/data-optional")
@pytest.mark.requirement("003/response/policy-check-always")
@pytest.mark.requirement("003/response/policy-check-shape")
@pytest.mark.requirement("003/response/engine-ref")
@pytest.mark.requirement("003/response/echo-run-id")
@pytest.mark.requirement("003/response/echo-step-id")
class TestInProcess(DriverSuite):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        async with open_rig(tmp_path, clock=SystemClock()) as rig:
            yield Bench(rig.executor, rig.engine.runs.__getitem__, tmp_path)

    @pytest.mark.requirement("003/evidence/local-paths-optional")
    async def test_it_has_no_local_evidence(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "count"))
        assert isinstance(response.local_evidence_paths, UnsetType)


@pytest.mark.requirement("003/errors/deny-403-returned")
@pytest.mark.requirement("003/http/tool-run")
@pytest.mark.requirement("003/http/artifact-get")
@pytest.mark.requirement("003/http/episode-search")
@pytest.mark.requirement("003/http/episode-order")
@pytest.mark.requirement("003/http/health")
class TestOverHttp(DriverSuite):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        async with AsyncExitStack() as stack:
            rig = await stack.enter_async_context(open_rig(tmp_path / "home", clock=SystemClock()))
            url = await stack.enter_async_context(serving(rig))
            driver = ExecutorHttp(
                url, token=TOKEN, clock=SystemClock(), traces=Traces(tmp_path, "traces")
            )
            await stack.enter_async_context(driver)
            yield Bench(driver, rig.engine.runs.__getitem__, tmp_path)

    @pytest.mark.requirement("003/evidence/local-paths-apart")
    @pytest.mark.requirement("003/evidence/local-paths-relative")
    @pytest.mark.requirement("003/evidence/local-paths-exist")
    async def test_each_exchange_is_noted_in_a_local_file(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "count"))
        assert response.local_evidence_paths == ["traces/http_trace_r1.jsonl"]
        text = (bench.local_root / "traces/http_trace_r1.jsonl").read_text(encoding="utf-8")
        assert TOKEN not in text
        assert '"status":200' in text

    async def test_a_call_that_ran_is_answered_where_its_exchange_cannot_be_noted(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "traces").write_text("no directory", encoding="utf-8")
        async with open_rig(tmp_path / "other") as rig, serving(rig) as url:
            traces = Traces(tmp_path, "traces")
            async with ExecutorHttp(url, token=TOKEN, clock=SystemClock(), traces=traces) as driver:
                response = await driver.run_tool(request("r1", "count"))
            assert response.ok
            assert isinstance(response.local_evidence_paths, UnsetType)

    async def test_a_wrong_bearer_is_refused(self, tmp_path: Path) -> None:
        async with open_rig(tmp_path / "other") as rig, serving(rig, token="another") as url:
            async with ExecutorHttp(url, token=TOKEN, clock=SystemClock()) as driver:
                with pytest.raises(Refused):
                    await driver.run_tool(request("r1", "count"))
            assert rig.engine.runs["count"] == 0
