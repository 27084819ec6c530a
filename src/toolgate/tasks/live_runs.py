"""A run in memory, and how it is carried out: its template is run, in a browser session.

Whatever happens there becomes the command that ends the run. When it is its turn, and what is
written down of it, is for `runtime.py` to say.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolgate.browser.browser import BrowserSession
from toolgate.core.enums import Level, TaskCode, TaskStatus
from toolgate.core.errors import ToolgateError
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tasks import records
from toolgate.tasks.artifacts import Artifacts
from toolgate.tasks.document_reader import DocumentReader
from toolgate.tasks.outlines import outline_of
from toolgate.tasks.secrets import Scrubber
from toolgate.tasks.sessions import Sessions
from toolgate.tasks.state import Fail, Finish, TaskError, TaskRun, status_of
from toolgate.tasks.template import TaskOutcome, Template, Work, error_of
from toolgate.tools.outcomes import Allowed

log = logging.getLogger(__name__)

MAX_FAILURES_TOLD: Final = 20
MAX_INLINE: Final = 1_048_576  # a larger result is answered as its outline, read as its artifact

Progress = Callable[[int, int], None]


@dataclass(eq=False)
class LiveRun:
    """A run in memory; `inputs` and `request` only while it has not ended.

    A run with a gate call of its own has the `request` of that call, and the `call` itself once it
    is allowed.
    """

    stored: records.Stored
    template: Template | None = None
    inputs: Any = None
    request: ToolRequest | None = None
    call: Allowed | None = None
    found: Finish | Fail | None = None  # by the engine, for the run's end
    decided: asyncio.Event = field(default_factory=asyncio.Event)  # it waits for no person
    client: str = ""
    scrubber: Scrubber = field(default_factory=Scrubber)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: list[Progress] = field(default_factory=list)
    worker: asyncio.Task[None] | None = None
    deadline: asyncio.TimerHandle | None = None
    artifact_ids: list[str] = field(default_factory=list)
    done_steps: int = 0
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def run(self) -> TaskRun:
        return self.stored.run


async def carry_out(
    live: LiveRun, *, artifacts: Artifacts, sessions: Sessions, documents: DocumentReader
) -> Finish | Fail:
    """Run the template; whatever happens in it becomes the command that ends the run."""
    template = live.template
    assert template is not None
    work: Work | None = None
    try:
        session = await _session(live, template, sessions)
        work = _work_of(live, session, artifacts, sessions, documents)
        outcome = await template.run(live.inputs, work)
        return await _finished(live, outcome, artifacts)
    except ToolgateError as failed:
        error = error_of(failed)
    except ExceptionGroup as several:
        error = _first_error(several)
    except Exception:
        log.exception("task_broke run_id=%s template=%s", live.run.run_id, template.id)
        error = TaskError(TaskCode.EXECUTION_ERROR, "the task broke; the server's log has why")
    if work is not None and not error.failed_step:
        error = replace(error, failed_step=work.step)
    return Fail(_scrubbed(error, live.scrubber), tuple(live.artifact_ids), live.done_steps)


def output_of(live: LiveRun, command: Finish | Fail) -> ToolOutput:
    """The output of a run's own gate call: what became of the run, and where its result is."""
    status = command.status if isinstance(command, Finish) else TaskStatus.FAILED
    error = command.error
    data: dict[str, JsonValue] = {
        "runId": live.run.run_id,
        "status": status.value,
        "artifactIds": [*command.artifact_ids],
    }
    if error is None:
        return ToolOutput(0, data=data)
    return ToolOutput(1, stderr=f"{error.code}: {error.message}", data=data)


async def _finished(live: LiveRun, outcome: TaskOutcome, artifacts: Artifacts) -> Finish:
    result = live.scrubber.json(outcome.result)
    artifact_id = await _keep_json(live, artifacts, result, "result.json")
    outline = ""
    if len(result) > MAX_INLINE:
        outline = await _keep_json(live, artifacts, outline_of(result, artifact_id), "outline.json")
    status = TaskStatus.SUCCEEDED if outcome.success else TaskStatus.FAILED
    if outcome.success and outcome.summary is not None:
        status = status_of(outcome.summary)
    error = None
    if status is TaskStatus.FAILED:
        error = _scrubbed(_error_of_outcome(outcome), live.scrubber)
    return Finish(
        status,
        artifact_id,
        (artifact_id, *live.artifact_ids),
        live.run.total_steps,
        error,
        outline,
    )


async def _keep_json(live: LiveRun, artifacts: Artifacts, content: bytes, name: str) -> str:
    artifact = await artifacts.keep(
        content,
        run_id=live.run.run_id,
        name=name,
        mime_type="application/json",
        owner=live.run.owner,
    )
    return artifact.artifact_id


async def _session(live: LiveRun, template: Template, sessions: Sessions) -> BrowserSession:
    run = live.run
    if not run.owns_session:
        return sessions.get(run.session_id, trust=run.trust, viewer=run.owner)
    return await sessions.open(
        run.session_id,
        trust=run.trust,
        client=live.client,
        owner=run.owner,
        media=template.media,
        only_reads=template.only_reads,
    )


def _work_of(
    live: LiveRun,
    session: BrowserSession,
    artifacts: Artifacts,
    sessions: Sessions,
    documents: DocumentReader,
) -> Work:
    run, template = live.run, live.template
    assert template is not None

    async def keep(content: bytes, *, name: str, mime_type: str) -> str:
        artifact = await artifacts.keep(
            content, run_id=run.run_id, name=name, mime_type=mime_type, owner=run.owner
        )
        live.artifact_ids.append(artifact.artifact_id)
        return artifact.artifact_id

    def report(done: int, total: int) -> None:
        live.done_steps = done
        for listener in tuple(live.listeners):
            listener(done, total)

    async def reopen() -> BrowserSession:
        return await sessions.reopen(run.session_id)

    return Work(
        run_id=run.run_id,
        session_id=run.session_id,
        trust=run.trust,
        session=session,
        keep=keep,
        report=report,
        reopen=reopen if run.owns_session else None,
        keep_session=lambda: sessions.keep(run.session_id),
        documents=documents,
        submits=template.level is not Level.READ,
        scrubber=live.scrubber,
    )


def _first_error(several: "ExceptionGroup[Exception]") -> TaskError:
    first: BaseException = several
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, ToolgateError):
        return error_of(first)
    log.error("task_broke", exc_info=first)
    return TaskError(TaskCode.EXECUTION_ERROR, "the task broke; the server's log has why")


def _error_of_outcome(outcome: TaskOutcome) -> TaskError:
    if outcome.message:
        return TaskError(outcome.code, outcome.message, details={"items": list(outcome.failures)})
    summary = outcome.summary
    message = f"{summary.failed} of {summary.total} items failed" if summary else "a step failed"
    told = list(outcome.failures[:MAX_FAILURES_TOLD])
    return TaskError(outcome.code, message, details={"items": told})


def _scrubbed(error: TaskError, scrubber: Scrubber) -> TaskError:
    return replace(
        error,
        message=scrubber.text(error.message),
        failed_step=scrubber.text(error.failed_step),
        details=scrubber.value(error.details),
    )
