"""Files between a workspace and the artifacts, wherever the workspace is.

`file.read {artifact: true}` keeps the file and answers its ref; `file.write {artifact: REF}` puts one
into the workspace. The target, here or behind a runner, sees pieces of a file and no artifact.
"""

import base64
import binascii
import json
from typing import Any, Final

import msgspec

from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, NotFound
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.files import LARGEST_FILE, FileArtifact, FileArtifacts
from toolgate.tools.targets.tools import GET, INTERNAL, PIECE_BYTES, PUT

READ: Final = "file.read"
WRITE: Final = "file.write"


class _Failed(Exception):
    """The call ends here, with this output."""

    def __init__(self, output: ToolOutput) -> None:
        super().__init__(output.stderr)
        self.output = output


class Transfers:
    """An Engine over the targets' own."""

    def __init__(self, engine: Engine, files: FileArtifacts) -> None:
        self._engine = engine
        self._files = files

    @property
    def ref(self) -> str:
        return self._engine.ref

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        if request.tool in INTERNAL:  # a policy that speaks of file.write must not be got around
            return failed(f"Unknown tool: {request.tool}")
        wanted = request.args.get("artifact")
        try:
            if request.tool == READ and wanted not in (None, False):
                return await self._keep(request, wanted)
            if request.tool == WRITE and wanted not in (None, ""):
                return await self._put(request, wanted)
        except _Failed as ended:
            return ended.output
        return await self._engine.run(request, update=update)

    async def _keep(self, request: ToolRequest, wanted: JsonValue) -> ToolOutput:
        path = request.args.get("path")
        if wanted is not True or not isinstance(path, str) or not path:
            return failed(f"{READ}: needs a path, and `artifact` is true or false")
        content = bytearray()
        version: Any = None  # of the file, where the target tells it
        while True:
            args: dict[str, JsonValue] = {"path": path, "offset": len(content)}
            output = await self._piece(request, GET, {**args, "limit": PIECE_BYTES})
            answer = _answer(output)
            piece, seen = _content(answer), answer.get("version")
            if content and seen != version:
                message = f"{READ}: the file was changed while it was read"
                return failed(message, outcome=Outcome.EXECUTED)
            version = seen
            content += piece
            if len(content) > LARGEST_FILE:
                message = f"{READ}: the file has more than {LARGEST_FILE} bytes"
                return failed(message, outcome=Outcome.EXECUTED)
            if len(piece) < PIECE_BYTES:
                break
        try:
            kept = await self._files.keep(bytes(content), owner=request.caller)
        except Invalid as refused:
            return failed(f"{READ}: {refused}", outcome=Outcome.EXECUTED)
        return _told(kept, path=path, isolation=output.isolation)

    async def _put(self, request: ToolRequest, wanted: JsonValue) -> ToolOutput:
        path = request.args.get("path")
        others = request.args.get("content") or request.args.get("append")
        if not isinstance(wanted, str) or not isinstance(path, str) or not path or others:
            return failed(f"{WRITE}: takes a path and either `artifact` or `content`")
        try:
            content = await self._files.get(wanted, owner=request.caller)
        except (Invalid, NotFound) as refused:
            return failed(f"{WRITE}: {refused}")
        start = 0
        while True:
            piece = content[start : start + PIECE_BYTES]
            args: dict[str, JsonValue] = {"path": path, "append": start > 0}
            args["content"] = base64.b64encode(piece).decode()
            try:
                output = await self._piece(request, PUT, args)
            except _Failed as cut:  # the file has what came before, whatever became of this piece
                if start > 0:
                    cut.output = msgspec.structs.replace(cut.output, outcome=Outcome.EXECUTED)
                raise
            start += len(piece)
            if _told_size(output) != start:
                message = f"{WRITE}: something else wrote to the file meanwhile"
                return failed(message, outcome=Outcome.EXECUTED)
            if start >= len(content):
                break
        artifact = FileArtifact(wanted, len(content))
        return _told(artifact, path=path, isolation=output.isolation)

    async def _piece(
        self, request: ToolRequest, tool: str, args: dict[str, JsonValue]
    ) -> ToolOutput:
        output = await self._engine.run(msgspec.structs.replace(request, tool=tool, args=args))
        if not output.ok:
            raise _Failed(output)
        return output


def _answer(output: ToolOutput) -> dict[str, Any]:
    """What a target says of a piece; a runner is not to be trusted with its form."""
    try:
        told = json.loads(output.stdout)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        message = "the execution target does not know how to carry files"
        raise _Failed(failed(message, outcome=Outcome.MAY_HAVE_EXECUTED))
    return told


def _content(answer: dict[str, Any]) -> bytes:
    told = answer.get("content")
    try:
        content = base64.b64decode(told, validate=True) if isinstance(told, str) else None
    except (binascii.Error, ValueError):
        content = None
    if content is None or len(content) > PIECE_BYTES:
        message = "the execution target's answer is no piece of a file"
        raise _Failed(failed(message, outcome=Outcome.MAY_HAVE_EXECUTED))
    return content


def _told_size(output: ToolOutput) -> int:
    size = _answer(output).get("size")
    return size if type(size) is int else -1


def _told(artifact: FileArtifact, *, path: str, isolation: str) -> ToolOutput:
    said: dict[str, JsonValue] = {
        "artifact": artifact.ref,
        "sha256": artifact.sha256,
        "size": artifact.size,
        "path": path,
    }
    return ToolOutput(0, stdout=json.dumps(said), data=said, isolation=isolation)
