"""The host's end of a session: speaks with the agent inside, and believes nothing it says.

Which sandbox the agent is in is the backend's business: it hands in a way to send bytes and a way to
destroy everything. A frame that is too long, out of turn or malformed ends the session, and so does
silence past a deadline.
"""

import asyncio
import contextlib
import marshal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, cast

from toolgate.core.errors import Unavailable
from toolgate.sandbox import agent
from toolgate.sandbox.sandbox import (
    MIB,
    Command,
    Entry,
    FileRefused,
    Finished,
    Limits,
    Lost,
    NoCwd,
    NotStarted,
    Piece,
    SandboxError,
    SessionSpec,
    Stream,
    no_piece,
)

WORKSPACE: Final = "/workspace"
EGRESS_SOCKET: Final = "/run/egress.sock"
GRACE_SECONDS: Final = 1.0  # the agent's own time to end a command, beyond deadline and drain
OPEN_SECONDS: Final = 10.0
FILE_SECONDS: Final = 10.0
LARGEST_MESSAGE: Final = 65 * MIB
PATH_ENV: Final = "/usr/local/bin:/usr/bin:/bin"

# A clean command's git reads no configuration but the repository's, and of that nothing that names a
# program. The pairs have the precedence of `git -c`; a repository cannot override them.
_GIT_CONFIG: Final = {
    "safe.bareRepository": "explicit",  # not one that lies in the files of another
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "log.showSignature": "false",
    "protocol.allow": "never",
    "diff.ignoreSubmodules": "dirty",  # else git starts another git in each
    "core.preloadIndex": "false",  # threads, which a clean git may not start
    "index.threads": "1",
    "grep.threads": "1",
}
CLEAN_ENV: Final[Mapping[str, str]] = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": str(len(_GIT_CONFIG)),
    **{f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(_GIT_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(_GIT_CONFIG.values())},
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",  # so that `git status` writes nothing
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "PAGER": "cat",
}

# As a clean command's git is started; Python instead, since a shell tries to fork again and again.
CLEAN_PROBE: Final = """( { ulimit -u 0 || ulimit -p 0; } 2>/dev/null || exit
exec python3 -I -S -c '
import os
try:
    os.fork()
except OSError:
    print("held")
' )"""

# Each line but the last names a way out that is open; where one is, trying it changes nothing.
PROBE: Final = """
sees() { sed -n "s/^$1:[[:space:]]*//p" /proc/self/status; }
[ "$(id -u)" != 0 ] || echo root
[ "$(sees NoNewPrivs)" = 1 ] || echo new-privileges
[ "$(sees Seccomp)" = 2 ] || echo no-filter
[ "$(sees CapEff)$(sees CapPrm)$(sees CapBnd)" = "$(printf '%048d' 0)" ] || echo capabilities
unshare -U true 2>/dev/null && echo namespaces
(: >> /proc/sys/kernel/core_pattern) 2>/dev/null && echo sysctl
(: >> /probe && rm /probe) 2>/dev/null && echo root-writable
[ -z "$(tail -n +3 /proc/net/dev | grep -v '^ *lo:')" ] || echo network
echo end
"""


def base_env(spec: SessionSpec, *, workspace: str = WORKSPACE) -> dict[str, str]:
    env = {
        "PATH": PATH_ENV,
        "HOME": workspace,
        "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own
        "LC_CTYPE": "C.UTF-8",  # LANG would have every program read twelve files as it starts
        "SHELL": "/bin/bash",  # without it bash looks its user up, with each command
        "TERM": "dumb",
        "USER": "sandbox",
    }
    if spec.egress is not None:
        proxy = f"http://127.0.0.1:{agent.PROXY_PORT}"
        env |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy)
        env |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return env | dict(spec.env)


