"""From a goal to a result that fits, by rules first, and tools of an agent on top of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.runtimes import (
    LOCAL,
    Gate,
    RefusingJournal,
    SlowJournal,
    a_toolset,
    instant,
    until,
)
from tests.tasks.site import Site
from toolgate.core.enums import Level, Outcome, TaskCode, TaskStatus, TrustLevel
from toolgate.core.json_schema import schema_errors
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import ToolRequest
from toolgate.journal.local_bus import LocalBus
from toolgate.tasks import runtime
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.engine import BrowserEngine
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.task_agent import TaskAgent, plan_by_rules
from toolgate.tasks.template import TaskOutcome as Found
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

READ = "Read https://a.example/"
PAGES = {
    "type": "object",
    "required": ["pages"],
    "properties": {
        "pages": {
            "type": "array",
            "minItems": 2,
            "items": {
                "type": "object",
                "required": ["title", "text"],
                "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
            },
        }
    },
}


@pytest.mark.parametrize(
    ("goal", "inputs", "template"),
    [
        ("Read https://a.example/x and https://b.example.", {}, "batch_extract_pages"),
        ("Compare these", {"urls": ["http://a", "http://b"]}, "multi_tab_compare"),
        ("Take a screenshot", {"url": "http://a"}, "screenshot_page"),
        ("Save http://a.example as PDF", {}, "pdf_page"),
        ("Sign in", {"startUrl": "http://a", "credentials": {}}, "login_keep_session"),
        ("Look it up", {"startUrl": "http://a", "query": "x"}, "search_extract"),
        ("All of them", {"startUrl": "http://a", "pagination": {}}, "paginated_extract"),
        ("Order it", {"startUrl": "http://a", "fields": []}, "submit_and_verify"),
        ("Make me happy", {}, None),
        ("Read these", {"urls": 5}, "batch_extract_pages"),
        ("Read this", {"url": {"a": 1}}, "batch_extract_pages"),
    ],
)
async def test_the_inputs_or_else_the_words_choose_the_template(
    goal: str, inputs: dict[str, Any], template: str | None
) -> None:
    plan = plan_by_rules(goal, inputs)
    assert (plan.template_id if plan else None) == template


async def test_an_address_in_a_sentence_ends_before_the_sentences_own_marks() -> None:
    goal = "Read https://a.example/x, then (http://b.example/y?z=1.5); is it http://c.example/?"
    plan = plan_by_rules(goal, {})
    assert plan is not None
    assert plan.inputs["urls"] == [
        "https://a.example/x",
        "http://b.example/y?z=1.5",
        "http://c.example/",
    ]


@pytest.mark.requirement("004/run/output-schema-agent")
async def test_a_result_is_shaped_to_the_schema_without_a_model(
    toolset: Toolset, site: Site
) -> None:
    agent = TaskAgent(toolset, check=schema_errors)
    answer = await agent.run(
        f"Read {site.url('/n/1')} and {site.url('/n/2')}", LOCAL, output_schema=PAGES
    )
    assert answer["output"]["pages"] == [
        {"title": "Page 1", "text": "Number 1\nText of 1.Home"},
        {"title": "Page 2", "text": "Number 2\nText of 2.Home"},
    ]


async def test_a_result_that_does_not_fit_is_explained(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
    found = instant("batch_extract_pages", outcome=Found(b'{"sum":7}'))
    async with a_toolset(tmp_path, found) as toolset:
        agent = TaskAgent(toolset, check=schema_errors)
        with pytest.raises(TaskFailed) as failed:
            await agent.run(READ, LOCAL, output_schema=schema)
        assert failed.value.code is TaskCode.STEP_EXECUTION_FAILED
        assert failed.value.error.details["errors"] == ["$: 'total' is a required property"]
        with pytest.raises(TaskFailed) as failed:
            await agent.run(READ, LOCAL, output_schema={"type": "nonsense"})
        assert "schema is not one" in failed.value.error.details["errors"][0]
        with pytest.raises(TaskFailed) as failed:
            await agent.run("be nice", LOCAL)
        assert failed.value.code is TaskCode.INVALID_PARAMETER


async def test_an_agents_tools_run_through_the_engine(toolset: Toolset, site: Site) -> None:
    agent = TaskAgent(toolset, check=schema_errors)
    engine = BrowserEngine(toolset, agent, trust=TrustLevel.LOCAL)
    names = {tool.name: tool for tool in engine.tools()}
    assert names["browser.get_task_run"].level is Level.READ
    assert names["browser.submit_and_verify"].level is Level.WRITE
    assert names["browser.batch_extract_pages"].repeatable

    async def call(tool: str, **args: Any) -> Any:
        return await engine.run(ToolRequest("req_1", tool, args), update=said.append)

    said: list[str] = []
    read = await call("browser.batch_extract_pages", urls=[site.url("/n/1")])
    assert read.ok
    assert read.data["result"]["items"][0]["title"] == "Page 1"
    assert said == ["1/1\n"]
    shown = await call("browser.get_task_run", runId=read.data["runId"])
    assert shown.data["status"] == "succeeded"
    goal = await call("browser.task", goal=f"read {site.url('/n/3')}")
    assert goal.data["output"]["items"][0]["title"] == "Page 3"
    wrong = await call("browser.batch_extract_pages", urls=[])
    assert (wrong.exit_code, wrong.outcome) == (1, Outcome.NOT_STARTED)
    assert wrong.data["errorCode"] == "INVALID_PARAMETER"
    failed = await call("browser.batch_extract_pages", urls=["bad"])
    assert failed.exit_code == 1
    for args in ({}, {"goal": 5}, {"goal": "x", "inputs": []}, {"goal": "x", "outputSchema": 1}):
        assert (await call("browser.task", **args)).data["errorCode"] == "INVALID_PARAMETER"


async def test_a_remote_agent_is_not_offered_what_it_may_not_run(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, catalog=load_templates()) as toolset:
        engine = BrowserEngine(toolset, TaskAgent(toolset, check=schema_errors))
        assert "browser.login_keep_session" not in {tool.name for tool in engine.tools()}


@pytest.mark.parametrize("while_submitting", [False, True])
async def test_an_agent_that_is_stopped_takes_its_browser_task_with_it(
    tmp_path: Path, while_submitting: bool
) -> None:
    gate, journal = Gate(), SlowJournal()
    async with a_toolset(tmp_path, gate.template, journal=journal) as toolset:
        engine = BrowserEngine(
            toolset, TaskAgent(toolset, check=schema_errors), trust=TrustLevel.LOCAL
        )
        if while_submitting:
            journal.slow = "task_queued"
        asking = asyncio.ensure_future(
            engine.run(ToolRequest("req_1", "browser.gated", {"name": "a"}))
        )
        await (journal.written.wait() if while_submitting else until(lambda: gate.started))
        asking.cancel()
        journal.told.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (canceled,) = toolset.runtime.listed()
        assert canceled.status is TaskStatus.CANCELED
        assert toolset.runtime.running == 0


async def test_a_goal_whose_run_cannot_be_written_down_is_told_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "WRITING_PAUSES_S", (0.0,))
    clock = SystemClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())

    async with a_toolset(
        tmp_path, instant("batch_extract_pages"), clock=clock, journal=journal
    ) as toolset:
        journal.refuses, journal.times = "task_ended", 1000
        agent = TaskAgent(toolset, check=schema_errors)
        with pytest.raises(TaskFailed) as failed:
            await agent.run(READ, LOCAL)
        assert failed.value.code is TaskCode.EXECUTION_ERROR
        (left,) = toolset.runtime.listed()
        assert failed.value.error.details["runId"] == left.run_id
