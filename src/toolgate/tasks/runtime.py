"""Browser task runs: submitted, queued, run, ended once, kept for a while.

A submission is one call of the gate, under the run's id: the run's row goes into the commit of its
`begin`, the run's end into that of its `finish`. A submission from within a gate call (an agent's,
a command's) has no call of its own. The journal has the truth; this has one copy of it in memory,
and is its only writer. It does not know how a run was asked for (`toolset.py`) nor how it is carried
out (`live_runs.py`).
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from toolgate.browser.browser import Browser
from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome, TaskCode, TaskMode, TaskStatus, TrustLevel
from toolgate.core.errors import Conflict, Invalid, ToolgateError, Unavailable
from toolgate.core.ids import NewId
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.journal.blobs import Blobs
from toolgate.journal.bus import Bus, Subscription
from toolgate.journal.journal import Event, Journal, Operation
from toolgate.secrets.addresses import secrets_in
from toolgate.tasks import records
from toolgate.tasks.artifacts import Artifacts
from toolgate.tasks.document_reader import DocumentReader
from toolgate.tasks.live_runs import LiveRun, Progress, carry_out, output_of
from toolgate.tasks.secrets import Scrubber, without_secrets
from toolgate.tasks.sessions import Sessions
from toolgate.tasks.state import (
    OPERATOR,
    Cancel,
    Fail,
    Finish,
    Interrupt,
    Start,
    TaskCommand,
    TaskError,
    TaskFailed,
    TaskRun,
    decide,
    may_see,
    owner_of,
    reduce,
)
from toolgate.tasks.template import Template, error_of, refused_by
from toolgate.tools.definitions import failed
from toolgate.tools.outcomes import (
    APPROVALS,
    DECIDED,
    EXPIRED,
    Begun,
    Denied,
    Pending,
    ToolGate,
)

log = logging.getLogger(__name__)

PREFIX: Final = "browser."  # of the names of our tools and templates at the gate
MAX_RUNNING: Final = 5  # seed 004 §4.5 maxConcurrentRuns
MAX_QUEUED: Final = 10_000  # every queue has a bound
SWEEP_S: Final = 60.0
RESULTS_AT_HAND: Final = 16
WRITING_PAUSES_S: Final = (0.2, 1.0, 5.0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submission:
    template: Template
    inputs: Any  # an instance of the template's inputs
    given: Any  # the same as JSON, as it came
    trust: TrustLevel
    sync: bool
    caller: Caller
    timeout_ms: int
    in_call: bool = False  # the gate has let it in, in the call that it is part of
    session_id: str = ""
    idempotency_key: str = ""
    client: str = ""


class TaskRuntime:
    def __init__(
        self,
        *,
        gate: ToolGate,
        journal: Journal,
        bus: Bus,
        blobs: Blobs,
        browser: Browser,
        clock: Clock,
        new_id: NewId,
        templates: Mapping[str, Template],
        max_running: int = MAX_RUNNING,
        session_grace_s: float = 60.0,
    ) -> None:
        self.templates = templates
        self.max_running = max_running
        self.artifacts = Artifacts(journal=journal, blobs=blobs, clock=clock, new_id=new_id)
        self.sessions = Sessions(browser=browser, clock=clock, grace_s=session_grace_s)
        self._documents = DocumentReader()
        self._gate = gate
        self._journal = journal
        self._bus = bus
        self._clock = clock
        self._new_id = new_id
        # In the order of their ids, which is that of their times.
        self._runs: dict[str, LiveRun] = {}
        self._waiting: dict[str, str] = {}  # by run: the text of the approval that it waits for
        self._approvals: Subscription | None = None
        self._queue: deque[str] = deque()
        self._running: set[str] = set()
        self._results: dict[str, bytes] = {}  # the last few, for those who poll
        self._submitting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def start(self) -> None:
        """Load the runs of an earlier process: queued runs go on, running ones were interrupted.

        The gate must have recovered its own calls before.
        """
        self._approvals = self._bus.subscribe(APPROVALS, self._heard)
        async for stored in records.load(self._journal):
            live = LiveRun(stored)
            self._runs[stored.run.run_id] = live
            if stored.run.is_over:
                live.over.set()
            else:
                await self._recover(live)
        self._spawn(self._sweep_now_and_then())
        self._fill()

    async def close(self) -> None:
        """Stop; what runs is recorded as interrupted, or queued again where that is safe."""
        self._closing = True
        if self._approvals is not None:
            self._approvals.close()
        for run_id in list(self._running):
            live = self._runs[run_id]
            if live.deadline is not None:
                live.deadline.cancel()
            with contextlib.suppress(Conflict, Unavailable):  # the next start finds it running
                await self._command(live, Interrupt(repeatable=self._can_repeat(live)))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sessions.shut()
        await self._documents.close()

    async def submit(
        self, submission: Submission, *, began: Callable[[str], None] = lambda _run_id: None
    ) -> tuple[TaskRun, bool]:
        """The run, queued or already running, and whether it was there before.

        `began` is called with the run's id also if the caller is cancelled meanwhile.
        """

        def tell(done: asyncio.Task[tuple[TaskRun, bool]]) -> None:
            if not done.cancelled() and done.exception() is None:
                began(done.result()[0].run_id)

        submitting = self._spawn(self._submit(submission))
        submitting.add_done_callback(tell)  # there are callers that cannot wait once they must go
        try:
            await asyncio.shield(submitting)
        finally:
            if not submitting.done():
                await asyncio.wait([submitting])  # for as long as a commit takes
        return submitting.result()

    async def _submit(self, submission: Submission) -> tuple[TaskRun, bool]:
        async with self._submitting:  # so that equal keys at the same time make one run
            known = await self._known(submission)
            if known is not None:
                return known, True
            if submission.session_id:
                self.sessions.get(
                    submission.session_id,
                    trust=submission.trust,
                    client=submission.client,
                    viewer=owner_of(submission.caller),
                )
            if len(self._queue) + len(self._waiting) >= MAX_QUEUED:
                raise TaskFailed(TaskCode.EXECUTION_ERROR, "too many runs are waiting")
            live = self._new(submission)
            operations = records.queue(live.run)
            if submission.idempotency_key:
                row = await self._journal.get(records.KEYS, _key_of(submission))
                operations.append(records.claim(live.run, expected=row.version if row else 0))
            outcome = await self._begin(live, operations)
            if isinstance(outcome, Denied):
                raise refused_by(outcome)
            live.stored = records.Stored(live.run, 1)
            self._runs[live.run.run_id] = live
            self._admit(live, outcome)
        if isinstance(outcome, Pending):  # a decision before now was not heard
            self._spawn(self._begin_again(live))
        return live.run, False

    async def _begin(self, live: LiveRun, operations: Sequence[Operation]) -> Begun | None:
        """Commit a new run with the beginning of its call; None where it has none of its own."""
        if live.request is None:
            await self._journal.commit(*operations)
            return None
        try:
            return await self._gate.begin(
                live.request,
                also=lambda outcome: () if isinstance(outcome, Denied) else operations,
            )
        except Invalid as wrong:
            raise TaskFailed(TaskCode.INVALID_PARAMETER, str(wrong)) from wrong

    def _admit(self, live: LiveRun, outcome: Begun | None) -> None:
        """Queue a run that may run; one that a person must approve waits."""
        assert not isinstance(outcome, Denied)
        run_id = live.run.run_id
        if isinstance(outcome, Pending):
            self._waiting[run_id] = outcome.text
            return
        self._waiting.pop(run_id, None)
        live.call = outcome
        live.decided.set()
        self._queue.append(run_id)
        self._fill()

    def _heard(self, events: Sequence[Event]) -> None:
        """Begin again what a person has decided; an approval's event names the run."""
        for event in events:
            if event.type in {DECIDED, EXPIRED} and event.subject in self._waiting:
                self._spawn(self._begin_again(self._runs[event.subject]))

    async def _begin_again(self, live: LiveRun) -> None:
        """Begin a known call: after a decision, or after a restart."""
        while not self._closing:
            try:
                await self._decided(live)
            except Unavailable as unwritten:
                log.error("task_not_begun run_id=%s error=%s", live.run.run_id, unwritten)
                await asyncio.sleep(WRITING_PAUSES_S[-1])
                continue
            except ToolgateError as refused:
                await self._end(live, Fail(error_of(refused)))
            return

    async def _decided(self, live: LiveRun) -> None:
        async with live.ending:
            before, request = live.stored, live.request
            if before.run.is_over or live.call is not None or request is None:
                return
            now = self._clock.now_ms()

            def end(denied: Denied) -> tuple[TaskRun, list[Operation]]:
                event = decide(before.run, Fail(refused_by(denied).error), now=now)
                after = reduce(before.run, event)
                return after, records.change(before, after, event)

            outcome = await self._gate.begin(
                request, also=lambda it: end(it)[1] if isinstance(it, Denied) else ()
            )
            if not isinstance(outcome, Denied):
                self._admit(live, outcome)
                return
            after, operations = end(outcome)
            if outcome.known:
                await self._journal.commit(*operations)
            live.stored = records.Stored(after, before.version + 1)
        self._over(live)

    async def decided(self, run_id: str, *, timeout_s: float) -> bool:
        """Wait while the run waits for a person; False where it still does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._find(run_id).decided.wait()
        return self._find(run_id).decided.is_set()

    async def wait(self, run_id: str, *, timeout_s: float | None = None) -> TaskRun:
        """The run once it is over, or as it is when the time has passed."""
        live = self._find(run_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await live.over.wait()
        return self.view(run_id)

    def view(self, run_id: str, *, viewer: str = OPERATOR) -> TaskRun:
        live = self._find(run_id, viewer=viewer)
        return self._view(live)

    def _view(self, live: LiveRun) -> TaskRun:
        """The run, with what only memory knows of one that has not ended."""
        run = live.run
        if run.is_over:
            return run
        waits_for = self._waiting.get(run.run_id, "")
        return replace(run, done_steps=live.done_steps, waits_for=waits_for)

    def listed(
        self,
        *,
        status: TaskStatus | None = None,
        template_id: str = "",
        viewer: str = OPERATOR,
    ) -> list[TaskRun]:
        """The viewer's runs that are kept and match, newest first."""
        now = self._clock.now_ms()
        found = [
            self._view(live)
            for live in reversed(self._runs.values())
            if (status is None or live.run.status is status)
            and (not template_id or live.run.template_id == template_id)
            and may_see(viewer, live.run.owner)
            and live.run.is_kept(now)
        ]
        found.sort(key=lambda run: (run.created_at, run.run_id), reverse=True)
        return found

    async def cancel(self, run_id: str, *, viewer: str = OPERATOR) -> tuple[TaskRun, bool]:
        """The run, and whether it was this that ended it."""
        live = self._find(run_id, viewer=viewer)
        command = Cancel(tuple(live.artifact_ids), live.done_steps)
        try:
            # The caller may go away meanwhile: what was committed is believed all the same.
            await asyncio.shield(self._spawn(self._command(live, command)))
        except Conflict:
            return self.view(run_id), False
        return self.view(run_id), True

    async def result(self, run: TaskRun) -> bytes | None:
        """The result as JSON, without its large parts where it is too large for one answer."""
        artifact_id = run.outline_artifact or run.result_artifact
        if not artifact_id:
            return None
        found = self._results.get(run.run_id)
        if found is None:
            found = await self.artifacts.read(artifact_id)
            self._results[run.run_id] = found
            while len(self._results) > RESULTS_AT_HAND:
                del self._results[next(iter(self._results))]
        return found

    def follow(self, run_id: str, listener: Progress) -> Callable[[], None]:
        """Call the listener at each step of the run until the returned function is called."""
        live = self._find(run_id)
        live.listeners.append(listener)
        return lambda: live.listeners.remove(listener)

    async def sweep(self) -> None:
        """Delete runs, artifacts and sessions whose time is over."""
        now = self._clock.now_ms()
        for run_id, live in list(self._runs.items()):
            if not live.run.is_kept(now):
                async with self._submitting:  # or its key may be taken anew meanwhile
                    operations = await records.forget(self._journal, live.run)
                    await self._journal.commit(*operations)
                del self._runs[run_id]
                self._results.pop(run_id, None)
        await self.artifacts.sweep()
        await self.sessions.sweep()

    @property
    def running(self) -> int:
        return len(self._running)

    def _find(self, run_id: str, *, viewer: str = OPERATOR) -> LiveRun:
        live = self._runs.get(run_id)
        known = live is not None and may_see(viewer, live.run.owner)
        if live is None or not known or not live.run.is_kept(self._clock.now_ms()):
            raise TaskFailed(TaskCode.RUN_NOT_FOUND, f"there is no run {run_id}")
        return live

    async def _known(self, submission: Submission) -> TaskRun | None:
        if not submission.idempotency_key:
            return None
        row = await self._journal.get(records.KEYS, _key_of(submission))
        live = None if row is None else self._runs.get(row.value.decode())
        if live is None or not live.run.is_kept(self._clock.now_ms()):
            return None
        return self.view(live.run.run_id)

    def _new(self, submission: Submission) -> LiveRun:
        template, now = submission.template, self._clock.now_ms()
        secrets = tuple(template.secrets(submission.inputs))
        in_addresses = tuple(secrets_in(submission.given))
        keeps_inputs = template.keeps_inputs and not in_addresses
        run = TaskRun(
            run_id=self._new_id("run"),
            template_id=template.id,
            template_version=template.version,
            session_id=submission.session_id or self._new_id("sess"),
            owns_session=not submission.session_id,
            trust=submission.trust,
            mode=TaskMode.SYNC if submission.sync else TaskMode.ASYNC,
            timeout_ms=submission.timeout_ms,
            inputs=submission.given if keeps_inputs else None,
            created_at=now,
            updated_at=now,
            idempotency_key=submission.idempotency_key,
            total_steps=template.steps(submission.inputs),
            owner=owner_of(submission.caller),
            caller=None if submission.in_call else submission.caller,
        )
        return LiveRun(
            records.Stored(run, 0),
            template,
            submission.inputs,
            _request_of(run, without_secrets(submission.given, secrets)),
            client=submission.client,
            scrubber=Scrubber((*secrets, *in_addresses)),
        )

    async def _recover(self, live: LiveRun) -> None:
        run = live.run
        live.template = self.templates.get(run.template_id)
        if live.template is not None and run.inputs is not None and run.owns_session:
            with contextlib.suppress(msgspec.ValidationError):
                live.inputs = msgspec.convert(run.inputs, live.template.inputs)
                secrets = tuple(live.template.secrets(live.inputs))
                live.request = _request_of(run, without_secrets(run.inputs, secrets))
        if run.status is TaskStatus.RUNNING:
            await self._command(live, Interrupt(repeatable=self._can_repeat(live)))
        elif live.inputs is None:  # its secrets, or its session, went with the process
            await self._command(live, Interrupt(repeatable=False))
        if live.run.is_over:
            return
        if live.request is None:
            self._admit(live, None)
        else:
            await self._begin_again(live)
        log.info("task_recovered run_id=%s attempts=%d", run.run_id, live.run.attempts)

    def _can_repeat(self, live: LiveRun) -> bool:
        template = live.template
        known = template is not None and live.inputs is not None
        return known and template is not None and template.repeatable and live.run.owns_session

    def _fill(self) -> None:
        """Start what is next in line while there is room."""
        while self._queue and len(self._running) < self.max_running and not self._closing:
            run_id = self._queue.popleft()
            live = self._runs.get(run_id)  # None: canceled long ago, and forgotten since
            if live is not None and live.run.status is TaskStatus.QUEUED:
                self._running.add(run_id)
                live.worker = self._spawn(self._work(live))

    async def _command(
        self, live: LiveRun, command: TaskCommand, output: ToolOutput | None = None
    ) -> None:
        """Decide, commit, then change memory; raises Conflict if another command was first.

        The end of a run is one commit with that of its call, whose `output` it is.
        """
        async with live.ending:
            before = live.stored
            now = self._clock.now_ms()
            event = decide(before.run, command, now=now)
            after = reduce(before.run, event)
            operations = records.change(before, after, event)
            if after.is_over:
                theirs = (*after.artifact_ids, after.outline_artifact)
                operations += await self.artifacts.ended(theirs, at=now)
            reason = after.error.message if after.error is not None else ""
            if not after.is_over or before.run.caller is None:
                await self._journal.commit(*operations)
            else:
                await self._finish(live, output or _stopped(before.run, reason), operations)
            live.stored = records.Stored(after, before.version + 1)
        if after.is_over:
            self._over(live)

    async def _finish(
        self, live: LiveRun, output: ToolOutput, operations: Sequence[Operation]
    ) -> None:
        """End a run's own call, in one commit with the operations that end the run."""
        if live.call is None:  # it waits for a person, or was interrupted by a restart
            call_id = live.run.run_id
            await self._gate.abandon(
                [call_id], {call_id: output}, reason=output.stderr, also=operations
            )
            return
        try:
            await live.call.finish(output, also=operations)
        except asyncio.CancelledError:  # also said of a call whose worker was stopped
            if _is_stopped():
                raise

    def _over(self, live: LiveRun) -> None:
        """Free the slot at once; the worker closes its session by itself."""
        run = live.run
        self._running.discard(run.run_id)
        self._waiting.pop(run.run_id, None)
        if run.started_at is None:
            with contextlib.suppress(ValueError):
                self._queue.remove(run.run_id)
        if live.deadline is not None:
            live.deadline.cancel()
        self._stop_worker(live)
        live.inputs = live.request = live.call = None
        live.decided.set()
        live.over.set()
        log.info(
            "task_ended run_id=%s template=%s status=%s code=%s",
            run.run_id,
            run.template_id,
            run.status,
            run.error.code if run.error else "",
        )
        self._fill()

    def _stop_worker(self, live: LiveRun) -> None:
        if live.worker is not None and live.worker is not asyncio.current_task():
            live.worker.cancel()

    async def _work(self, live: LiveRun) -> None:
        try:
            await self._write(live, Start())
        except (Conflict, Unavailable) as refused:
            self._running.discard(live.run.run_id)
            if isinstance(refused, Unavailable):  # it is still queued: once more, in its turn
                self._queue.append(live.run.run_id)
            self._fill()
            return
        loop = asyncio.get_running_loop()
        live.deadline = loop.call_later(
            live.run.timeout_ms / 1000, lambda: self._spawn(self._time_out(live))
        )
        try:
            if live.run.caller is None:
                await self._end(live, await self._carry_out(live))
            elif live.call is not None:
                output = await live.call.run()
                if _is_stopped():  # whoever stopped it writes the run's end
                    return
                await self._end(live, live.found or _not_run(output), output)
        finally:
            if live.run.owns_session:
                succeeded = live.run.status is TaskStatus.SUCCEEDED
                # Of a run that failed nobody takes over what it meant to keep.
                part = self.sessions.leave if succeeded else self.sessions.close
                self._spawn(part(live.run.session_id))

    async def carry_out(self, call_id: str) -> ToolOutput | None:
        """Run the template of the run whose own call this is; None where there is no such run."""
        live = self._runs.get(call_id)
        if live is None or live.call is None:
            return None
        live.found = await self._carry_out(live)
        return output_of(live, live.found)

    async def _carry_out(self, live: LiveRun) -> Finish | Fail:
        return await carry_out(
            live, artifacts=self.artifacts, sessions=self.sessions, documents=self._documents
        )

    async def _write(
        self, live: LiveRun, command: TaskCommand, output: ToolOutput | None = None
    ) -> None:
        """Run `_command`, and retry it for a while where the disk refuses."""
        for pause in WRITING_PAUSES_S:
            try:
                return await self._command(live, command, output)
            except Unavailable as refused:
                log.error("task_unwritten run_id=%s error=%s", live.run.run_id, refused)
            await asyncio.sleep(pause)
        raise Unavailable("the run's state cannot be written")

    async def _end(
        self, live: LiveRun, command: TaskCommand, output: ToolOutput | None = None
    ) -> None:
        """Write the run's end; where that cannot be done, give up the slot and write it later."""
        if live.deadline is not None:
            live.deadline.cancel()  # it has come to its end, however long that takes to write
        try:
            await self._write(live, command, output)
        except Conflict:  # canceled or out of time in the same moment
            pass
        except Unavailable:
            self._running.discard(live.run.run_id)
            self._stop_worker(live)
            live.over.set()  # whoever waits is told that it runs
            self._spawn(self._end_later(live, command, output))
            self._fill()

    async def _end_later(
        self, live: LiveRun, command: TaskCommand, output: ToolOutput | None
    ) -> None:
        """Write a run's end once the disk has room; a restart before that finds it interrupted."""
        with contextlib.suppress(Conflict):  # canceled meanwhile
            while not live.run.is_over:
                await asyncio.sleep(WRITING_PAUSES_S[-1])
                with contextlib.suppress(Unavailable):
                    await self._command(live, command, output)

    async def _time_out(self, live: LiveRun) -> None:
        error = TaskError(
            TaskCode.RUN_TIMEOUT,
            f"the run took longer than {live.run.timeout_ms} ms",
            details={"timeoutMs": live.run.timeout_ms, "doneSteps": live.done_steps},
        )
        await self._end(live, Fail(error, tuple(live.artifact_ids), live.done_steps))

    async def _sweep_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except Exception:  # whatever it was, what comes later must go too
                log.exception("sweep_failed")

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_stopped() -> bool:
    """Return True if this task was cancelled: a call that was cancelled still returns an output."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _key_of(submission: Submission) -> str:
    owner = owner_of(submission.caller)
    return records.key_of(owner, submission.template.id, submission.idempotency_key)


def _request_of(run: TaskRun, inputs: Any) -> ToolRequest | None:
    """The run's own call; None where it runs within another."""
    if run.caller is None:
        return None
    return ToolRequest(run.run_id, PREFIX + run.template_id, inputs, run.caller, run.run_id)


def _stopped(run: TaskRun, reason: str) -> ToolOutput:
    """The output of a call whose run was ended from outside."""
    begun = run.started_at is not None
    return failed(reason, outcome=Outcome.MAY_HAVE_EXECUTED if begun else Outcome.NOT_STARTED)


def _not_run(output: ToolOutput) -> Fail:
    """The end of a run whose call has come back without running it."""
    details = {"outcome": output.outcome.value}
    return Fail(TaskError(TaskCode.EXECUTION_ERROR, output.stderr, details=details))
