"""The gateway's end of seed 000: a tool call to a runner over HTTP, which is not to be trusted.

Every failure is an output with `data.error` and an outcome. Redirects are never followed, the
deadline is over the whole exchange, the answer has a largest size, and a runner that does not answer
is left alone for a while.
"""

import asyncio
import contextlib
import io
import logging
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final

import aiohttp
import msgspec
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from toolgate.contracts import runner_v1 as wire
from toolgate.contracts.wire import UNREADABLE, from_iso_ms, to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tools.engine import Update, no_update
from toolgate.tools.engines.command_tools import from_runner, to_runner
from toolgate.tools.targets.targets import Breaker, Target
from toolgate.tools.updates import TimedText

log = logging.getLogger(__name__)

LARGEST_ANSWER: Final = 8 * 1024 * 1024  # both streams, kept twice (updates and output), with room
LARGE_BODY: Final = 1024 * 1024
LARGEST_HEALTH: Final = 64 * 1024
HEALTH_SECONDS: Final = 3.0
HEALTH_EVERY_S: Final = 30.0  # between two requests for one target's health (runner contract)
QUOTE_SECONDS: Final = 1.0  # for the body of a refusal
CONNECTIONS_PER_RUNNER: Final = 64
IDLE_SECONDS: Final = 4.0  # runners on uvicorn or Node close a connection after 5, unless told
MOST_UPDATES: Final = 1000  # of an answer in one piece; more are joined
AT_ONCE: Final = 50  # lines of a stream, before others have their turn
RUNTIME_MODE: Final = "local"
NO_LINKS: Final = "noLinks"
CLEAN: Final = "clean"
PROMISES: Final = (NO_LINKS, CLEAN)  # members of a runner's health: what it heeds of a call
WHITE_SPACE: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Delta:
    text: str
    at: str

    def timed(self) -> str:
        """The text with its time; without one where `at` is no time."""
        with contextlib.suppress(ValueError, OverflowError):
            if (at := from_iso_ms(self.at)) >= 0:
                return TimedText(self.text, at=at)
        return self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """What a runner's body comes to: what was streamed, and the end."""

    updates: tuple[Delta, ...]
    output: ToolOutput


class Unreadable(Exception):
    """The runner's answer is not one."""


@dataclass(slots=True)
class Progress:
    """How far a call got, for its outcome if it fails."""

    sent: bool = False
    answered: bool = False


@dataclass(slots=True)
class Known:
    """What is known of one target's runner."""

    breaker: Breaker = field(default_factory=Breaker)
    health: Mapping[str, JsonValue] = field(default_factory=dict)
    promises: tuple[str, ...] | None = None  # None: as they were when the target was set
    asked_at: float = -math.inf  # for its health
    asking: asyncio.Task[None] | None = None


