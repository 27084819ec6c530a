"""The executor contract as tests for any driver: subclass it and give it a `bench`.

    class TestMyDriver(DriverSuite):
        @pytest.fixture
        async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]: ...

The executor behind the driver has the policy `pipelines.POLICY` and its tools.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from toolgate.contracts import executor_v0 as wire
from toolgate.core.errors import Invalid, NotFound
from toolgate.surfaces.executor.executor import Executor


@dataclass(frozen=True, slots=True)
class Bench:
    executor: Executor
    runs: Callable[[str], int]  # how often a tool of the counting engine was run
    local_root: Path  # what local evidence paths are relative to


def request(
    request_id: str,
    tool: str,
    args: dict[str, object] | None = None,
    *,
    ctx: wire.Ctx | UnsetType = UNSET,
) -> wire.RunToolRequest:
    return wire.RunToolRequest(request_id, tool, args or {}, ctx)


def result_of(response: wire.RunToolResponse) -> wire.ToolResult:
    assert isinstance(response.tool_result, wire.ToolResult)
    return response.tool_result


def names(response: wire.RunToolResponse) -> set[str]:
    return {PurePosixPath(ref).stem for ref in response.evidence_refs}


class DriverSuite:
    async def test_an_allowed_call_is_ok_and_has_its_result(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "echo", {"text": "hello"}))
        assert response.ok
        assert result_of(response).exit_code == 0
        assert (result_of(response).stdout, result_of(response).stderr) == ("hello", "")
        assert isinstance(result_of(response).data, UnsetType)
        assert response.policy_check == wire.PolicyCheck(
            wire.Decision.ALLOW, "Tool echo is in allowlist", wire.RuleId.TOOL_ALLOWLIST_MATCH
        )
        assert response.engine_ref

    async def test_a_value_is_kept_and_an_absent_one_is_null(self, bench: Bench) -> None:
        absent = result_of(await bench.executor.run_tool(request("r1", "kv.get", {"key": "k"})))
        assert (absent.exit_code, absent.data) == (0, None)
        await bench.executor.run_tool(request("r2", "kv.set", {"key": "k", "value": "v"}))
        found = result_of(await bench.executor.run_tool(request("r3", "kv.get", {"key": "k"})))
        assert (found.exit_code, found.stdout, found.data) == (0, "v", "v")

    async def test_a_failed_tool_is_not_ok_and_keeps_its_result(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "fail"))
        assert not response.ok
        assert response.policy_check.decision is wire.Decision.ALLOW
        assert (result_of(response).exit_code, result_of(response).stderr) == (1, "no")

    async def test_an_unknown_tool_that_is_allowed_fails(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "unknown.tool"))
        assert not response.ok
        assert result_of(response).exit_code == 1
        assert "Unknown tool: unknown.tool" in result_of(response).stderr

    async def test_a_denied_call_is_an_answer_and_runs_nothing(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "denied"))
        assert not response.ok
        assert isinstance(response.tool_result, UnsetType)
        assert response.policy_check == wire.PolicyCheck(
            wire.Decision.DENY,
            "Tool denied not in allowlist (default deny)",
            wire.RuleId.DEFAULT_DENY,
        )
        assert bench.runs("denied") == 0

    async def test_an_unknown_policy_is_a_deny(self, bench: Bench) -> None:
        ctx = wire.Ctx(policy_ref="policy.nowhere")
        response = await bench.executor.run_tool(request("r1", "count", ctx=ctx))
        assert response.policy_check.decision is wire.Decision.DENY
        assert response.policy_check.rule_id == wire.RuleId.POLICY_NOT_FOUND
        assert bench.runs("count") == 0

    @pytest.mark.parametrize("ctx", [UNSET, None, wire.Ctx()])
    async def test_ids_that_were_not_given_are_in_the_evidence_and_not_in_the_answer(
        self, bench: Bench, ctx: wire.Ctx | UnsetType | None
    ) -> None:
        asked = msgspec.structs.replace(request("r1", "echo", {"text": ""}), ctx=ctx)
        response = await bench.executor.run_tool(asked)
        assert (response.run_id, response.step_id) == (UNSET, UNSET)
        kept = msgspec.json.decode(await bench.executor.artifact("requests/r1/request.json"))
        assert (kept["ctx"]["run_id"], kept["ctx"]["step_id"]) == ("run_r1", "step_r1")

    async def test_ids_come_back_exactly_where_they_were_given(self, bench: Bench) -> None:
        ctx = wire.Ctx(run_id="run_001", step_id="Step é 1")
        response = await bench.executor.run_tool(request("r1", "echo", {"text": ""}, ctx=ctx))
        assert (response.run_id, response.step_id) == ("run_001", "Step é 1")

    @pytest.mark.parametrize(
        ("tool", "expected"),
        [
            ("denied", {"request", "engine_identity", "policy_decision"}),
            ("count", {"request", "engine_identity", "policy_decision", "tool_result", "response"}),
            ("fail", {"request", "engine_identity", "policy_decision", "tool_result", "response"}),
        ],
    )
    async def test_the_evidence_of_a_call_can_be_fetched_back(
        self, bench: Bench, tool: str, expected: set[str]
    ) -> None:
        response = await bench.executor.run_tool(request("r1", tool))
        assert names(response) == expected
        for ref in response.evidence_refs:
            assert ref.startswith("requests/r1/")
            assert ref.endswith(".json")
            assert isinstance(msgspec.json.decode(await bench.executor.artifact(ref)), dict)

    async def test_the_evidence_says_what_was_asked_and_which_policy_decided(
        self, bench: Bench
    ) -> None:
        await bench.executor.run_tool(request("r1", "echo", {"text": "x"}))
        asked = msgspec.json.decode(await bench.executor.artifact("requests/r1/request.json"))
        assert (asked["tool_id"], asked["args"]) == ("echo", {"text": "x"})
        decided = msgspec.json.decode(
            await bench.executor.artifact("requests/r1/policy_decision.json")
        )
        assert decided["decision"] == "allow"
        assert decided["policy_version"]

    async def test_local_paths_are_apart_relative_and_there(self, bench: Bench) -> None:
        response = await bench.executor.run_tool(request("r1", "count"))
        paths = (
            []
            if isinstance(response.local_evidence_paths, UnsetType)
            else response.local_evidence_paths
        )
        for path in paths:
            assert path not in response.evidence_refs
            assert not PurePosixPath(path).is_absolute()
            assert ".." not in PurePosixPath(path).parts
            assert (bench.local_root / path).is_file()
        assert not any((bench.local_root / ref).exists() for ref in response.evidence_refs)

    async def test_the_same_request_again_is_answered_from_the_store(self, bench: Bench) -> None:
        first = await bench.executor.run_tool(request("r1", "count", {"a": 1, "b": [2]}))
        before = [await bench.executor.artifact(ref) for ref in first.evidence_refs]
        second = await bench.executor.run_tool(request("r1", "count", {"b": [2], "a": 1}))
        assert second == first
        assert bench.runs("count") == 1
        assert [await bench.executor.artifact(ref) for ref in first.evidence_refs] == before

    async def test_a_denied_request_again_is_denied_again(self, bench: Bench) -> None:
        first = await bench.executor.run_tool(request("r1", "denied"))
        assert await bench.executor.run_tool(request("r1", "denied")) == first

    async def test_equal_requests_that_arrive_together_run_once(self, bench: Bench) -> None:
        same = [bench.executor.run_tool(request("r1", "count")) for _ in range(64)]
        responses = await asyncio.gather(*same)
        assert bench.runs("count") == 1
        assert all(response == responses[0] for response in responses)

    async def test_another_request_under_the_same_id_is_denied_and_changes_nothing(
        self, bench: Bench
    ) -> None:
        first = await bench.executor.run_tool(request("r1", "count", {"a": 1}))
        before = [await bench.executor.artifact(ref) for ref in first.evidence_refs]
        for other in (request("r1", "count", {"a": 2}), request("r1", "fail", {"a": 1})):
            for _ in range(2):
                response = await bench.executor.run_tool(other)
                assert not response.ok
                assert isinstance(response.tool_result, UnsetType)
                assert response.policy_check.rule_id == wire.RuleId.REQUEST_ID_CONFLICT
                for ref in response.evidence_refs:
                    await bench.executor.artifact(ref)
        assert (bench.runs("count"), bench.runs("fail")) == (1, 0)
        assert [await bench.executor.artifact(ref) for ref in first.evidence_refs] == before

    async def test_different_requests_that_arrive_together_under_one_id_run_one_of_them(
        self, bench: Bench
    ) -> None:
        tried = [bench.executor.run_tool(request("r1", "count", {"n": n})) for n in range(16)]
        responses = await asyncio.gather(*tried)
        assert bench.runs("count") == 1
        assert sum(response.ok for response in responses) == 1

    async def test_an_id_that_makes_no_path_is_invalid(self, bench: Bench) -> None:
        for wrong in ("", "a/b", "..", "a..b", ".", "a\x00b", "a b", "é", "x" * 129, "x" * 10_240):
            with pytest.raises(Invalid):
                await bench.executor.run_tool(request(wrong, "count"))
        assert bench.runs("count") == 0

    async def test_a_malformed_request_is_invalid_and_runs_nothing(self, bench: Bench) -> None:
        for wrong in (
            wire.RunToolRequest("r1", "", {}),
            wire.RunToolRequest("r1", "count", []),  # type: ignore[arg-type]
            wire.RunToolRequest(1, "count", {}),  # type: ignore[arg-type]
        ):
            with pytest.raises(Invalid):
                await bench.executor.run_tool(wrong)
        assert bench.runs("count") == 0

    async def test_a_ref_that_cannot_be_one_is_invalid(self, bench: Bench) -> None:
        for wrong in ("/etc/passwd", "requests/../x", "a b", "", "x" * 513, "a\x00"):
            with pytest.raises(Invalid):
                await bench.executor.artifact(wrong)

    async def test_an_artifact_that_is_not_there_is_not_found(self, bench: Bench) -> None:
        with pytest.raises(NotFound):
            await bench.executor.artifact("requests/r1/request.json")

    async def test_a_call_that_waits_for_a_person_is_denied_and_runs_nothing(
        self, bench: Bench
    ) -> None:
        response = await bench.executor.run_tool(request("r1", "ask.once"))
        assert response.policy_check.decision is wire.Decision.DENY
        assert bench.runs("ask.once") == 0
        for ref in response.evidence_refs:
            await bench.executor.artifact(ref)

    async def test_ended_calls_are_found_again(self, bench: Bench) -> None:
        for number in range(3):
            await bench.executor.run_tool(request(f"a{number}", "count"))
        await bench.executor.run_tool(request("b0", "denied"))
        search = bench.executor.episodes

        async def ids(asked: wire.EpisodeSearch) -> list[str]:
            return [episode.id for episode in (await search(asked)).episodes]

        assert await ids(wire.EpisodeSearch()) == ["b0", "a2", "a1", "a0"]
        assert await ids(wire.EpisodeSearch(order=wire.Order.ASC, limit=2)) == ["a0", "a1"]
        assert await ids(wire.EpisodeSearch(id="a1")) == ["a1"]
        assert await ids(wire.EpisodeSearch(id_prefix="a")) == ["a2", "a1", "a0"]
        assert await ids(wire.EpisodeSearch(decision=wire.Decision.DENY)) == ["b0"]
        assert await ids(wire.EpisodeSearch(type="count", limit=1)) == ["a2"]
        assert await ids(wire.EpisodeSearch(until_ts="1999-01-01T00:00:00.000Z")) == []
        assert len(await ids(wire.EpisodeSearch(since_ts="1999-01-01T00:00:00.000Z"))) == 4

    async def test_it_says_that_it_is_well(self, bench: Bench) -> None:
        health = await bench.executor.health()
        assert health.ok
        assert health.engine_ref
