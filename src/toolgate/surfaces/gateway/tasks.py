"""`/tasks`: the browser tasks of everyone and their artifacts. For the operator alone.

The tools of seed 004, each at a route: answers are as the tools give them.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolgate.access.audit import Trail
from toolgate.commands.answers import Extra, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts import tasks_v1
from toolgate.contracts.wire import MAX_INT
from toolgate.core.enums import TrustLevel
from toolgate.journal.journal import Journal
from toolgate.surfaces.gateway.routes import (
    PAGE_LIMIT,
    Access,
    Parameter,
    Route,
    page_limit,
    whole,
)
from toolgate.surfaces.gateway.routes import Call as RouteCall
from toolgate.tasks.state import OPERATORS_CALLER, TaskFailed
from toolgate.tasks.toolset import Asker, Call, Toolset

DOWNLOAD: Final = "application/octet-stream"
AS_OPERATOR: Final = Call(Asker(TrustLevel.REMOTE, OPERATORS_CALLER, client="console"))
_COUNT: Final = {"type": "integer", "minimum": 0}


@dataclass(frozen=True, slots=True)
class TaskRoutes:
    tools: Toolset
    trail: Trail
    journal: Journal

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/tasks",
                Access.OPERATOR,
                "Browser tasks, newest first.",
                self._list,
                tasks_v1.RunList,
                query=(
                    Parameter("limit", "tasks at most", PAGE_LIMIT),
                    Parameter("offset", "how many of the newest to leave out", _COUNT),
                ),
            ),
            Route(
                "GET",
                "/tasks/templates",
                Access.OPERATOR,
                "The task templates, with the schema of their inputs.",
                self._templates,
                tasks_v1.TemplateList,
            ),
            Route(
                "POST",
                "/tasks",
                Access.OPERATOR,
                "Start a browser task.",
                self._start,
                tasks_v1.StartedRun,
                takes=wire.TaskStart,
            ),
            Route(
                "GET",
                "/tasks/{runId}",
                Access.OPERATOR,
                "One browser task.",
                self._get,
                tasks_v1.RunWithArtifacts,
                statuses=(200, 404),
            ),
            Route(
                "POST",
                "/tasks/{runId}/cancel",
                Access.OPERATOR,
                "Cancel a browser task.",
                self._cancel,
                tasks_v1.CancelAnswer,
                statuses=(200, 404),
            ),
            Route(
                "GET",
                "/tasks/artifacts/{artifactId}",
                Access.OPERATOR,
                "An artifact, as a download.",
                self._artifact,
                None,
                statuses=(200, 404),
                bare=True,
                media_type=DOWNLOAD,
            ),
        )

    async def _ask(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        return Result(await self.tools.call(tool, arguments, AS_OPERATOR))

    async def _list(self, call: RouteCall) -> Result:
        offset = whole(call.query, "offset", default=0, least=0, most=MAX_INT)
        limit = min(page_limit(call.query), tasks_v1.MAX_LIST_LIMIT)
        return await self._ask("list_task_runs", {"limit": limit, "offset": offset})

    async def _templates(self, _: RouteCall) -> Result:
        return await self._ask("list_task_templates", {})

    async def _start(self, call: RouteCall) -> Result:
        wanted: wire.TaskStart = call.body
        arguments = {
            "templateId": wanted.template_id,
            "inputs": wanted.inputs,
            "options": {"mode": "async"},
        }
        started = await self._ask("run_task_template", arguments)
        about = ("task", started.data["runId"])
        note = self.trail.note("task.started", actor=call.caller.name, resource=about)
        await self.journal.commit(*note)
        return started

    async def _get(self, call: RouteCall) -> Result:
        run = await self._ask("get_task_run", {"runId": call.path["runId"]})
        kept = []
        for artifact_id in run.data["artifactIds"]:
            with contextlib.suppress(TaskFailed):  # no longer kept; the run is still worth showing
                kept.append(await self.tools.runtime.artifacts.get(artifact_id))
        artifacts = [
            tasks_v1.ArtifactInfo(
                artifact_id=one.artifact_id, name=one.name, mime_type=one.mime_type, size=one.size
            )
            for one in kept
        ]
        return Result({**run.data, "artifacts": artifacts})

    async def _cancel(self, call: RouteCall) -> Result:
        return await self._ask("cancel_task_run", {"runId": call.path["runId"]})

    async def _artifact(self, call: RouteCall) -> Result:
        artifact_id = call.path["artifactId"]
        await self.tools.authorize("get_artifact", {"artifactId": artifact_id}, AS_OPERATOR.asker)
        artifacts = self.tools.runtime.artifacts
        artifact = await artifacts.get(artifact_id)
        content = await artifacts.read(artifact.artifact_id)
        return Result(content, Extra(bare=True, headers=download_headers(artifact.name)))


def download_headers(name: str) -> tuple[tuple[str, str], ...]:
    """The headers of a file that a stranger's page left: it is saved, never shown as one of ours."""
    safe = "".join(c for c in name if c.isascii() and (c.isalnum() or c in "._-"))
    return (
        ("Content-Type", DOWNLOAD),
        ("Content-Disposition", f'attachment; filename="{safe or "artifact"}"'),
        ("Content-Security-Policy", "sandbox; default-src 'none'"),
        ("X-Content-Type-Options", "nosniff"),
    )
