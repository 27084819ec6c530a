"""Seed 004: an MCP client, for whoever builds a browser task runtime.

It speaks the seed's transports, stdio and SSE (`GET …/sse`), and streamable HTTP.
"""

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urljoin

import aiohttp
from aiohttp import web

from toolgate.testkit.checks import (
    NETWORK,
    DoesNotHold,
    Kit,
    NotChecked,
    Unreachable,
    member,
    need,
    quoted,
)

PROTOCOL: Final = "2025-06-18"
TOOLS: Final = (
    "list_task_templates",
    "run_task_template",
    "get_task_run",
    "list_task_runs",
    "cancel_task_run",
    "get_artifact",
    "get_runtime_profile",
)
TEMPLATE: Final = "batch_extract_pages"
ENDED: Final = {"succeeded", "failed", "partial_success", "canceled"}
ANSWER_S: Final = 55.0
STREAM: Final = "text/event-stream"
LINE_BYTES: Final = 16 * 1024 * 1024  # of one message over stdio
PROFILE: Final[dict[str, type]] = {
    "maxConcurrentRuns": int,
    "maxUrls": int,
    "maxTabsPerSession": int,
    "syncTimeoutMs": int,
    "asyncTimeoutMs": int,
    "artifactMaxChunkSize": int,
    "artifactTtlMs": int,
    "runTtlMs": int,
    "supportedModes": list,
    "trustLevel": str,
    "isRemote": bool,
}


@dataclass(slots=True)
class McpClientPeer:
    """One MCP session; `page` is the address of a page that the runtime may open."""

    http: aiohttp.ClientSession
    page: str = ""
    token: str = ""
    url: str = ""
    _program: asyncio.subprocess.Process | None = None
    _post_to: str = ""  # of the SSE transport
    _session: str = ""  # of streamable HTTP
    _pending: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _reader: asyncio.Task[None] | None = None
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    async def open(self, *command: str) -> None:
        """Connect to `url`, or to a program over stdio; raises Unreachable."""
        try:
            async with asyncio.timeout(ANSWER_S):
                if command:
                    await self._start(command)
                elif self.url.rstrip("/").endswith("/sse"):
                    await self._open_stream()
                about = {"name": "toolgate-testkit", "version": "1"}
                hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
                await self.request("initialize", hello)
                await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        except (*NETWORK, DoesNotHold) as silent:
            raise Unreachable(str(silent) or "no answer to `initialize`") from silent

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._program is not None:
            with contextlib.suppress(ProcessLookupError):
                self._program.terminate()
            await self._program.wait()

    async def request(self, method: str, params: Any) -> dict[str, Any]:
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            response: dict[str, Any] = await asyncio.wait_for(answer, ANSWER_S)
        finally:
            del self._pending[number]
        if "error" in response:
            raise DoesNotHold(f"{method} is answered with {quoted(response['error'])}")
        return dict(response.get("result") or {})

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The JSON that a tool answers with, also where it is an error."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        if isinstance(result.get("structuredContent"), dict):
            return dict(result["structuredContent"])
        content = member(result, "content", list, of=f"{tool}'s result")
        text = content[0].get("text", "") if content else ""
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError):
            raise DoesNotHold(f"{tool} answers no JSON object: {quoted(text)}") from None

    async def start(self, **options: Any) -> dict[str, Any]:
        inputs = {"urls": [self.page]}
        return await self.call(
            "run_task_template", templateId=TEMPLATE, inputs=inputs, options=options
        )

    async def ended(self, run_id: str) -> dict[str, Any]:
        """The run after its end."""
        while True:
            run = await self.call("get_task_run", runId=run_id)
            if run.get("status") in ENDED:
                return run
            await asyncio.sleep(0.1)

    async def refused(self, code: str, tool: str, **arguments: Any) -> None:
        answer = await self.call(tool, **arguments)
        need(answer.get("errorCode") == code, f"it is answered {quoted(answer)}")

    async def _send(self, message: dict[str, Any]) -> None:
        if self._program is not None:
            assert self._program.stdin is not None
            self._program.stdin.write(json.dumps(message).encode() + b"\n")
            await self._program.stdin.drain()
            return
        headers = self._headers({"Content-Type": "application/json"})
        url = self._post_to or self.url
        async with self.http.post(url, data=json.dumps(message), headers=headers) as answer:
            if answer.status >= 400:
                text = await answer.text(errors="replace")
                raise DoesNotHold(f"{url} answered {answer.status}: {quoted(text)}")
            self._session = answer.headers.get("Mcp-Session-Id", self._session)
            if self._post_to or "id" not in message:
                return
            if answer.content_type == STREAM:
                async for _, data in _events(answer):
                    if self._receive(data) == message["id"]:
                        return
            else:
                self._receive(await answer.text())

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        headers = {"Accept": f"application/json, {STREAM}", **more}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self._session:
            headers |= {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": PROTOCOL}
        return headers

    def _receive(self, text: str | bytes) -> Any:
        """Hand a message to whoever waits for it; returns its id."""
        message = json.loads(text)
        number = message.get("id") if "method" not in message else None
        waits = self._pending.get(number) if isinstance(number, int) else None
        if waits is not None and not waits.done():
            waits.set_result(message)
        return number

    async def _start(self, command: tuple[str, ...]) -> None:
        self._program = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
        )
        self._reader = asyncio.create_task(self._read_lines(self._program))

    async def _read_lines(self, program: asyncio.subprocess.Process) -> None:
        assert program.stdout is not None
        try:
            while line := await program.stdout.readline():
                self._receive(line)
        finally:
            self._fail("the program ended, or printed what is no message")

    async def _open_stream(self) -> None:
        opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read_stream(opened))
        self._post_to = urljoin(self.url, await opened)

    async def _read_stream(self, opened: asyncio.Future[str]) -> None:
        try:
            async with self.http.get(self.url, headers=self._headers({})) as answer:
                if answer.status != 200:
                    raise DoesNotHold(f"{self.url} answered {answer.status}")
                async for name, data in _events(answer):
                    if name == "endpoint":
                        opened.set_result(data)
                    else:
                        self._receive(data)
        except (*NETWORK, DoesNotHold) as failed:
            if not opened.done():
                opened.set_exception(failed)
        finally:
            self._fail("the stream ended")

    def _fail(self, why: str) -> None:
        for waits in self._pending.values():
            if not waits.done():
                waits.set_exception(EOFError(why))


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    """Name and data of the events of a stream."""
    name, data = "", []
    async for raw in answer.content:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif not line and data:
            yield name, "\n".join(data)
            name, data = "", []


