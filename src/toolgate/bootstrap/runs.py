"""Runs, their agents, their deadlines and their retention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from toolgate.bootstrap.installation import Core, Installation
from toolgate.bootstrap.tools import Execution
from toolgate.evidence.audit import AuditLog, prune
from toolgate.journal.dispatcher import Dispatcher, OnDue
from toolgate.journal.journal import Row
from toolgate.runs import records
from toolgate.runs.advance import Advance
from toolgate.runs.agents.agent import Agent
from toolgate.runs.agents.echo import EchoAgent
from toolgate.runs.agents.http import HttpAgents
from toolgate.runs.agents.llm import LlmAgent
from toolgate.runs.agents.registry import Agents
from toolgate.runs.agents.script import ScriptAgent
from toolgate.runs.client_tools import SessionTools
from toolgate.runs.conversations import Conversations
from toolgate.runs.originals import Originals
from toolgate.runs.retention import Forget, Retention
from toolgate.runs.runs import Limits, Runs
from toolgate.secrets.approver_view import ApproverView
from toolgate.settings import Settings
from toolgate.tools.approval_records import COLLECTION as APPROVALS
from toolgate.tools.calls import EXECUTIONS

DAY_MS: Final = 86_400_000
DRAIN_S: Final = 5.0  # for running runs after SIGTERM


class StartRuns(Protocol):
    """Begin the work; `forgets` and `is_online` are for the retention."""

    def __call__(
        self,
        more_due: Mapping[str, OnDue],
        *,
        is_online: Callable[[str], bool] = ...,
        forgets: Sequence[Forget] = ...,
    ) -> None: ...


async def open_runs(
    settings: Settings,
    installation: Installation,
    core: Core,
    execution: Execution,
    dispatcher: Dispatcher,
) -> tuple[Runs, StartRuns]:
    """The runs, and a function that begins their work, given the other deadlines."""
    agents = await load_agents(settings, installation, core, execution.audit)
    session_tools = SessionTools(core.journal)
    originals = Originals(core.journal, core.seal, ApproverView(core.patterns).show)
    await originals.load()
    runs = Runs(
        journal=core.journal,
        dispatcher=dispatcher,
        gate=execution.gate,
        clock=core.clock,
        new_id=core.new_id,
        agents=agents,
        session_tools=session_tools,
        originals=originals,
        redact=core.redactor.text,
        redact_fields=core.redactor.fields,
        limits=Limits(
            tool_ms=settings.tool_timeout_ms,
            approval_ms=settings.approval_timeout_ms,
            agent_ms=settings.agent_timeout_ms,
        ),
    )
    await runs.allow_for_downtime()

    async def approval_expired(row: Row) -> None:
        await execution.approvals.on_due(row)

    on_due: dict[str, OnDue] = {
        records.AGENT_DEADLINES: runs.on_agent_deadline,
        EXECUTIONS: runs.on_call_deadline,
        records.REQUESTS: runs.on_request_expired,
        APPROVALS: approval_expired,
    }
    advance = Advance(runs, session_tools, Conversations(core.journal))

    def start(
        more_due: Mapping[str, OnDue],
        *,
        is_online: Callable[[str], bool] = lambda _: False,
        forgets: Sequence[Forget] = (),
    ) -> None:
        async def forget_tools(before: int) -> int:
            now = core.clock.now_ms()
            return await session_tools.forget(before, now=now, is_online=is_online)

        async def forget_audit(_: int) -> int:
            if settings.audit_keep_days:
                now = core.clock.now_ms()
                await prune(core.journal, before=now - settings.audit_keep_days * DAY_MS, now=now)
            return 0

        runs.watch_approvals(core.bus)
        dispatcher.start(advance, {**on_due, **more_due})
        installation.on_stop(lambda: dispatcher.drain(seconds=DRAIN_S))
        start_retention(installation, core, forget_tools, forget_audit, *forgets)

    return runs, start


async def load_agents(
    settings: Settings, installation: Installation, core: Core, trail: AuditLog
) -> Agents:
    """The built-in agents, and those registered by their URL."""
    reach = HttpAgents(core.patterns.known_stream)
    installation.on_stop(reach.close)
    assistant = LlmAgent(settings.model)
    installation.on_stop(assistant.close)
    builtin: dict[str, Agent] = {
        "echo": EchoAgent(),
        "script": ScriptAgent(),
        "assistant": assistant,
    }
    agents = Agents(core.journal, builtin, reach.agent, core.seal, trail, core.learn)
    await agents.load()
    return agents


def start_retention(installation: Installation, core: Core, *more: Forget) -> None:
    retention = Retention(core.journal, core.clock, more=more)
    retention.start()
    installation.on_stop(retention.stop)
