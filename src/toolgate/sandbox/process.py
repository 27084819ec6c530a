"""No sandbox at all: commands run as plain processes of this user. Only for those who ask for it.

The interface is the same, and so are deadlines and output caps; nothing keeps a command from the
machine. Health and evidence say `none`.
"""

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path

from toolgate.core.errors import Misconfigured
from toolgate.core.scratch import make_scratch
from toolgate.sandbox import agent as sandbox_agent
from toolgate.sandbox.child import DESTROY_SECONDS, ChildSession
from toolgate.sandbox.sandbox import Limits, SessionSpec
from toolgate.sandbox.session import base_env


class ProcessSandbox:
    isolation = "none"
    can_be_clean = False

    def __init__(self, *, unsafe: bool, limits: Limits | None = None) -> None:
        if not unsafe:
            raise Misconfigured("the process backend isolates nothing; it needs the unsafe flag")
        self.limits = limits or Limits()
        self._root: Path | None = None
        self._sessions: set[ProcessSession] = set()

    async def check(self) -> None:
        """There is nothing to prove."""

    async def open(self, spec: SessionSpec) -> "ProcessSession":
        if self._root is None or not self._root.is_dir():  # it may have been cleaned up
            self._root = make_scratch("process")
        workspace = self._root / spec.key.digest
        workspace.mkdir(exist_ok=True)
        session = ProcessSession(limits=self.limits)
        self._sessions.add(session)

        def forget() -> None:
            self._sessions.discard(session)
            shutil.rmtree(workspace, ignore_errors=True)

        session.on_end = forget
        agent = sandbox_agent.__file__
        await session.start([sys.executable, "-I", "-S", agent, str(workspace)])
        await session.begin(spec, env=base_env(spec, workspace=str(workspace)))
        return session

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None


class ProcessSession(ChildSession):
    async def kill_all(self) -> None:
        """The agent ends its command when the channel closes; then it goes by itself."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), DESTROY_SECONDS / 2)
        await self.kill_child()