@asynccontextmanager
async def serving_page() -> AsyncIterator[str]:
    """A page on loopback; a runtime that trusts its client less may refuse it."""

    async def page(_: web.Request) -> web.Response:
        text = "<title>Testkit</title><h1>Testkit</h1><p>A page to read.</p>"
        return web.Response(text=text, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def is_run(run: dict[str, Any]) -> None:
    """Raises DoesNotHold where this is no Run of §3.2."""
    for name in ("runId", "templateId", "status"):
        member(run, name, str, of="the run")
    for name in ("createdAt", "updatedAt"):
        member(run, name, int, of="the run")
    progress = member(run, "progress", dict, of="the run")
    for name in ("doneSteps", "totalSteps"):
        member(progress, name, int, of="`progress`")
    member(member(run, "metrics", dict, of="the run"), "elapsedMs", int, of="`metrics`")
    member(run, "artifactIds", list, of="the run")
    need("ownsSession" in run, "the run has no `ownsSession`")
    need("result" in run and "error" in run, "`result` and `error` are not both there")
    status = run["status"]
    if status not in ENDED:
        need(run["result"] is None and run["error"] is None, f"it is {status}: {quoted(run)}")
    elif status in ("failed", "canceled"):
        error = member(run, "error", dict, of="the run")
        member(error, "errorCode", str, of="`error`")
    else:
        need(run["result"] is not None, f"a run that {status} has no result")


KIT: Final[Kit[McpClientPeer]] = Kit("004")


@KIT.check("§2", "| `list_task_templates` | 已有 | 保持 | 向后兼容 |", "the seven tools are listed")
async def lists_the_seven_tools(peer: McpClientPeer) -> None:
    listed = member(await peer.request("tools/list", {}), "tools", list)
    names = [tool.get("name") for tool in listed]
    missing = [name for name in TOOLS if name not in names]
    need(not missing, f"{missing} are missing in {names}")


@KIT.check("§4.5", '"maxConcurrentRuns": 5,', "get_runtime_profile has its eleven fields")
async def has_a_profile(peer: McpClientPeer) -> None:
    profile = await peer.call("get_runtime_profile")
    for name, kind in PROFILE.items():
        member(profile, name, kind, of="the profile")
    need(profile["trustLevel"] in ("local", "remote"), f"trustLevel: {profile['trustLevel']}")


@KIT.check("§2", "- 兼容现有 7 个 task runtime 工具。", "list_task_templates names the templates")
async def lists_templates(peer: McpClientPeer) -> None:
    templates = await peer.call("list_task_templates")
    need(TEMPLATE in json.dumps(templates), f"{TEMPLATE} is not in {quoted(templates)}")


@KIT.check(
    "§4.1",
    "- `async`：返回 `runId + queued/running`。",
    "async is answered at once with runId, queued or running, mode and deduplicated",
)
async def starts_async(peer: McpClientPeer) -> None:
    answer = await peer.start(mode="async")
    member(answer, "runId", str)
    need(answer.get("status") in ("queued", "running"), f"`status` is {answer.get('status')!r}")
    need(answer.get("mode") == "async", f"`mode` is {answer.get('mode')!r}")
    need(answer.get("deduplicated") is False, f"`deduplicated` is {answer.get('deduplicated')!r}")


@KIT.check(
    "§3.2",
    "- 终态失败：`status in [failed, canceled]`，`error` 必须可解释。",
    "get_task_run answers the Run; before its end result and error are null, then one is not",
)
async def answers_runs(peer: McpClientPeer) -> None:
    run_id = (await peer.start(mode="async"))["runId"]
    run = await peer.call("get_task_run", runId=run_id)
    is_run(run)
    need(run["runId"] == run_id, f"runId is {run['runId']}")
    is_run(await peer.ended(run_id))


@KIT.check("§4.1", "- `sync`：返回终态 run（含 result）。", "sync is answered with the ended run")
async def runs_sync(peer: McpClientPeer) -> None:
    answer = await peer.start(mode="sync")
    if answer.get("mode") == "async":
        raise NotChecked("this run waits for a person")
    need(answer.get("status") in ENDED, f"`status` is {answer.get('status')!r}: {quoted(answer)}")
    is_run(answer)


@KIT.check(
    "§4.1",
    "- `auto`：服务决定实际模式，并在返回中给出实际 mode（字段名仍为 `mode`）。",
    "auto is answered with the actual mode",
)
async def chooses_a_mode(peer: McpClientPeer) -> None:
    answer = await peer.start(mode="auto")
    need(answer.get("mode") in ("sync", "async"), f"`mode` is {answer.get('mode')!r}")


@KIT.check(
    "§4.1",
    "- `outputSchema`（可选）：v1 仅 TaskAgent 路径生效，直接模板执行路径忽略。",
    "outputSchema changes nothing for a template that is run directly",
)
async def ignores_an_output_schema(peer: McpClientPeer) -> None:
    answer = await peer.start(mode="async", outputSchema={"type": "string"})
    run = await peer.ended(member(answer, "runId", str))
    is_run(run)


@KIT.check("§4.1", "- `timeoutMs`：1 ~ 600000。", "timeoutMs 0 and 600001: INVALID_PARAMETER")
async def bounds_the_timeout(peer: McpClientPeer) -> None:
    inputs = {"urls": [peer.page]}
    for timeout in (0, 600_001):
        options = {"mode": "async", "timeoutMs": timeout}
        about = {"templateId": TEMPLATE, "inputs": inputs, "options": options}
        await peer.refused("INVALID_PARAMETER", "run_task_template", **about)


@KIT.check(
    "§4.1.1",
    "- 若窗口内存在同键 run，返回已有 `runId`，并返回 `deduplicated=true`。",
    "the same idempotencyKey again: the same run, deduplicated",
)
async def deduplicates(peer: McpClientPeer) -> None:
    key = uuid.uuid4().hex
    first = await peer.start(mode="async", idempotencyKey=key)
    again = await peer.start(mode="async", idempotencyKey=key)
    need(again.get("runId") == first["runId"], f"another run: {quoted(again)}")
    need(again.get("deduplicated") is True, f"`deduplicated` is {again.get('deduplicated')!r}")


@KIT.check(
    "§4.3",
    "- `total` = 过滤后的总量（不是分页后数量）。",
    "list_task_runs: newest first, and total counts what the filters leave",
)
async def lists_runs(peer: McpClientPeer) -> None:
    ids = [(await peer.start(mode="async"))["runId"] for _ in range(2)]
    for run_id in ids:
        await peer.ended(run_id)
    page = await peer.call("list_task_runs", templateId=TEMPLATE, limit=1, offset=0)
    whole = await peer.call("list_task_runs", templateId=TEMPLATE, limit=1000)
    total = member(page, "total", int)
    need(len(_runs(page)) == 1, f"limit 1 answers {len(_runs(page))} runs")
    need(total >= 2, f"`total` is {total}")
    times = [run["createdAt"] for run in _runs(whole)]
    need(times == sorted(times, reverse=True), f"createdAt: {times[:10]}")
    other = await peer.call("list_task_runs", templateId="testkit_no_such")
    need(other.get("total") == 0, f"`total` of an unknown template is {other.get('total')}")


@KIT.check("§4.3", "- `limit`：1~1000。", "limit 0 and 1001, offset -1: INVALID_PARAMETER")
async def bounds_the_list(peer: McpClientPeer) -> None:
    for wrong in ({"limit": 0}, {"limit": 1001}, {"offset": -1}):
        await peer.refused("INVALID_PARAMETER", "list_task_runs", **wrong)


@KIT.check(
    "§4.4",
    "- 终态任务：返回 `success=false` + reason（不抛错）。",
    "cancelling an ended run: success false and a reason",
)
async def cancels_an_ended_run(peer: McpClientPeer) -> None:
    run_id = (await peer.start(mode="async"))["runId"]
    await peer.ended(run_id)
    answer = await peer.call("cancel_task_run", runId=run_id)
    need(answer.get("success") is False, f"it is answered {quoted(answer)}")
    member(answer, "reason", str)


@KIT.check(
    "§4.4",
    "- 运行中任务：进入 `canceled`，errorCode=`RUN_CANCELED`。",
    "cancelling a queued or running run: canceled, with RUN_CANCELED",
)
async def cancels_a_run(peer: McpClientPeer) -> None:
    inputs = {"urls": [peer.page] * 50, "concurrency": 1}
    about = {"templateId": TEMPLATE, "inputs": inputs, "options": {"mode": "async"}}
    run_id = (await peer.call("run_task_template", **about))["runId"]
    answer = await peer.call("cancel_task_run", runId=run_id)
    if answer.get("success") is False:
        raise NotChecked("the run had ended before it could be cancelled")
    run = await peer.ended(run_id)
    need(run["status"] == "canceled", f"`status` is {run['status']}")
    need(run["error"]["errorCode"] == "RUN_CANCELED", f"`error` is {quoted(run['error'])}")


@KIT.check("§4.4", "- 不存在 run：返回 `RUN_NOT_FOUND`。", "an unknown run: RUN_NOT_FOUND")
async def knows_no_such_run(peer: McpClientPeer) -> None:
    await peer.refused("RUN_NOT_FOUND", "cancel_task_run", runId="run_testkit_no_such")
    await peer.refused("RUN_NOT_FOUND", "get_task_run", runId="run_testkit_no_such")


@KIT.check(
    "§5",
    "| `TEMPLATE_NOT_FOUND` | 修正 templateId 或升级客户端模板清单 |",
    "an unknown template: TEMPLATE_NOT_FOUND",
)
async def knows_no_such_template(peer: McpClientPeer) -> None:
    about = {"templateId": "testkit_no_such", "inputs": {}, "options": {"mode": "async"}}
    await peer.refused("TEMPLATE_NOT_FOUND", "run_task_template", **about)


@KIT.check(
    "§3.3",
    "- v1 不返回 `encoding` / `nextOffset` / `truncated` 字段。",
    "get_artifact answers a chunk with exactly its seven fields",
)
async def answers_artifacts(peer: McpClientPeer) -> None:
    run = await peer.ended((await peer.start(mode="async"))["runId"])
    if not run["artifactIds"]:
        raise NotChecked("the run has left no artifact")
    chunk = await peer.call("get_artifact", artifactId=run["artifactIds"][0])
    kinds: dict[str, type] = {
        "artifactId": str,
        "mimeType": str,
        "totalSize": int,
        "offset": int,
        "length": int,
        "data": str,
        "complete": bool,
    }
    for name, kind in kinds.items():
        member(chunk, name, kind, of="the chunk")
    more = chunk.keys() - kinds.keys()
    need(not more & {"encoding", "nextOffset", "truncated"}, f"the chunk has {sorted(more)}")
    need(chunk["complete"] is (chunk["length"] == chunk["totalSize"]), quoted(chunk))


@KIT.check(
    "§5",
    "| `ARTIFACT_NOT_FOUND` | 校验 artifactId / run 关联关系 |",
    "an unknown artifact: ARTIFACT_NOT_FOUND",
)
async def knows_no_such_artifact(peer: McpClientPeer) -> None:
    await peer.refused("ARTIFACT_NOT_FOUND", "get_artifact", artifactId="art_testkit_no_such")


def _runs(page: dict[str, Any]) -> list[Any]:
    """The runs of a list, whose member the seed does not name."""
    lists = [value for value in page.values() if isinstance(value, list)]
    need(len(lists) == 1, f"no list of runs in {quoted(page)}")
    return list(lists[0])
