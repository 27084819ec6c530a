"""The seven tools: arguments in, an answer out, whoever asks and by whichever surface.

It checks arguments in the order of the contract and answers in the contract's words. The gate decides
every call: a submission when its run begins (`runtime.py`), any other here.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from toolgate.contracts import tasks_v1 as wire
from toolgate.contracts.wire import field_of, given
from toolgate.core.clock import Clock
from toolgate.core.enums import Level, TaskCode, TaskMode, TrustLevel
from toolgate.core.errors import Damaged, Invalid
from toolgate.core.ids import NewId
from toolgate.core.tools import Caller, ToolRequest
from toolgate.tasks.live_runs import Progress
from toolgate.tasks.runtime import PREFIX, Submission, TaskRuntime
from toolgate.tasks.state import (
    NEXT_ACTIONS,
    TaskError,
    TaskFailed,
    TaskRun,
    owner_of,
    starts_sync,
)
from toolgate.tasks.template import Template, hint_of, refused_by
from toolgate.tools.outcomes import ToolGate

S = TypeVar("S", bound=msgspec.Struct)
RUN: Final = "run_task_template"
LIST_INLINE: Final = 16_384  # in a list, a larger result is only named
HOLD_MS: Final = 50_000  # MCP_HOLD_MS: clients give up after 60 s

# Who asks where nobody is authenticated: `toolgate browser` alone, on stdio or on loopback.
LOCAL: Final = Caller(user="local", role="local", level=Level.WRITE)
LOOPBACK: Final = Caller(user="loopback", role="loopback", level=Level.WRITE)


@dataclass(frozen=True, slots=True)
class Asker:
    """The caller of a tool, and the connection that the call came by."""

    trust: TrustLevel
    caller: Caller
    client: str = ""  # the connection: sessions kept for it are closed when it goes away
    in_call: bool = False  # the gate has let the call in already

    @property
    def name(self) -> str:
        return owner_of(self.caller)


def unheard(_done: int, _total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call under way: who asks, and the listeners of its progress and of its run's id."""

    asker: Asker
    progress: Progress = unheard
    began: Callable[[str], None] = lambda _run_id: None


Answer = dict[str, Any]


