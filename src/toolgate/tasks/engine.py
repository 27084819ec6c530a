"""The engine of `browser.*`: what the gate runs once it has allowed a call.

The call of a task run (`runtime.py`) has the run's id: the engine carries that run out. Any other
call is an agent's, a command's or the executor's: `browser.<tool>` is one of the seven,
`browser.<template>` runs a template with the arguments as its inputs, `browser.task` takes a goal.
What these run is part of their call and begins no other.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import Level, Outcome, TaskCode, TrustLevel
from toolgate.core.errors import ToolgateError
from toolgate.core.tools import JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.tasks.runtime import PREFIX
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.template import Template
from toolgate.tasks.toolset import RUN, Answer, Asker, Call, Toolset, error_answer, schema_of
from toolgate.tools.engine import Update, no_update

GOAL: Final = "task"
_READS: Final = frozenset(wire.TOOLS) - {RUN, "cancel_task_run"}
_NOT_STARTED: Final = frozenset(
    {
        TaskCode.INVALID_PARAMETER,
        TaskCode.TEMPLATE_NOT_FOUND,
        TaskCode.TEMPLATE_VERSION_UNSUPPORTED,
        TaskCode.TRUST_LEVEL_NOT_ALLOWED,
        TaskCode.SESSION_NOT_FOUND,
    }
)


def tools_of(templates: Mapping[str, Template], trust: TrustLevel) -> Sequence[Tool]:
    seven = [
        Tool(
            name=PREFIX + name,
            description=f"Browser tasks: {name}.",
            level=Level.READ if name in _READS else Level.WRITE,
            schema=schema_of(asks),
            repeatable=name in _READS,
        )
        for name, (asks, _) in wire.TOOLS.items()
    ]
    offered = [
        Tool(
            name=PREFIX + template.id,
            description=template.description,
            level=template.level,
            schema=schema_of(template.inputs),
            repeatable=template.repeatable,
        )
        for template in templates.values()
        if trust in template.trust
    ]
    goal = Tool(
        name=PREFIX + GOAL,
        description="Reach a goal in the browser; the output fits outputSchema where given.",
        level=Level.WRITE,
        schema=_GOAL_SCHEMA,
        repeatable=False,
    )
    return [*seven, *offered, goal]


class BrowserEngine:
    def __init__(
        self, toolset: Toolset, agent: TaskAgent, *, trust: TrustLevel = TrustLevel.REMOTE
    ) -> None:
        """`trust` is that of agents, commands and the executor; a run's own call has its run's."""
        self._toolset = toolset
        self._agent = agent
        self._trust = trust

    @property
    def ref(self) -> str:
        return f"browser@{version('toolgate')}"

    def tools(self) -> Sequence[Tool]:
        """The tools as an agent sees them."""
        return tools_of(self._toolset.runtime.templates, self._trust)

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        output = await self._toolset.runtime.carry_out(request.request_id)
        return output or await self._run_within(request, update)

    async def _run_within(self, request: ToolRequest, update: Update) -> ToolOutput:
        """Run a task as part of the caller's own call."""
        client = f"agent:{request.caller.session or request.run_id or request.request_id}"

        def progress(done: int, total: int) -> None:
            update(f"{done}/{total}\n")

        begun: list[str] = []
        asker = Asker(self._trust, request.caller, client, in_call=True)
        call = Call(asker, progress=progress, began=begun.append)
        try:
            answer = await self._answer(request.tool.removeprefix(PREFIX), request.args, call)
        except asyncio.CancelledError:
            for run_id in begun:  # what has ended stays as it is
                with contextlib.suppress(ToolgateError):
                    await self._toolset.runtime.cancel(run_id)
            raise
        except TaskFailed as failed:
            told = error_answer(failed.error)
            outcome = Outcome.NOT_STARTED if failed.code in _NOT_STARTED else Outcome.EXECUTED
            return ToolOutput(1, stderr=_json(told), data=told, outcome=outcome)
        return ToolOutput(int("errorCode" in answer), stdout=_json(answer), data=answer)

    async def _answer(self, name: str, args: Mapping[str, JsonValue], call: Call) -> Answer:
        if self._toolset.has(name):
            return await self._toolset.call(name, args, call)
        if name == GOAL:
            return await self._goal(args, call)
        arguments = {"templateId": name, "inputs": dict(args), "options": {"mode": "sync"}}
        return await self._toolset.call(RUN, arguments, call)

    async def _goal(self, args: Mapping[str, JsonValue], call: Call) -> Answer:
        goal, inputs, schema = args.get("goal"), args.get("inputs"), args.get("outputSchema")
        if not isinstance(goal, str) or not isinstance(inputs, dict | None):
            raise TaskFailed(TaskCode.INVALID_PARAMETER, "goal is a text, inputs an object")
        if not isinstance(schema, dict | None):
            raise TaskFailed(TaskCode.INVALID_PARAMETER, "outputSchema is an object")
        return await self._agent.run(goal, call, inputs=inputs, output_schema=schema)


_GOAL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "goal": {"type": "string"},
        "inputs": {"type": "object"},
        "outputSchema": {"type": "object"},
    },
    "required": ["goal"],
}


def _json(answer: Answer) -> str:
    return msgspec.json.encode(answer).decode()
