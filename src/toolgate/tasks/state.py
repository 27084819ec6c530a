"""A browser task run: its states, its codes and its transitions.

Pure: commands and times come in, events and new states go out. Templates read pages; the runtime
keeps runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from toolgate.access.devices import kind_of
from toolgate.core.enums import Level, TaskCode, TaskMode, TaskStatus, TrustLevel
from toolgate.core.errors import Conflict, ToolgateError
from toolgate.core.tools import Caller

CHUNK_LIMIT: Final = 262_144  # seed 004 §4.5 artifactMaxChunkSize
RUN_TTL_MS: Final = 30 * 60_000  # seed 004 §4.1.1
ARTIFACT_TTL_MS: Final = 24 * 3_600_000  # seed 004 §4.5
AUTO_SYNC_URLS: Final = 10
OPERATOR: Final = "operator"  # sees everyone's runs
OPERATORS_CALLER: Final = Caller(device=OPERATOR, user=OPERATOR, role=OPERATOR, level=Level.WRITE)


TRANSITIONS: Final[Mapping[TaskStatus, frozenset[TaskStatus]]] = {
    TaskStatus.QUEUED: frozenset({TaskStatus.RUNNING, TaskStatus.CANCELED, TaskStatus.FAILED}),
    TaskStatus.RUNNING: frozenset(
        {
            TaskStatus.QUEUED,  # interrupted, and safe to run again
            TaskStatus.SUCCEEDED,
            TaskStatus.PARTIAL_SUCCESS,
            TaskStatus.FAILED,
            TaskStatus.CANCELED,
        }
    ),
    TaskStatus.SUCCEEDED: frozenset(),
    TaskStatus.FAILED: frozenset(),
    TaskStatus.PARTIAL_SUCCESS: frozenset(),
    TaskStatus.CANCELED: frozenset(),
}
TERMINAL: Final = frozenset(status for status, after in TRANSITIONS.items() if not after)


NEXT_ACTIONS: Final[Mapping[TaskCode, tuple[str, ...]]] = {
    TaskCode.ELEMENT_NOT_FOUND: (
        "run batch_extract_pages on the URL",
        "change the locator",
        "retry",
    ),
    TaskCode.NAVIGATION_TIMEOUT: ("raise timeoutMs", "check that the site answers", "retry"),
    TaskCode.SESSION_NOT_FOUND: ("leave sessionId out", "run login_keep_session again"),
    TaskCode.PAGE_CRASHED: ("retry", "leave the page out"),
    TaskCode.INVALID_PARAMETER: (
        "call list_task_templates for the input schema",
        "correct and retry",
    ),
    TaskCode.EXECUTION_ERROR: ("read details", "retry"),
    TaskCode.TEMPLATE_NOT_FOUND: ("call list_task_templates",),
    TaskCode.RUN_NOT_FOUND: ("call list_task_runs", "submit again"),
    TaskCode.RUN_TIMEOUT: ("raise timeoutMs", "split the batch", "use mode async"),
    TaskCode.RUN_CANCELED: ("submit again",),
    TaskCode.STEP_EXECUTION_FAILED: ("retry the failed items alone",),
    TaskCode.TRUST_LEVEL_NOT_ALLOWED: (
        "use the stdio transport",
        "choose another template or target",
    ),
    TaskCode.TEMPLATE_VERSION_UNSUPPORTED: (
        "call list_task_templates",
        "leave templateVersion out",
    ),
    TaskCode.ARTIFACT_NOT_FOUND: ("call get_task_run and read artifactIds",),
    TaskCode.ARTIFACT_EXPIRED: ("submit the task again",),
    TaskCode.TPL_LOGIN_FIELD_NOT_FOUND: (
        "give selectors in fields",
        "run batch_extract_pages on startUrl",
    ),
}


@dataclass(frozen=True, slots=True)
class TaskError:
    """The reason why a run, or one item of it, failed. The runtime removes secrets from it."""

    code: TaskCode
    message: str
    failed_step: str = ""
    details: Any = None  # any JSON value
    hint: str = ""  # instead of the code's own


class TaskFailed(ToolgateError):
    """Raised by the runtime and its templates; becomes an error answer or a run's error."""

    def __init__(
        self,
        code: TaskCode,
        message: str,
        *,
        failed_step: str = "",
        details: Any = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.error = TaskError(code, message, failed_step, details, hint)

    @property
    def code(self) -> TaskCode:
        return self.error.code


def owner_of(caller: Caller) -> str:
    """The name under which a caller owns runs, artifacts and sessions."""
    if kind_of(caller.device) is not None:
        return caller.device  # of a named token, which begins with its kind
    if caller.role == "device":
        return f"device:{caller.device}"
    if caller.role:
        return caller.role  # operator, local, loopback, executor, scheduler
    return f"user:{caller.user}" if caller.user else f"session:{caller.session}"


def may_see(viewer: str, owner: str) -> bool:
    return viewer in {owner, OPERATOR}


@dataclass(frozen=True, slots=True)
class Summary:
    total: int
    succeeded: int

    @property
    def failed(self) -> int:
        return self.total - self.succeeded


def status_of(summary: Summary) -> TaskStatus:
    """All: succeeded. At least half: partial success. Less: failed."""
    if summary.succeeded == summary.total:
        return TaskStatus.SUCCEEDED
    if summary.succeeded * 2 >= summary.total:
        return TaskStatus.PARTIAL_SUCCESS
    return TaskStatus.FAILED


@dataclass(frozen=True, slots=True)
class TaskRun:
    run_id: str
    template_id: str
    template_version: str
    session_id: str
    owns_session: bool
    trust: TrustLevel
    mode: TaskMode  # sync or async: what it really started as
    timeout_ms: int
    inputs: Any  # as given, without secrets; None where they cannot be kept, and once it is over
    created_at: int
    updated_at: int
    status: TaskStatus = TaskStatus.QUEUED
    idempotency_key: str = ""
    done_steps: int = 0
    total_steps: int = 1
    started_at: int | None = None
    ended_at: int | None = None
    attempts: int = 0
    result_artifact: str = ""
    outline_artifact: str = ""  # the result without its large parts, where it is too large
    artifact_ids: tuple[str, ...] = ()
    error: TaskError | None = None
    raised: bool = False  # the error came from the executor, not from what a template found
    owner: str = ""
    caller: Caller | None = None  # of the run's own gate call; None: it runs within another call
    waits_for: str = ""  # in a view of the run: the text of the approval that it waits for

    def __post_init__(self) -> None:
        failed = self.status in {TaskStatus.FAILED, TaskStatus.CANCELED}
        assert failed == (self.error is not None), "a failed run, and no other, has an error"

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    def elapsed_ms(self, now: int) -> int:
        """The time since it began to run; 0 while it waits."""
        if self.started_at is None:
            return 0
        return max(0, (now if self.ended_at is None else self.ended_at) - self.started_at)

    def is_kept(self, now: int) -> bool:
        """Return True while the run and its idempotency key can be found."""
        return self.ended_at is None or now < self.ended_at + RUN_TTL_MS


@dataclass(frozen=True, slots=True)
class Started:
    at: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """The run is queued again after its process died; its template is repeatable."""

    at: int


@dataclass(frozen=True, slots=True)
class Ended:
    at: int
    status: TaskStatus
    error: TaskError | None = None
    result_artifact: str = ""
    artifact_ids: tuple[str, ...] = ()
    done_steps: int = 0
    raised: bool = False
    outline_artifact: str = ""


TaskEvent = Started | Requeued | Ended


@dataclass(frozen=True, slots=True)
class Start:
    pass


@dataclass(frozen=True, slots=True)
class Finish:
    status: TaskStatus
    result_artifact: str
    artifact_ids: tuple[str, ...]
    done_steps: int
    error: TaskError | None = None
    outline_artifact: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    error: TaskError
    artifact_ids: tuple[str, ...] = ()
    done_steps: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    artifact_ids: tuple[str, ...] = ()
    done_steps: int = 0


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End or requeue a run whose process died."""

    repeatable: bool


TaskCommand = Start | Finish | Fail | Cancel | Interrupt
MAX_ATTEMPTS: Final = 3  # a run that kills its process is not tried for ever


def decide(run: TaskRun, command: TaskCommand, *, now: int) -> TaskEvent:
    """Turn a command into an event; raises Conflict if the run's state does not allow it."""
    match command:
        case Start():
            event: TaskEvent = Started(now)
        case Finish():
            event = Ended(
                now,
                command.status,
                command.error,
                command.result_artifact,
                command.artifact_ids,
                command.done_steps,
                outline_artifact=command.outline_artifact,
            )
        case Fail():
            event = Ended(
                now,
                TaskStatus.FAILED,
                command.error,
                "",
                command.artifact_ids,
                command.done_steps,
                raised=True,
            )
        case Cancel():
            event = Ended(
                now,
                TaskStatus.CANCELED,
                TaskError(TaskCode.RUN_CANCELED, "the run was canceled"),
                "",
                command.artifact_ids,
                command.done_steps,
                raised=True,
            )
        case Interrupt():
            event = _interrupted(run, repeatable=command.repeatable, now=now)
        case _:
            assert_never(command)
    if _target(event) not in TRANSITIONS[run.status]:
        raise Conflict(f"{run.run_id} is {run.status} and cannot become {_target(event)}")
    return event


def _interrupted(run: TaskRun, *, repeatable: bool, now: int) -> TaskEvent:
    if repeatable and run.attempts < MAX_ATTEMPTS and run.status is TaskStatus.RUNNING:
        return Requeued(now)
    begun = run.started_at is not None
    error = TaskError(
        TaskCode.EXECUTION_ERROR,
        "the run was interrupted by a restart",
        details={
            "interrupted": True,
            "outcome": "may_have_executed" if begun else "not_started",
        },
    )
    return Ended(now, TaskStatus.FAILED, error, raised=True)


def _target(event: TaskEvent) -> TaskStatus:
    match event:
        case Started():
            return TaskStatus.RUNNING
        case Requeued():
            return TaskStatus.QUEUED
        case Ended():
            return event.status
        case _:
            assert_never(event)


def reduce(run: TaskRun, event: TaskEvent) -> TaskRun:
    """The run after an event."""
    match event:
        case Started():
            return replace(
                run,
                status=TaskStatus.RUNNING,
                started_at=event.at,
                updated_at=event.at,
                attempts=run.attempts + 1,
            )
        case Requeued():
            return replace(
                run,
                status=TaskStatus.QUEUED,
                started_at=None,
                updated_at=event.at,
                done_steps=0,
            )
        case Ended():
            return replace(
                run,
                status=event.status,
                inputs=None,  # nobody runs it again, and they may be large
                ended_at=event.at,
                updated_at=event.at,
                error=event.error,
                result_artifact=event.result_artifact,
                outline_artifact=event.outline_artifact,
                artifact_ids=event.artifact_ids,
                done_steps=event.done_steps,
                raised=event.raised,
            )
        case _:
            assert_never(event)


def starts_sync(template_id: str, *, url_count: int, mode: TaskMode) -> bool:
    """Return True if the caller waits for the end: `auto` waits unless a batch is large."""
    if mode is TaskMode.AUTO:
        return not (template_id == "batch_extract_pages" and url_count > AUTO_SYNC_URLS)
    return mode is TaskMode.SYNC


@dataclass(frozen=True, slots=True)
class Cut:
    """The piece of an artifact to answer with, in bytes."""

    offset: int
    length: int
    complete: bool


def cut_chunk(
    window: bytes, *, window_at: int, offset: int, total: int, limit: int, text: bool
) -> Cut:
    """The place to cut so that no character is split.

    `window` lies at `window_at` and reaches three bytes beyond the chunk on both sides, where there
    is so much. An offset inside a character goes back to its start: a reader that walks in strides
    of `limit` gets the character that the chunk before had to leave out.
    """
    if offset >= total:
        return Cut(offset, 0, complete=True)
    start = offset - window_at
    while text and start > 0 and _continues(window[start]):
        start -= 1
    end = min(offset - window_at + limit, len(window))
    while text and end < len(window) and end > start and _continues(window[end]):
        end -= 1
    if end == start:  # a limit smaller than one character
        end = start + 1
        while end < len(window) and _continues(window[end]):
            end += 1
    return Cut(window_at + start, end - start, complete=window_at + end >= total)


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80