class Toolset:
    def __init__(
        self,
        runtime: TaskRuntime,
        *,
        gate: ToolGate,
        clock: Clock,
        new_id: NewId,
        auto_wait_s: float = wire.AUTO_WAIT_MS / 1000,
        hold_s: float = HOLD_MS / 1000,
    ) -> None:
        """`hold_s`: how long a caller that waits for its run also waits for a person's approval."""
        self.runtime = runtime
        self._gate = gate
        self._clock = clock
        self._new_id = new_id
        self._auto_wait_s = auto_wait_s
        self._hold_s = hold_s
        self._tools: dict[str, Callable[[Mapping[str, Any], Call], Awaitable[Answer]]] = {
            "list_task_templates": self._list_templates,
            RUN: self._run_template,
            "get_task_run": self._get_run,
            "list_task_runs": self._list_runs,
            "cancel_task_run": self._cancel_run,
            "get_artifact": self._get_artifact,
            "get_runtime_profile": self._profile,
        }

    def has(self, tool: str) -> bool:
        return tool in self._tools

    async def call(self, tool: str, arguments: Mapping[str, Any], call: Call) -> Answer:
        """The answer as JSON values; raises TaskFailed for what becomes an error answer."""
        try:
            msgspec.json.encode(arguments)
        except (
            UnicodeEncodeError,
            RecursionError,
        ) as unwritable:  # not every surface refuses these
            raise _invalid(
                "arguments must be valid Unicode text, and nested less deeply", "$"
            ) from unwritable
        if tool != RUN:
            await self.authorize(tool, arguments, call.asker)
        return await self._tools[tool](arguments, call)

    async def authorize(self, tool: str, arguments: Mapping[str, Any], asker: Asker) -> None:
        """Have the gate decide a call of a tool that runs nothing; raises TaskFailed."""
        if asker.in_call:
            return
        name = PREFIX + tool
        try:
            denied = await self._gate.authorize(
                ToolRequest(self._new_id("req"), name, arguments, asker.caller)
            )
        except Invalid as wrong:
            raise _invalid(str(wrong), "$") from wrong
        if denied is not None:
            raise refused_by(denied)

    async def _list_templates(self, _: Mapping[str, Any], call: Call) -> Answer:
        return {"templates": [template_info(found) for found in self.runtime.templates.values()]}

    async def _run_template(self, arguments: Mapping[str, Any], call: Call) -> Answer:
        submission, mode = self._check(arguments, call.asker)
        run, deduplicated = await self.runtime.submit(submission, began=call.began)
        if submission.sync and await self.runtime.decided(run.run_id, timeout_s=self._hold_s):
            run = await self._wait(run, mode, call)
            if run.is_over:
                return await self.finished(run, TaskMode.SYNC, deduplicated=deduplicated)
        run = self.runtime.view(run.run_id)
        return {
            "runId": run.run_id,
            "sessionId": run.session_id,
            "status": run.status.value,
            "mode": TaskMode.ASYNC.value,
            "deduplicated": deduplicated,
            **_waiting(run),
        }

    async def finished(self, run: TaskRun, mode: TaskMode, *, deduplicated: bool = False) -> Answer:
        """The run, with the code of its error beside it if it failed or was canceled."""
        answer = {
            **await self._shown(run),
            "mode": mode.value,
            "deduplicated": deduplicated,
        }
        if run.error is not None:
            answer |= {"errorCode": run.error.code.value, "recoverHint": hint_of(run.error)}
        return answer

    async def _wait(self, run: TaskRun, mode: TaskMode, call: Call) -> TaskRun:
        timeout_s = self._auto_wait_s if mode is TaskMode.AUTO else None
        unfollow = self.runtime.follow(run.run_id, call.progress)
        try:
            return await self.runtime.wait(run.run_id, timeout_s=timeout_s)
        finally:
            unfollow()

    async def _get_run(self, arguments: Mapping[str, Any], call: Call) -> Answer:
        asked = _convert(arguments, wire.GetTaskRun)
        return await self._shown(self.runtime.view(asked.run_id, viewer=call.asker.name))

    async def _list_runs(self, arguments: Mapping[str, Any], call: Call) -> Answer:
        asked = _convert(arguments, wire.ListTaskRuns)
        status = None if isinstance(asked.status, msgspec.UnsetType) else asked.status
        found = self.runtime.listed(
            status=status,
            template_id=given(asked.template_id, ""),
            viewer=call.asker.name,
        )
        page = found[asked.offset : asked.offset + asked.limit]
        return {
            "runs": [await self._shown(run, limit=LIST_INLINE) for run in page],
            "total": len(found),
            "limit": asked.limit,
            "offset": asked.offset,
            "hasMore": asked.offset + len(page) < len(found),
        }

    async def _cancel_run(self, arguments: Mapping[str, Any], call: Call) -> Answer:
        asked = _convert(arguments, wire.CancelTaskRun)
        run, canceled = await self.runtime.cancel(asked.run_id, viewer=call.asker.name)
        answer = {"success": canceled, "runId": run.run_id, "status": run.status.value}
        if not canceled:
            answer["reason"] = f"the run has already ended: {run.status.value}"
        return answer

    async def _get_artifact(self, arguments: Mapping[str, Any], call: Call) -> Answer:
        asked = _convert(arguments, wire.GetArtifact)
        chunk = await self.runtime.artifacts.chunk(
            asked.artifact_id,
            offset=asked.offset,
            length=asked.length,
            viewer=call.asker.name,
        )
        return {
            "artifactId": chunk.artifact.artifact_id,
            "mimeType": chunk.artifact.mime_type,
            "totalSize": chunk.artifact.size,
            "offset": chunk.offset,
            "length": chunk.length,
            "data": chunk.data,
            "complete": chunk.complete,
        }

    async def _profile(self, _: Mapping[str, Any], call: Call) -> Answer:
        return {
            "maxConcurrentRuns": self.runtime.max_running,
            "maxUrls": wire.MAX_URLS,
            "maxTabsPerSession": wire.MAX_TABS_PER_SESSION,
            "syncTimeoutMs": wire.SYNC_TIMEOUT_MS,
            "asyncTimeoutMs": wire.ASYNC_TIMEOUT_MS,
            "artifactMaxChunkSize": wire.MAX_CHUNK_BYTES,
            "artifactTtlMs": wire.ARTIFACT_TTL_MS,
            "runTtlMs": wire.RUN_TTL_MS,
            "supportedModes": [mode.value for mode in TaskMode],
            "trustLevel": call.asker.trust.value,
            "isRemote": call.asker.trust is TrustLevel.REMOTE,
        }

    def _check(self, arguments: Mapping[str, Any], asker: Asker) -> tuple[Submission, TaskMode]:
        """Check in the contract's order: template, version, trust, time, mode, inputs, session."""
        asked = _convert(arguments, wire.UncheckedRunTaskTemplate)
        template = self._template(asked.template_id, given(asked.template_version, None))
        if asker.trust not in template.trust:
            raise TaskFailed(
                TaskCode.TRUST_LEVEL_NOT_ALLOWED,
                f"{template.id} is not open to a {asker.trust} caller",
                details={"trustLevel": asker.trust.value},
            )
        options = given(asked.options, {})
        if not isinstance(options, dict):
            raise _invalid("options must be an object", "$.options")
        timeout_ms = _timeout(options.get("timeoutMs", wire.ASYNC_TIMEOUT_MS))
        mode = _mode(options.get("mode", TaskMode.AUTO.value))
        if mode is TaskMode.SYNC:
            timeout_ms = min(timeout_ms, wire.SYNC_TIMEOUT_MS)
        checked = _convert(options, wire.RunOptions, at="$.options")
        raw = given(asked.inputs, {})
        inputs = _convert(raw, template.inputs, at="$.inputs")
        session_id = given(asked.session_id, "")
        if not isinstance(session_id, str):
            raise _invalid("sessionId must be a text", "$.sessionId")
        submission = Submission(
            template=template,
            inputs=inputs,
            given=raw,
            trust=asker.trust,
            sync=starts_sync(template.id, url_count=template.steps(inputs), mode=mode),
            caller=asker.caller,
            in_call=asker.in_call,
            session_id=session_id,
            timeout_ms=timeout_ms,
            idempotency_key=given(checked.idempotency_key, ""),
            client=asker.client,
        )
        return submission, mode

    def _template(self, template_id: str, version: Any) -> Template:
        template = self.runtime.templates.get(template_id)
        if template is None:
            raise TaskFailed(
                TaskCode.TEMPLATE_NOT_FOUND,
                f"there is no template {template_id[:100]!r}",
                details={"templates": list(self.runtime.templates)},
            )
        if version is not None and version != template.version:
            raise TaskFailed(
                TaskCode.TEMPLATE_VERSION_UNSUPPORTED,
                f"{template.id} has version {template.version}",
                details={"supportedVersions": [template.version]},
            )
        return template

    async def _shown(self, run: TaskRun, *, limit: int | None = None) -> Answer:
        result = await self._result(run, limit)
        return {
            "runId": run.run_id,
            "templateId": run.template_id,
            "sessionId": run.session_id,
            "ownsSession": run.owns_session,
            "status": run.status.value,
            "progress": {"doneSteps": run.done_steps, "totalSteps": run.total_steps},
            "metrics": {"elapsedMs": run.elapsed_ms(self._clock.now_ms())},
            "result": result,
            "error": None if run.error is None else _run_error(run.error),
            "artifactIds": list(run.artifact_ids),
            "createdAt": run.created_at,
            "updatedAt": run.updated_at,
            **_waiting(run),
        }

    async def _result(self, run: TaskRun, limit: int | None) -> Any:
        named = {"contentArtifactId": run.result_artifact}
        try:
            encoded = await self.runtime.result(run)
        except (TaskFailed, Damaged):
            if limit is None:
                raise
            return named  # the others of the list are to be had all the same
        if encoded is None:
            return None
        result = msgspec.json.decode(encoded)
        if limit is not None and len(encoded) > limit:
            return named | ({"summary": result["summary"]} if "summary" in result else {})
        return result


