"""Browser tasks in the console: templates, runs, artifacts; every call is the operator's."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.core.enums import TrustLevel
from toolgate.core.errors import Unavailable
from toolgate.surfaces.console.parts import Answer, Parts, body_of, whole
from toolgate.tasks.artifacts import Artifact
from toolgate.tasks.state import OPERATORS_CALLER, TaskFailed
from toolgate.tasks.toolset import Asker, Call, Toolset

# A page is a stranger: what came from one is never shown as a document of ours.
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp"})
SANDBOX: Final = "sandbox; default-src 'none'"
AS_OPERATOR: Final = Call(Asker(TrustLevel.REMOTE, OPERATORS_CALLER, client="console"))


class NewTask(msgspec.Struct):
    template: str
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskPages:
    parts: Parts

    async def listed(self, request: Request) -> Answer:
        tools = self._tools()
        offset = whole(request, "offset", default=0, most=100_000)
        found = await tools.call("list_task_runs", {"limit": 50, "offset": offset}, AS_OPERATOR)
        templates = await tools.call("list_task_templates", {}, AS_OPERATOR)
        return {**found, **templates}

    async def one(self, request: Request) -> Answer:
        arguments = {"runId": request.path_params["id"]}
        run = await self._tools().call("get_task_run", arguments, AS_OPERATOR)
        artifacts = []
        for artifact_id in run["artifactIds"]:
            try:
                artifact = await self._tools().runtime.artifacts.get(artifact_id)
            except TaskFailed:
                continue  # no longer kept; the run is still worth showing
            artifacts.append(
                {
                    "id": artifact_id,
                    "name": artifact.name,
                    "type": artifact.mime_type,
                    "size": artifact.size,
                }
            )
        return {**run, "artifacts": artifacts}

    async def start(self, request: Request) -> Answer:
        wanted = await body_of(request, NewTask)
        arguments = {
            "templateId": wanted.template,
            "inputs": wanted.inputs,
            "options": {"mode": "async"},
        }
        started = await self._tools().call("run_task_template", arguments, AS_OPERATOR)
        await self.parts.note("task.started", ("task", started["runId"]))
        return started

    async def cancel(self, request: Request) -> Answer:
        arguments = {"runId": request.path_params["id"]}
        return await self._tools().call("cancel_task_run", arguments, AS_OPERATOR)

    async def artifact(self, request: Request) -> Answer:
        tools, artifact_id = self._tools(), request.path_params["id"]
        await tools.authorize("get_artifact", {"artifactId": artifact_id}, AS_OPERATOR.asker)
        artifacts = tools.runtime.artifacts
        artifact = await artifacts.get(artifact_id)
        return file_answer(artifact, await artifacts.read(artifact.artifact_id))

    def _tools(self) -> Toolset:
        if self.parts.tasks is None:
            raise Unavailable("no browser runs here; `toolgate doctor` says what is missing")
        return self.parts.tasks


def file_answer(artifact: Artifact, content: bytes) -> Response:
    """An artifact as a download; only images are shown, and nothing in them runs."""
    is_image = artifact.mime_type in IMAGES
    safe = "".join(c for c in artifact.name if c.isascii() and (c.isalnum() or c in "._-"))
    disposition = "inline" if is_image else "attachment"
    return Response(
        content,
        media_type=artifact.mime_type if is_image else "application/octet-stream",
        headers={
            "Content-Disposition": f'{disposition}; filename="{safe or "artifact"}"',
            "Content-Security-Policy": SANDBOX,
            "Cache-Control": "no-store",
        },
    )
