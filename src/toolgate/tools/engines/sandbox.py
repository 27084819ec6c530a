"""The runner's tools on a sandbox of this machine: behind `local-host`, and inside `toolgate runner`.

A failure is an output with `data.error` and an outcome; nothing a caller sends makes this raise.
"""

import asyncio
import base64
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, Final, TypeVar

import msgspec

from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, Refused, Unavailable
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.core.urls import Url, parse_url
from toolgate.sandbox.sandbox import (
    Command,
    FileRefused,
    Files,
    Finished,
    Interpreter,
    Lost,
    NotStarted,
    Session,
)
from toolgate.sandbox.sessions import Sessions
from toolgate.tools.definitions import in_session
from toolgate.tools.engine import Update, no_update
from toolgate.tools.engines.command_tools import words_of
from toolgate.tools.engines.output_decoder import Pieces
from toolgate.tools.engines.redirects import Hops
from toolgate.tools.targets.tools import (
    GET,
    PUT,
    Arguments,
    BashExec,
    FileGet,
    FileList,
    FilePut,
    FileRead,
    FileWrite,
    HttpRequest,
    PythonExec,
)
from toolgate.web.web import Web, WebRequest, WebResponse

VERSION: Final = version("toolgate")
TOOL_EXEC_FAILED: Final = "TOOL_EXEC_FAILED"
LONGEST_MS: Final = 24 * 3600 * 1000  # longer than anything may take, and can be divided
ASKED_FOR: Final = {GET: "file.read", PUT: "file.write"}  # what the caller has called

T = TypeVar("T")
Tool = Callable[[ToolRequest, Update], Awaitable[ToolOutput]]


class Text(Arguments, frozen=True):
    text: str


class MathAdd(Arguments, frozen=True):
    a: int | float
    b: int | float


def within_its_origin(request: ToolRequest, url: Url) -> bool:
    """For a runner: the policy spoke where the call came from, and of no other place."""
    return parse_url(str(request.args["url"])).origin == url.origin


async def no_http(_request: ToolRequest, _update: Update) -> ToolOutput:
    return failed("http.request is not available here")


def guarded_http(
    web: Web, *, permits: Callable[[ToolRequest, Url], bool] = within_its_origin
) -> Tool:
    """http.request through a guarded client; `permits` is asked before each hop."""

    async def fetch(request: ToolRequest, _update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, HttpRequest)
        wanted = WebRequest(args.url, args.method.upper(), args.headers, args.body.encode())
        hops = Hops(request, permits)
        try:
            async with asyncio.timeout(_seconds(args.timeout_ms)):
                answer = await web.fetch(wanted, granted=hops)
        except (Invalid, Refused) as refused:
            return failed(f"http.request: {refused}", outcome=hops.outcome(refused))
        except (Unavailable, TimeoutError) as broken:
            reason = str(broken) or "it took too long"
            return failed(f"http.request: {reason}", outcome=Outcome.MAY_HAVE_EXECUTED)
        return _web_output(answer)

    return fetch