class Output:
    """The kept part of one stream; the agent leaves out the middle, and this class checks it."""

    def __init__(self, keep: int) -> None:
        self._head = bytearray()
        self._tail = b""
        self._keep = keep

    def add(self, data: bytes) -> None:
        if len(self._head) + len(data) > self._keep:
            raise ValueError("more output than agreed")
        self._head += data

    def end_with(self, data: bytes) -> None:
        if len(data) > self._keep:
            raise ValueError("more output than agreed")
        self._tail = data

    def missing(self, total: int) -> int:
        return max(0, total - len(self._head) - len(self._tail))

    def text(self, total: int) -> bytes:
        missing = self.missing(total)
        if not missing:
            return bytes(self._head) + self._tail
        return bytes(self._head) + b"\n[%d bytes left out]\n" % missing + self._tail


class Exchange:
    """One request and what has come of it."""

    def __init__(
        self, number: int, end: int, *, keep: int, allowance: int, piece: Piece = no_piece
    ) -> None:
        self.number = number
        self.end = end  # the kind of frame that answers it
        self.allowance = allowance  # the longest frame that may come
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.outputs = {Stream.STDOUT: Output(keep), Stream.STDERR: Output(keep)}
        self._piece = piece

    def receive(self, kind: int, payload: bytes) -> None:
        match kind:
            case agent.OUT | agent.ERR if payload:
                stream = Stream.STDOUT if kind == agent.OUT else Stream.STDERR
                self.outputs[stream].add(payload)
                self._piece(stream, payload)
            case agent.TAIL_OUT | agent.TAIL_ERR:
                stream = Stream.STDOUT if kind == agent.TAIL_OUT else Stream.STDERR
                self.outputs[stream].end_with(payload)
            case self.end:
                if not self.answer.done():
                    self.answer.set_result(payload)
            case agent.FAILED | agent.NO_CWD:
                if not self.answer.done():
                    failed = NoCwd if kind == agent.NO_CWD else NotStarted
                    self.answer.set_exception(failed(payload[:500].decode("utf-8", "replace")))
            case _:
                raise ValueError("unknown frame")


