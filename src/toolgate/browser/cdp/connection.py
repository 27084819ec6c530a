"""Chromium's own protocol over a pipe: commands, their answers, events.

No port is opened, so no page and no other program of this machine can reach it. A command that
waits for its answer fails when the browser ends.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from toolgate.browser.browser import BrowserGone, PageError
from toolgate.browser.chromium import FLAGS, may_sandbox
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.errors import Unavailable

LAUNCH_S: Final = 20.0
CLOSE_S: Final = 3.0
# Chromium takes commands on descriptor 3 and answers on 4; this puts ours there before it starts.
ON_3_AND_4: Final = (
    "import os,sys;os.dup2(int(sys.argv[1]),3);os.dup2(int(sys.argv[2]),4);"
    "os.execv(sys.argv[3],sys.argv[3:])"
)
READING_FLAGS: Final = (
    *FLAGS,
    "--headless",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-breakpad",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-remote-fonts",
    "--blink-settings=imagesEnabled=false",
    "--password-store=basic",
    "--use-mock-keychain",
)

Listener = Callable[[str, msgspec.Raw], None]


class CdpRefused(PageError):
    """The browser answered a command with an error."""


class _Error(msgspec.Struct):
    message: str = ""


class _Message(msgspec.Struct, rename="camel"):
    id: int = 0
    method: str = ""
    session_id: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: _Error | None = None


_decode: Final = msgspec.json.Decoder(_Message).decode
_encode: Final = msgspec.json.Encoder().encode
_ANSWERS: Final = re.compile(rb'\{"id":(\d{1,18})\b')


class _Pending:
    __slots__ = ("answer", "session_id")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()


class CdpConnection(asyncio.Protocol):
    """One browser process and the pipe to it."""

    def __init__(self, *, lost: Callable[[], None]) -> None:
        self.is_alive = True
        self.process: asyncio.subprocess.Process | None = None
        self._lost = lost
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._listeners: dict[str, Listener] = {}
        self._unread = bytearray()
        self._pipe: asyncio.Transport | None = None

    async def start(self, executable: str, *flags: str, home: Path) -> None:
        """Start the browser; raises Unavailable if it does not come up."""
        # Sockets: the loop closes a pipe's descriptor twice under uvloop, and the second time it
        # may be another file's.
        ours, theirs = socket.socketpair()
        # Above 4, so that putting one there cannot close the other.
        given = [fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 10) for _ in range(2)]
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", ON_3_AND_4, *map(str, given),
                executable, f"--user-data-dir={home}", *([] if may_sandbox() else ["--no-sandbox"]),
                *READING_FLAGS, *flags,
                pass_fds=given, start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException as failed:
            ours.close()
            if isinstance(failed, OSError):
                raise Unavailable(f"{executable} could not be started: {failed}") from failed
            raise
        finally:
            theirs.close()
            for copy in given:
                os.close(copy)
        try:
            loop = asyncio.get_running_loop()
            self._pipe, _ = await loop.create_unix_connection(lambda: self, sock=ours)
            async with asyncio.timeout(LAUNCH_S):
                await self.send("Browser.getVersion")
        except BaseException as failed:  # the caller may have been cancelled
            await self.close()
            if self._pipe is None:
                ours.close()
            if isinstance(failed, TimeoutError | PageError):
                raise Unavailable(f"{executable} did not come up") from failed
            raise

    async def close(self) -> None:
        """End the browser and everything it started."""
        self._die()
        process = self.process
        if process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):  # it ends when its pipe does
                await process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def send(self, method: str, session_id: str = "", **params: Any) -> msgspec.Raw:
        """The result of one command; raises BrowserGone if the browser dies before it answers."""
        if not self.is_alive or self._pipe is None:
            raise BrowserGone("the browser is gone")
        self._number += 1
        number = self._number
        pending = self._pending[number] = _Pending(session_id)
        command: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session_id:
            command["sessionId"] = session_id
        self._pipe.write(_encode(command) + b"\0")
        try:
            return await pending.answer
        finally:
            self._pending.pop(number, None)

    def listen(self, session_id: str, listener: Listener) -> None:
        """Call `listener` with each event of a session; the empty id is the browser's own."""
        self._listeners[session_id] = listener

    def forget(self, session_id: str) -> None:
        self._listeners.pop(session_id, None)

    def fail(self, session_id: str, why: PageError) -> None:
        """Fail each command of a session that waits for its answer."""
        for pending in self._pending.values():
            if pending.session_id == session_id and not pending.answer.done():
                pending.answer.set_exception(why)

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        begun = len(unread)
        unread += data
        if unread.find(b"\0", begun) < 0:
            return
        *whole, rest = bytes(unread).split(b"\0")
        self._unread = bytearray(rest)
        for text in whole:
            try:
                message = _decode(text)
            except UNREADABLE:
                self._unreadable(text)
            else:
                self._received(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._die()

    def _received(self, message: _Message) -> None:
        if not message.id:
            listener = self._listeners.get(message.session_id)
            if listener is not None:
                listener(message.method, message.params)
            return
        pending = self._pending.get(message.id)
        if pending is None or pending.answer.done():
            return
        if message.error is None:
            pending.answer.set_result(message.result)
        else:
            pending.answer.set_exception(CdpRefused(message.error.message))

    def _unreadable(self, text: bytes) -> None:
        """Fail the command whose answer cannot be read; a page can send half a surrogate pair."""
        found = _ANSWERS.match(text)
        pending = self._pending.get(int(found[1])) if found else None
        if pending is not None and not pending.answer.done():
            pending.answer.set_exception(CdpRefused("what the page says cannot be read"))

    def _die(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(BrowserGone("the browser died"))
        if self._pipe is not None:
            self._pipe.close()
        self._lost()