class SandboxEngine:
    """An Engine. `http` is what serves http.request: a guarded client, outside the sandbox."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        http: Tool = no_http,
        others: Mapping[str, Tool] | None = None,
    ) -> None:
        """`others` are tools that run elsewhere in this process, by name."""
        self._sessions = sessions
        self._tools: Mapping[str, Tool] = {
            **(others or {}),
            "bash.exec": self._bash,
            "python.exec": self._python,
            "file.read": self._file_read,
            "file.write": self._file_write,
            "file.list": self._file_list,
            GET: self._file_get,
            PUT: self._file_put,
            "http.request": http,
            "echo": _echo,
            "math.add": _add,
            "text.upper": _upper,
        }

    @property
    def ref(self) -> str:
        return f"toolgate-sandbox/{version('toolgate')}+{self._sessions.isolation}"

    @property
    def isolation(self) -> str:
        return self._sessions.isolation

    @property
    def tools(self) -> list[str]:
        return list(self._tools)

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        tool = self._tools.get(request.tool)
        if tool is None:
            return failed(f"Unknown tool: {request.tool}")
        output = await self._run(tool, request, update)
        return _in_new_workspace(output) if self._sessions.is_new(request) else output

    async def _run(self, tool: Tool, request: ToolRequest, update: Update) -> ToolOutput:
        name = ASKED_FOR.get(request.tool, request.tool)
        if request.clean and not self._sessions.can_be_clean:
            return self._failed(f"{name}: this sandbox cannot run it clean", Outcome.NOT_STARTED)
        try:
            return await tool(request, update)
        except msgspec.ValidationError as invalid:
            return failed(f"{name}: {invalid}")
        except FileRefused as refused:
            return self._failed(f"{name}: {refused}", Outcome.EXECUTED)
        except NotStarted as refused:
            return self._failed(f"{name}: {refused}", Outcome.NOT_STARTED)
        except Lost as lost:
            return self._failed(f"{name}: {lost}", Outcome.MAY_HAVE_EXECUTED)

    def _failed(self, message: str, outcome: Outcome) -> ToolOutput:
        return failed(message, outcome=outcome, isolation=self.isolation)

    async def _bash(self, request: ToolRequest, update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, BashExec)
        argv = words_of(args.cmd)
        command = Command(
            "" if argv else args.cmd,
            cwd=args.cwd,
            env=args.env,
            timeout_seconds=_seconds(args.timeout_ms),
            links=not request.no_links,
            argv=argv,
            clean=request.clean,
        )
        return await self._execute(request, command, update)

    async def _python(self, request: ToolRequest, update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, PythonExec)
        timeout, links = _seconds(args.timeout_ms), not request.no_links
        command = Command(args.code, Interpreter.PYTHON, args.cwd, args.env, timeout, links)
        return await self._execute(request, command, update)

    async def _execute(self, request: ToolRequest, command: Command, update: Update) -> ToolOutput:
        pieces = Pieces(update)

        async def execute(session: Session) -> Finished:
            return await session.exec(command, piece=pieces)

        finished = await self._with_session(request, execute)
        pieces.end()
        return _output(finished, isolation=self.isolation)

    async def _file_read(self, request: ToolRequest, _update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, FileRead)
        limit = min(args.max_bytes, self._sessions.limits.stream_bytes)

        async def read(session: Session) -> bytes:
            return await _files(session, request).read(args.path, limit=limit + 1)

        content = await self._with_session(request, read)
        text = content[:limit].decode("utf-8", "replace")
        return self._said(text, truncated=len(content) > limit)

    async def _file_write(self, request: ToolRequest, _update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, FileWrite)
        content = args.content.encode("utf-8", "replace")

        async def write(session: Session) -> int:
            return await _files(session, request).write(args.path, content, append=args.append)

        size = await self._with_session(request, write)
        return self._said(json.dumps({"path": args.path, "bytes": len(content), "size": size}))

    async def _file_get(self, request: ToolRequest, _update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, FileGet)

        async def get(session: Session) -> tuple[bytes, str]:
            files = _files(session, request)
            version = await files.version(args.path)
            content = await files.read(args.path, limit=args.limit, offset=args.offset)
            if await files.version(args.path) != version:
                raise FileRefused("the file was changed while it was read")
            return content, version

        content, version = await self._with_session(request, get)
        encoded = base64.b64encode(content).decode()
        return self._said(json.dumps({"content": encoded, "version": version}))

    async def _file_put(self, request: ToolRequest, _update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, FilePut)
        try:
            content = base64.b64decode(args.content, validate=True)
        except ValueError:
            return failed(f"{PUT}: the content is not base64")

        async def put(session: Session) -> int:
            return await _files(session, request).write(args.path, content, append=args.append)

        size = await self._with_session(request, put)
        return self._said(json.dumps({"size": size}))

    async def _file_list(self, request: ToolRequest, _update: Update) -> ToolOutput:
        args = msgspec.convert(request.args, FileList)

        async def entries(session: Session) -> list[dict[str, Any]]:
            found = await _files(session, request).list(
                args.path, recursive=args.recursive, limit=args.limit + 1
            )
            return [{"path": each.path, "kind": each.kind, "size": each.size} for each in found]

        found = await self._with_session(request, entries)
        more = len(found) > args.limit
        return self._said(json.dumps(found[: args.limit], ensure_ascii=False), truncated=more)

    def _said(self, text: str, *, truncated: bool = False) -> ToolOutput:
        return ToolOutput(0, stdout=text, isolation=self.isolation, truncated=truncated)

    async def _with_session(self, request: ToolRequest, do: Callable[[Session], Awaitable[T]]) -> T:
        return await in_session(self._sessions.open_for, request, do)


def _files(session: Session, request: ToolRequest) -> Files:
    return session.unlinked_files if request.no_links else session.files


def failed(
    message: str, *, outcome: Outcome = Outcome.NOT_STARTED, isolation: str = "in-process"
) -> ToolOutput:
    error: JsonValue = {"code": TOOL_EXEC_FAILED, "message": message}
    return ToolOutput(
        1, stderr=message, data={"error": error}, outcome=outcome, isolation=isolation
    )


def _in_new_workspace(output: ToolOutput) -> ToolOutput:
    """The output, and that its workspace was empty when the call began."""
    if output.data is not None and not isinstance(output.data, dict):
        return output
    return output._replace(data={**(output.data or {}), "workspace": "new"})


def _output(finished: Finished, *, isolation: str) -> ToolOutput:
    ends = {
        "it took too long": finished.timed_out,
        "it wrote too much": finished.flooded,
        "it was cancelled": finished.killed,
        "it made too many files": finished.crowded,
    }
    notes = "".join(f"[killed: {reason}]\n" for reason, true in ends.items() if true)
    return ToolOutput(
        finished.exit_code or (1 if notes else 0),
        stdout=finished.stdout.decode("utf-8", "replace"),
        stderr=finished.stderr.decode("utf-8", "replace") + notes,
        data={"timedOut": finished.timed_out, "truncated": finished.cut},
        isolation=isolation,
        truncated=finished.cut,
    )


def _web_output(answer: WebResponse) -> ToolOutput:
    headers: dict[str, JsonValue] = dict(answer.headers)
    failure = f"HTTP {answer.status}" if answer.status >= 400 else ""
    return ToolOutput(
        1 if failure else 0,
        stdout=answer.body.decode("utf-8", "replace"),
        stderr=failure,
        data={"status": answer.status, "url": answer.url, "headers": headers},
        truncated=answer.truncated,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else min(milliseconds, LONGEST_MS) / 1000


async def _echo(request: ToolRequest, _update: Update) -> ToolOutput:
    return ToolOutput(0, stdout=msgspec.convert(request.args, Text).text)


async def _upper(request: ToolRequest, _update: Update) -> ToolOutput:
    return ToolOutput(0, stdout=msgspec.convert(request.args, Text).text.upper())


async def _add(request: ToolRequest, _update: Update) -> ToolOutput:
    args = msgspec.convert(request.args, MathAdd)
    with contextlib.suppress(OverflowError):
        total = args.a + args.b
        if math.isfinite(total):
            return ToolOutput(0, stdout=json.dumps(total))
    return failed("math.add: the sum is too large")