class AgentSession:
    """A warm session. The backend feeds `receive` and calls `lost` when the channel ends."""

    def __init__(
        self,
        *,
        limits: Limits,
        destroy: Callable[[], Awaitable[None]],
        explain: Callable[[], str] = str,
    ) -> None:
        self.limits = limits
        self.send: Callable[[bytes], None] = _nowhere
        self.files = AgentFiles(self)
        self.unlinked_files = AgentFiles(self, links=False)
        self._destroy = destroy
        self._explain = explain
        self._incoming = bytearray()
        self._turn = asyncio.Lock()
        self._number = 0
        self._current: Exchange | None = Exchange(0, agent.READY, keep=0, allowance=64)
        self._ready = self._current
        self._ready.answer.add_done_callback(_seen)
        self._gone = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return not self._gone and self._closing is None

    @property
    def has_begun(self) -> bool:
        """True once the agent has sent a frame."""
        ready = self._ready.answer
        return ready.done() and not ready.cancelled() and ready.exception() is None

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    async def begin(self, spec: SessionSpec, *, env: dict[str, str], egress: str = "") -> None:
        """Wait for the agent and tell it how the session begins; raises NotStarted."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._ready.answer
                self._current = None
                await self._ask({"op": "begin", "env": env, "path": egress}, seconds=OPEN_SECONDS)
        except BaseException as failed:  # whoever waited may have gone: it is nobody's then
            await self.close()
            if not isinstance(failed, Lost | NotStarted | TimeoutError):
                raise
            detail = self._explain().strip()[-500:] or str(failed) or "the agent did not answer"
            raise NotStarted(f"the sandbox did not open: {detail}") from failed

    async def exec(self, command: Command, *, piece: Piece = no_piece) -> Finished:
        limits = self.limits
        wall = limits.wall_seconds if command.timeout_seconds is None else command.timeout_seconds
        wall = max(0.001, min(wall, limits.wall_cap_seconds))
        if any("\0" in text for text in (command.text, *command.argv)) or any(
            "\0" in f"{k}{v}" for k, v in command.env.items()
        ):
            raise NotStarted("a command cannot hold NUL")
        async with self._turn:
            exchange = self._post(
                {
                    "op": "exec",
                    "text": command.text,
                    "interpreter": command.interpreter.value,
                    "cwd": command.cwd,
                    "links": command.links,
                    "argv": list(command.argv),
                    "clean": command.clean,
                    "env": {**command.env, **CLEAN_ENV} if command.clean else dict(command.env),
                    "wall": wall,
                    "drain": limits.drain_seconds,
                    "keep": limits.stream_bytes,
                    "flood": limits.flood_bytes,
                    "files": limits.disk_inodes,
                },
                allowance=max(limits.stream_bytes, agent.CHUNK),
                piece=piece,
            )
            try:
                async with asyncio.timeout(wall + limits.drain_seconds + GRACE_SECONDS):
                    payload = await asyncio.shield(exchange.answer)
            except TimeoutError:
                await self.close()
                raise Lost("the sandbox went silent and was destroyed") from None
            except asyncio.CancelledError:
                await self.kill()
                await self._see_it_end(exchange)
                raise
            finally:
                self._current = None
            return self._finished(exchange, payload)

    def _finished(self, exchange: Exchange, payload: bytes) -> Finished:
        code, flags, out_total, err_total = agent.END.unpack(payload)
        out, err = exchange.outputs[Stream.STDOUT], exchange.outputs[Stream.STDERR]
        return Finished(
            exit_code=code & 0xFF,
            stdout=out.text(out_total),
            stderr=err.text(err_total),
            stdout_total=out_total,
            stderr_total=err_total,
            timed_out=bool(flags & agent.TIMED_OUT),
            flooded=bool(flags & agent.FLOODED),
            killed=bool(flags & agent.KILLED),
            crowded=bool(flags & agent.CROWDED),
            cut=bool(out.missing(out_total) or err.missing(err_total)),
        )

    async def _see_it_end(self, exchange: Exchange) -> None:
        """Until it has ended the turn is not over: the next answer must not be taken for its own."""

        async def wait() -> None:
            seconds = self.limits.drain_seconds + GRACE_SECONDS
            _, pending = await asyncio.wait([exchange.answer], timeout=seconds)
            if pending:
                await self.close()

        task = asyncio.create_task(wait())
        while not task.done():  # whoever is cancelled once more waits all the same
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(task)

    async def check(self) -> None:
        """See from inside that the isolation is there; raises Unavailable with what is not."""
        try:
            result = await self.exec(Command(PROBE))
        except SandboxError as failed:
            raise Unavailable(f"the sandbox cannot run a command: {failed}") from failed
        said = result.stdout.decode("utf-8", "replace").split()
        if said != ["end"]:
            raise Unavailable(f"the sandbox does not hold: {' '.join(said)[:500]}")

    async def can_be_clean(self) -> bool:
        """See from inside that the kernel refuses a clean command's git every new process."""
        try:
            result = await self.exec(Command(CLEAN_PROBE, clean=True))
        except SandboxError:
            return False
        return result.stdout == b"held\n"

    async def kill(self) -> None:
        if self._current is not None and not self._gone:
            self._write({"op": "kill", "id": self._current.number})

    async def ask(self, message: dict[str, object], *, allowance: int) -> bytes:
        """One file operation, after the commands before it."""
        async with self._turn:
            return await self._ask(message, seconds=FILE_SECONDS, allowance=allowance)

    async def _ask(
        self, message: dict[str, object], *, seconds: float, allowance: int = 4096
    ) -> bytes:
        exchange = self._post(message, allowance=allowance)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(exchange.answer)
        except TimeoutError:
            await self.close()
            raise Lost("the sandbox went silent and was destroyed") from None
        except asyncio.CancelledError:
            await self._see_it_end(exchange)
            raise
        finally:
            self._current = None

    def _post(
        self, message: dict[str, object], *, allowance: int, piece: Piece = no_piece
    ) -> Exchange:
        if not self.alive:
            raise NotStarted("the session has ended")
        self._number += 1
        exchange = Exchange(
            self._number,
            agent.ENDED if message["op"] == "exec" else agent.DONE,
            keep=self.limits.stream_bytes,
            allowance=allowance,
            piece=piece,
        )
        exchange.answer.add_done_callback(_seen)
        self._current = exchange
        self._write(message | {"id": exchange.number})
        return exchange

    def _write(self, message: dict[str, object]) -> None:
        data = marshal.dumps(message, 2)  # a format that every Python inside can read
        if len(data) > LARGEST_MESSAGE:
            raise NotStarted("the request is too large")
        self.send(agent.LENGTH.pack(len(data)) + data)

    def receive(self, data: bytes) -> None:
        """Bytes from the agent, in whatever pieces they come."""
        if self._gone:
            return
        self._incoming += data
        try:
            while len(self._incoming) >= agent.FRAME.size:
                kind, number, length = agent.FRAME.unpack_from(self._incoming)
                current = self._current
                if current is None or number != current.number or length > current.allowance:
                    raise ValueError("a frame out of turn")
                end = agent.FRAME.size + length
                if len(self._incoming) < end:
                    return
                payload = bytes(self._incoming[agent.FRAME.size : end])
                del self._incoming[:end]
                if kind == agent.ENDED and length != agent.END.size:
                    raise ValueError("a malformed end")
                current.receive(kind, payload)
        except ValueError:
            self._start_closing()

    def lost(self) -> None:
        """The channel has ended, by whoever's hand."""
        self._gone = True
        if self._current is not None and not self._current.answer.done():
            self._current.answer.set_exception(Lost("the sandbox died"))
        self._start_closing()

    async def close(self) -> None:
        await asyncio.shield(self._start_closing())

    def _start_closing(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        self._gone = True
        if self._current is not None and not self._current.answer.done():
            self._current.answer.set_exception(Lost("the sandbox was destroyed"))
        await self._destroy()


class AgentFiles:
    def __init__(self, session: AgentSession, *, links: bool = True) -> None:
        self._session = session
        self._links = links

    async def read(self, path: str, *, limit: int, offset: int = 0) -> bytes:
        limit = min(limit, LARGEST_MESSAGE)
        message: dict[str, object] = {"op": "read", "path": path, "limit": limit}
        return await self._ask(message | {"offset": offset}, allowance=limit)

    async def version(self, path: str) -> str:
        answer = await self._ask({"op": "version", "path": path}, allowance=4096)
        return answer.decode("utf-8", "replace")

    async def write(self, path: str, content: bytes, *, append: bool = False) -> int:
        message: dict[str, object] = {"op": "write", "path": path, "append": append}
        answer = await self._ask(message | {"content": content}, allowance=4096)
        return _number(answer)

    async def list(self, path: str, *, recursive: bool, limit: int) -> Sequence[Entry]:
        answer = await self._ask(
            {"op": "list", "path": path, "recursive": recursive, "limit": limit},
            allowance=(limit + 1) * 4200,  # a path is at most 4096 bytes
        )
        fields = answer.decode("utf-8", "replace").split("\0")
        return [
            Entry(path=where, kind=kind, size=_number(size.encode()))
            for kind, size, where in zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
        ]

    async def _ask(self, message: dict[str, object], *, allowance: int) -> bytes:
        message["links"] = self._links
        try:
            return await self._session.ask(message, allowance=max(allowance, 4096))
        except NotStarted as refused:
            if not self._session.alive:
                raise
            raise FileRefused(str(refused)) from None


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _seen(answer: asyncio.Future[bytes]) -> None:
    """A session may die when nobody waits for its answer, not yet or no more."""
    if not answer.cancelled():
        answer.exception()


def _nowhere(_: bytes) -> None:
    raise NotStarted("the session has no channel yet")


class Feed(asyncio.Protocol):
    """Ties a stream transport to a session."""

    def __init__(self, session: AgentSession) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport.
        self._session.send = cast("asyncio.Transport", transport).write

    def data_received(self, data: bytes) -> None:
        self._session.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closing
            self._session.lost()
