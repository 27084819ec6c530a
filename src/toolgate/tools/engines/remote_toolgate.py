"""Another installation as this one's executor, over HTTP.

A deny comes back as an answer; whatever keeps the contract's answer from arriving is raised. The
address is the operator's own setting, so it may be private; redirects are not followed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import UNSET

from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import UNREADABLE, given
from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, NotFound, Refused, Unavailable
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Update, no_update

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 1_000_000  # what the other side takes (toolgate.http.asgi)
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024

_decode_refusal: Final = msgspec.json.Decoder(wire.Refusal).decode
_decode_episodes: Final = msgspec.json.Decoder(wire.EpisodePage).decode
_decode_health: Final = msgspec.json.Decoder(wire.Health).decode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Traces:
    """A directory below `root` in which a driver notes each exchange; paths are relative to `root`."""

    root: Path
    directory: str

    def note(self, request_id: str, line: dict[str, JsonValue]) -> str:
        relative = f"{self.directory}/http_trace_{request_id}.jsonl"
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        return relative


class ExecutorHttp:
    """An executor over HTTP. Open it with `async with`."""

    def __init__(
        self,
        url: str,
        *,
        token: str,
        clock: Clock,
        timeout_s: float = 200.0,
        traces: Traces | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._clock = clock
        self._timeout_s = timeout_s
        self._traces = traces
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ExecutorHttp":
        self._session = aiohttp.ClientSession(
            headers={wire.HEADER_AUTHORIZATION: f"Bearer {self._token}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def run_tool(self, request: wire.RunToolRequest) -> wire.RunToolResponse:
        started = self._clock.now_ms()
        body = msgspec.json.encode(request)
        if len(body) > MAX_REQUEST_BYTES:
            raise Invalid(f"a request has at most {MAX_REQUEST_BYTES} bytes", field="args")
        status, content = await self._ask("POST", wire.RUN_PATH, body=body)
        if status not in {200, 403}:
            raise _error(status, content)
        response = self._read(content, wire.decode_response)
        if (status == 403) != (response.policy_check.decision is wire.Decision.DENY):
            raise Unavailable(f"{self._url} answered {status} with the other decision")
        if self._traces is None:
            return response
        line: dict[str, JsonValue] = {
            "at": started,
            "method": "POST",
            "path": wire.RUN_PATH,
            "request_id": request.request_id,
            "status": status,
            "duration_ms": self._clock.now_ms() - started,
        }
        try:
            noted = await asyncio.to_thread(self._traces.note, request.request_id, line)
        except OSError as error:  # the call has run, and its answer is here
            log.warning(
                "trace_not_written request=%s error=%s", request.request_id, type(error).__name__
            )
            return response
        return msgspec.structs.replace(response, local_evidence_paths=[noted])

    async def artifact(self, ref: str) -> bytes:
        status, content = await self._ask("GET", wire.ARTIFACT_PATH, params={"ref": ref})
        if status != 200:
            raise _error(status, content)
        return content

    async def episodes(self, search: wire.EpisodeSearch) -> wire.EpisodePage:
        body = msgspec.json.encode(search)
        status, content = await self._ask("POST", wire.EPISODES_PATH, body=body)
        if status != 200:
            raise _error(status, content)
        return self._read(content, _decode_episodes)

    async def health(self) -> wire.Health:
        status, content = await self._ask("GET", wire.HEALTH_PATH)
        if status != 200:
            raise _error(status, content)
        return self._read(content, _decode_health)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        if self._session is None:
            raise Unavailable("the executor's client is closed")
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=body,
                params=params,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                content = await answer.content.read(MAX_ANSWER_BYTES + 1)
                while len(content) <= MAX_ANSWER_BYTES and not answer.content.at_eof():
                    content += await answer.content.read(MAX_ANSWER_BYTES + 1 - len(content))
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{self._url} does not answer: {type(error).__name__}") from error
        if len(content) > MAX_ANSWER_BYTES:
            raise Unavailable(f"{self._url} answered more than {MAX_ANSWER_BYTES} bytes")
        return status, content

    def _read(self, content: bytes, decode: Callable[[bytes], T]) -> T:
        try:
            return decode(content)
        except UNREADABLE as unreadable:
            raise Unavailable(f"{self._url} answered what the contract has not") from unreadable


class RemoteEngine:
    """Tools that run at another installation, under the names `<prefix>.<tool>`."""

    def __init__(self, executor: ExecutorHttp, *, prefix: str) -> None:
        self._executor = executor
        self._prefix = prefix

    @property
    def ref(self) -> str:
        return f"toolgate_remote@{self._prefix}"

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        response = await self._executor.run_tool(
            wire.RunToolRequest(
                request_id=request.request_id,
                tool_id=request.tool.removeprefix(f"{self._prefix}."),
                args=dict(request.args),
                ctx=wire.Ctx(run_id=request.run_id or UNSET, step_id=request.step_id or UNSET),
            )
        )
        result = given(response.tool_result, None)
        if result is None:
            text = given(response.message, response.policy_check.reason)
            return failed(f"Denied by {response.engine_ref}: {text}")
        return ToolOutput(
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            data=given(result.data, None),
            says_null=result.data is None,
            truncated=given(result.truncated, False),
            outcome=given(response.outcome, Outcome.EXECUTED),
            isolation=f"remote:{response.engine_ref}",
        )


def _error(status: int, content: bytes) -> Exception:
    try:
        message = _decode_refusal(content).error.message
    except UNREADABLE:
        return Unavailable(f"the executor answered {status}")
    match status:
        case 400 | 413:
            return Invalid(message)
        case 401 | 403:
            return Refused(message)
        case 404:
            return NotFound("artifact", message)
        case _:
            return Unavailable(f"the executor answered {status}: {message}")