class Connections(aiohttp.TCPConnector):
    """Those that are kept, without those on which a runner has spoken unasked.

    The next call would take that for its answer, and may be of somebody else.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as aiohttp has it
    ) -> Connection:
        for _ in range(CONNECTIONS_PER_RUNNER):
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("it speaks without being asked")


class DockerRunners:
    """All runners: connections are reused, and each target has a circuit breaker of its own."""

    def __init__(
        self,
        *,
        clock: Clock,
        largest_answer: int = LARGEST_ANSWER,
        tls: ssl.SSLContext | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`tls` says whom to trust; without it, those whom the system trusts."""
        self._clock = clock
        self._tls = tls
        self._idle_seconds = idle_seconds
        self.largest_answer = largest_answer
        self._known: dict[tuple[str, str, int, str], Known] = {}
        self._http: aiohttp.ClientSession | None = None

    def engine(self, target: Target) -> "DockerRunner":
        return DockerRunner(target, self)

    def breaker(self, target: Target) -> Breaker:
        return self._known_of(target).breaker

    def _known_of(self, target: Target) -> Known:
        """A changed target starts anew."""
        key = (target.tenant, target.id, target.version, target.url)
        if key not in self._known:
            for old in [each for each in self._known if each[:2] == key[:2]]:
                del self._known[old]
            self._known[key] = Known()
        return self._known[key]

    @property
    def http(self) -> aiohttp.ClientSession:
        if self._http is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_headers_sent.append(_note_sent)
            self._http = aiohttp.ClientSession(
                connector=Connections(
                    limit=0,
                    limit_per_host=CONNECTIONS_PER_RUNNER,
                    ssl=self._tls or True,
                    keepalive_timeout=self._idle_seconds,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # ours is around the whole exchange
                trace_configs=[trace],
                read_bufsize=64 * 1024,
                auto_decompress=False,  # a small answer could become a large one
                headers={wire.HEADER_ACCEPT_ENCODING: "identity"},  # so that none is compressed
            )
        return self._http

    def now(self) -> str:
        return to_iso_ms(self._clock.now_ms())

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def health(self, target: Target) -> Mapping[str, JsonValue]:
        """The last health of a target, asked for now if that was long ago; never raises."""
        known = self.look(target)
        if known.asking is not None:
            await asyncio.shield(known.asking)
        return known.health

    async def read_promises(self, target: Target) -> tuple[str, ...] | None:
        """The promises of a target that is being set; None if its health cannot be read."""
        await self.health(target)
        return self._known_of(target).promises

    def promises(self, target: Target) -> tuple[str, ...] | None:
        """The promises of a target as far as they are known now."""
        known = self._known_of(target)
        return target.promises if known.promises is None else known.promises

    def can_be_clean(self, target: Target) -> bool:
        """True if the runner promises that commands run in a fixed environment."""
        if CLEAN in (self.promises(target) or ()):
            return True
        self.look(target)
        return False

    def look(self, target: Target) -> Known:
        """Ask for a target's health in the background, unless that was done lately."""
        known = self._known_of(target)
        if known.asking is None and self.monotonic() - known.asked_at >= HEALTH_EVERY_S:
            known.asked_at = self.monotonic()
            known.asking = asyncio.create_task(self._ask_health(target, known))
        return known

    async def _ask_health(self, target: Target, known: Known) -> None:
        shown: dict[str, JsonValue] = {"checkedAt": self._clock.now_ms()}
        try:
            url = _health_url(_endpoint(target))
            async with (
                asyncio.timeout(HEALTH_SECONDS),
                self.http.get(url, allow_redirects=False) as response,
            ):
                body = await _read_up_to(LARGEST_HEALTH, response)
            told = _health_of(body, status=response.status, content_type=response.content_type)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as failed:
            shown |= {"ok": False, "reason": type(failed).__name__}
        else:
            if told is None:
                shown |= {"ok": False, "reason": f"status {response.status}"}
            else:
                known.promises = tuple(name for name in PROMISES if told.get(name) is True)
                shown |= {
                    name: told[name] for name in ("backend", "usage", "reason") if name in told
                }
                shown["ok"] = told.get("ok") is True
        finally:
            known.asking = None
        known.health = shown

    async def close(self) -> None:
        asking = [known.asking for known in self._known.values() if known.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        if self._http is not None:
            await self._http.close()
            self._http = None


class DockerRunner:
    """An Engine for one target as it was when the call was made."""

    def __init__(self, target: Target, runners: DockerRunners) -> None:
        self._target = target
        self._runners = runners

    @property
    def ref(self) -> str:
        return f"docker-runner/{self._target.id}@{self._target.version}"

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        try:
            url = _endpoint(self._target)
        except ValueError as unusable:  # no runner is to blame, so none is left alone for it
            return self._failed(str(unusable), Outcome.NOT_STARTED)
        breaker = self._runners.breaker(self._target)
        if not breaker.allows(self._runners.monotonic()):
            return self._failed("the runner did not answer lately; not asked", Outcome.NOT_STARTED)
        try:
            request = self._as_promised(request)
            sent = to_runner(request)
        except (Invalid, Unavailable) as refused:
            return self._failed(str(refused), Outcome.NOT_STARTED)
        output = await self._call(url, sent, update, breaker)
        if request.no_links or request.clean:  # only now: no call waits behind it
            self._runners.look(self._target)
        return from_runner(request.tool, output)

    def _as_promised(self, request: ToolRequest) -> ToolRequest:
        """The request with what its runner promises; raises Unavailable."""
        if not request.no_links and not request.clean:
            return request
        promises = self._runners.promises(self._target)
        if promises is None:
            self._runners.look(self._target)
            raise Unavailable("the runner's health could not be read yet, and the policy needs it")
        if request.clean and CLEAN not in promises:
            raise Unavailable("the runner no longer promises to run commands clean")
        # The contract has no such member: another runner follows links as it always did.
        return request._replace(no_links=request.no_links and NO_LINKS in promises)

    async def _call(
        self, url: URL, request: ToolRequest, update: Update, breaker: Breaker
    ) -> ToolOutput:
        progress = Progress()
        try:
            async with asyncio.timeout(self._target.timeout_ms / 1000):
                output = await self._exchange(url, request, update, progress)
        except TimeoutError:
            self._count_failure(breaker, progress)
            seconds = self._target.timeout_ms / 1000
            return self._failed(f"the runner took longer than {seconds:g} s", _outcome(progress))
        except Unreadable as unreadable:
            breaker.succeeded()
            return self._failed(str(unreadable), Outcome.MAY_HAVE_EXECUTED)
        except (aiohttp.ClientError, OSError, ValueError) as broken:
            # ValueError: a token that no header can hold.
            self._count_failure(breaker, progress)
            reason = str(broken) or type(broken).__name__
            return self._failed(f"the runner cannot be reached: {reason}", _outcome(progress))
        breaker.succeeded()
        return output

    def _count_failure(self, breaker: Breaker, progress: Progress) -> None:
        """A runner that answered at all is alive, whatever became of the call."""
        if not progress.answered:
            breaker.failed(self._runners.monotonic())

    async def _exchange(
        self, url: URL, request: ToolRequest, update: Update, progress: Progress
    ) -> ToolOutput:
        body = msgspec.json.encode(self._body(request))
        async with self._runners.http.post(
            url,
            # aiohttp wants a large body as a file, which it sends in pieces.
            data=body if len(body) <= LARGE_BODY else io.BytesIO(body),
            headers=self._headers(),
            allow_redirects=False,
            trace_request_ctx=progress,
        ) as response:
            progress.answered = True
            if not 200 <= response.status < 300:
                quoted = await self._quote(response, wire.STATUS_QUOTE_CHARS)
                outcome = REFUSED_STATUS.get(response.status, Outcome.MAY_HAVE_EXECUTED)
                return self._failed(f"the runner answered {response.status}: {quoted}", outcome)
            if response.content_type == wire.NDJSON_TYPE:
                return await self._follow(response, update)
            answered = await self._read(response)
        answer = read_answer(answered, now=self._runners.now(), target=self._target)
        for delta in answer.updates:
            update(delta.timed())
        return answer.output

    async def _follow(self, response: aiohttp.ClientResponse, update: Update) -> ToolOutput:
        """Lines as they come: updates, and last the result."""
        deltas: list[Delta] = []
        size = 0
        pending = bytearray()
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._runners.largest_answer:
                raise Unreadable("the runner's answer is too large")
            pending += chunk
            if b"\n" not in chunk:  # all that came before has been looked through
                continue
            *lines, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            for number, line in enumerate(lines, 1):
                output = self._line(line, deltas, update)
                if output is not None:
                    return output
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
        output = self._line(bytes(pending), deltas, update)
        if output is None:
            raise Unreadable("the runner's answer ended without a result")
        return output

    def _line(self, line: bytes, deltas: list[Delta], update: Update) -> ToolOutput | None:
        if not line.strip():
            return None
        body = _object(line, target=self._target)
        is_last = "result" in body or "ok" in body
        entries: JsonValue = body.get("updates") if is_last else [body]
        if isinstance(entries, list):
            for delta in read_updates(entries, now=self._runners.now()):
                deltas.append(delta)
                update(delta.timed())
        if not is_last:
            return None
        return read_result(body, deltas, target=self._target)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._runners.largest_answer:
                raise Unreadable("the runner's answer is too large")
        return bytes(body)

    async def _quote(self, response: aiohttp.ClientResponse, characters: int) -> str:
        """Of a body that does not come in time nothing: it could end within the token."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(QUOTE_SECONDS):
                body = await _read_up_to(characters * 16, response)
            return quote(body, characters, target=self._target)
        return ""

    def _hide(self, text: str) -> str:
        """A runner may send its own token back to us; it goes no further."""
        return _hide(text, self._target)

    def _failed(self, message: str, outcome: Outcome) -> ToolOutput:
        message = self._hide(message)
        log.info("runner_failed target=%s outcome=%s", self._target.id, outcome)
        return failure(wire.ErrorCode.TOOL_EXEC_FAILED, message, outcome=outcome)

    def _headers(self) -> dict[str, str]:
        headers = {
            wire.HEADER_CONTENT_TYPE: wire.JSON_TYPE,
            wire.HEADER_ACCEPT: f"{wire.NDJSON_TYPE}, {wire.JSON_TYPE};q=0.9",
        }
        if self._target.auth_token:
            headers[wire.HEADER_AUTHORIZATION] = f"Bearer {self._target.auth_token}"
        return headers

    def _body(self, request: ToolRequest) -> wire.ExecuteRequest:
        caller, target = request.caller, self._target
        return wire.ExecuteRequest(
            call=wire.Call(
                name=request.tool,
                args=dict(request.args),
                no_links=request.no_links or msgspec.UNSET,
                clean=request.clean or msgspec.UNSET,
            ),
            ctx=wire.Ctx(
                run_id=request.run_id or f"run_{request.request_id}",
                session_id=caller.session or request.run_id or f"run_{request.request_id}",
                runtime_mode=RUNTIME_MODE,
                tool_call_id=request.request_id or msgspec.UNSET,
            ),
            target=wire.Target(
                target_id=target.id,
                kind=target.kind.value,
                tenant_id=target.tenant,
                workspace_id=target.workspace if target.workspace is not None else msgspec.UNSET,
            ),
        )


# Statuses with which a runner says that it did not begin.
REFUSED_STATUS: Final = dict.fromkeys((400, 401, 403, 404, 405, 413, 429), Outcome.NOT_STARTED)
# And with which one says that it has no health to ask for.
NO_HEALTH_STATUS: Final = frozenset({400, 401, 403, 404, 405, 501})


def _health_of(body: bytes, *, status: int, content_type: str) -> Mapping[str, JsonValue] | None:
    """The health of a runner; None if it cannot be read.

    The contract asks for no health, so one that has none, or words it in its own way, is well and
    promises nothing. One whose health fails, or is broken JSON, might promise something.
    """
    if status in NO_HEALTH_STATUS:
        return {"ok": True, "reason": "it has no health"}
    told: JsonValue = None
    try:
        told = msgspec.json.decode(body)
    except UNREADABLE:
        if content_type == wire.JSON_TYPE:
            return None
    is_well = 200 <= status < 300
    if isinstance(told, dict) and (is_well or NO_LINKS in told):
        return {**told, "ok": is_well and told.get("ok", True) is True}
    return {"ok": True} if is_well else None


def read_answer(body: bytes, *, now: str, target: Target) -> Answer:
    """Either of the contract's two shapes; raises Unreadable."""
    decoded = _object(body, target=target)
    updates = decoded.get("updates")
    deltas = read_updates(updates, now=now) if isinstance(updates, list) else []
    return Answer(tuple(deltas), read_result(decoded, deltas, target=target))


def read_updates(entries: list[JsonValue], *, now: str) -> list[Delta]:
    """In their order; the last of the most that there may be holds all that come after it."""
    found: list[Delta] = []
    more: list[str] = []
    for entry in entries:
        members = entry if isinstance(entry, dict) else {}
        delta = entry if isinstance(entry, str) else members.get("delta")
        if not isinstance(delta, str):
            continue
        if len(found) == MOST_UPDATES:
            more.append(delta)
        else:
            at = members.get("at")
            found.append(Delta(delta, at if isinstance(at, str) else now))
    if more:
        found[-1] = Delta("".join((found[-1].text, *more)), found[-1].at)
    return found


def read_result(body: dict[str, JsonValue], deltas: list[Delta], *, target: Target) -> ToolOutput:
    inner = body.get("result")
    result = inner if isinstance(inner, dict) else body
    ok = result.get("ok")
    if not isinstance(ok, bool):
        raise Unreadable("the runner's answer is no result: `ok` must be a boolean")
    stderr = _text(result, "stderr")
    isolation = f"runner:{_hide(_text(result, 'isolation'), target)[:32]}"
    cut = result.get("truncated") is True
    data: dict[str, JsonValue] = {"workspace": "new"} if result.get("workspace") == "new" else {}
    if ok:
        output = result.get("output", "".join(delta.text for delta in deltas))
        if not isinstance(output, str):
            raise Unreadable("the runner's answer is no result: `output` must be a string")
        return ToolOutput(0, output, stderr, data or None, isolation=isolation, truncated=cut)
    error = result.get("error")
    told = error if isinstance(error, dict) else {}
    code, message = _text(told, "code"), _text(told, "message")
    if not code or code == wire.ErrorCode.POLICY_DENIED:  # a runner does not speak for the policy
        code = wire.ErrorCode.TOOL_EXEC_FAILED
    told_code = result.get("exitCode")
    exit_code = told_code if type(told_code) is int and 0 < told_code < 256 else 0
    if exit_code:
        data |= {"exitCode": exit_code, "timedOut": result.get("timedOut") is True}
    failed = failure(
        code,
        _hide(message, target),
        outcome=_told_outcome(result.get("outcome")),
        exit_code=exit_code or 1,
        stdout=_text(result, "stdout"),
        stderr=_hide(stderr, target),
        isolation=isolation,
        truncated=cut,
    )
    error_data = failed.data if isinstance(failed.data, dict) else {}
    return failed._replace(data={**error_data, **data})


def failure(
    code: str,
    message: str,
    *,
    outcome: Outcome,
    exit_code: int = 1,
    stdout: str = "",
    stderr: str = "",
    isolation: str = "runner:",
    truncated: bool = False,
) -> ToolOutput:
    error: JsonValue = {"code": str(code), "message": message}
    return ToolOutput(
        exit_code,
        stdout=stdout,
        stderr=stderr or message,
        data={"error": error},
        outcome=outcome,
        isolation=isolation,
        truncated=truncated,
    )


def quote(body: bytes, characters: int, *, target: Target) -> str:
    """The beginning, without the token: where it is cut in two, nobody would know the half."""
    text = _hide(body.decode("utf-8", "replace"), target)
    return WHITE_SPACE.sub(" ", text).strip()[:characters]


def _hide(text: str, target: Target) -> str:
    return text.replace(target.auth_token, "***") if target.auth_token else text


def _endpoint(target: Target) -> URL:
    """Raises ValueError with what is wrong with it."""
    if not target.url:
        raise ValueError("the execution target has no endpoint")
    try:
        url = URL(target.url)
    except ValueError as unreadable:
        raise ValueError(f"the endpoint is no URL: {unreadable}") from unreadable
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("the endpoint must be an http or https URL")
    return url


def _health_url(endpoint: URL) -> URL:
    """Beside the endpoint's last path segment, wherever a proxy has put both."""
    before = endpoint.raw_path.rpartition("/")[0]
    return endpoint.with_path(before + wire.HEALTH_PATH, encoded=True).with_query(None)


async def _read_up_to(limit: int, response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body[:limit])


def _object(body: bytes, *, target: Target) -> dict[str, JsonValue]:
    try:
        decoded = msgspec.json.decode(body)
    except UNREADABLE:
        decoded = None
    if not isinstance(decoded, dict):
        raise Unreadable(
            f"the runner's answer is no JSON object: {quote(body, wire.BODY_QUOTE_CHARS, target=target)}"
        )
    return decoded


def _text(members: Mapping[str, JsonValue], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) else ""


def _told_outcome(told: JsonValue) -> Outcome:
    with contextlib.suppress(ValueError):
        return Outcome(told if isinstance(told, str) else "")
    return Outcome.MAY_HAVE_EXECUTED


def _outcome(progress: Progress) -> Outcome:
    return Outcome.MAY_HAVE_EXECUTED if progress.sent else Outcome.NOT_STARTED


async def _note_sent(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceRequestHeadersSentParams,
) -> None:
    progress = context.trace_request_ctx
    if isinstance(progress, Progress):
        progress.sent = True
