"""A session whose agent is a child process of ours, spoken to over a socket pair."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from toolgate.sandbox.sandbox import Limits, NotStarted
from toolgate.sandbox.session import PATH_ENV, AgentSession, Feed

DESTROY_SECONDS: Final = 5.0
NO_ENVIRONMENT: Final[Mapping[str, str]] = {"PATH": PATH_ENV}


def _nothing() -> None:
    pass


class ChildSession(AgentSession):
    def __init__(self, *, limits: Limits) -> None:
        super().__init__(limits=limits, destroy=self._end, explain=self._stderr)
        self.on_end: Callable[[], None] = _nothing
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._messages = os.memfd_create("stderr")  # what is said before the agent speaks
        self._pidfd: int | None = None
        self._said = ""

    async def start(self, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair()
        try:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._messages,
                    pass_fds=pass_fds,
                    env=NO_ENVIRONMENT,
                    cwd="/",
                    start_new_session=True,
                )
            )
            try:
                self._process = await asyncio.shield(starting)
            except asyncio.CancelledError:  # it starts all the same: to be ended, then
                with contextlib.suppress(OSError):
                    self._process = await starting
                raise
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._process.pid)
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_unix_connection(lambda: Feed(self), sock=ours)
        except OSError as failed:
            ours.close()
            await self.close()
            raise NotStarted(f"the sandbox did not start: {failed}") from failed
        except BaseException:
            ours.close()
            await self.close()
            raise
        finally:
            theirs.close()

    async def kill_all(self) -> None:
        """Kill whatever the session runs and wait until nothing is left."""
        await self.kill_child()

    async def kill_child(self) -> None:
        if self._process is None:
            return
        if self._pidfd is not None:
            # By its pidfd: Process.kill may take the exit status from the loop's own watcher.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), DESTROY_SECONDS)

    def _stderr(self) -> str:
        return self._said or os.pread(self._messages, 4096, 0).decode("utf-8", "replace")

    async def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()
        await self.kill_all()
        self._said = self._stderr() or "no word why"
        os.close(self._messages)
        self.on_end()