def _waiting(run: TaskRun) -> Answer:
    """The member of an answer about a run that waits for a person."""
    return {"message": run.waits_for} if run.waits_for else {}


def error_answer(error: TaskError) -> Answer:
    """The content of an answer with `isError`."""
    answer: Answer = {
        "error": error.message,
        "errorCode": error.code.value,
        "recoverHint": hint_of(error),
        "nextActions": _next_actions(error),
    }
    if error.failed_step:
        answer["failedStep"] = error.failed_step
    if error.details is not None:
        answer["details"] = error.details
    return answer


def template_info(template: Template) -> Answer:
    info: Answer = {
        "templateId": template.id,
        "version": template.version,
        "description": template.description,
        "trustLevels": sorted(level.value for level in template.trust),
        "supportedModes": [mode.value for mode in TaskMode],
        "inputSchema": schema_of(template.inputs),
    }
    if template.output is not None:
        info["outputSchema"] = schema_of(template.output)
    return info


def schema_of(model: type[Any]) -> dict[str, Any]:
    """JSON Schema with an object at its root, as MCP wants it."""
    (root,), parts = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    parts = dict(parts)
    name = str(root.get("$ref", "")).rpartition("/")[2]
    schema = dict(parts.pop(name)) if name else dict(root)
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema


def _run_error(error: TaskError) -> Answer:
    shown: Answer = {
        "errorCode": error.code.value,
        "message": error.message,
        "recoverHint": hint_of(error),
        "nextActions": _next_actions(error),
    }
    if error.details is not None:
        shown["details"] = error.details
    if error.failed_step:
        shown["failedStep"] = error.failed_step
    return shown


def _next_actions(error: TaskError) -> list[str]:
    """The code's next actions; of a refusal by the gate none, because its text has the remedy."""
    return [] if "ruleId" in _members(error.details) else list(NEXT_ACTIONS[error.code])


def _members(details: Any) -> dict[str, Any]:
    return details if isinstance(details, dict) else {}


def _timeout(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= wire.MAX_TIMEOUT_MS:
        raise _invalid(
            f"timeoutMs must be a whole number from 1 to {wire.MAX_TIMEOUT_MS} (got {value!r:.40})",
            "$.options.timeoutMs",
        )
    return value


def _mode(value: Any) -> TaskMode:
    try:
        return TaskMode(value)
    except ValueError as unknown:
        raise _invalid("mode must be sync, async or auto", "$.options.mode") from unknown


def _convert(value: Any, model: type[S], *, at: str = "$") -> S:
    try:
        return msgspec.convert(value, model)
    except (msgspec.ValidationError, RecursionError) as wrong:
        raise _invalid(str(wrong).replace("`$", f"`{at}"), at + field_of(wrong)[1:]) from wrong


def _invalid(message: str, path: str) -> TaskFailed:
    return TaskFailed(TaskCode.INVALID_PARAMETER, message, details={"path": path})
