"""The digest of the workspace files that a command runs, as part of the place that it runs at.

An approval is bound to the place. So the approval of `sh s.sh` does not fit once `s.sh` has changed.
"""

import hashlib
from typing import Final

from toolgate.core.tools import ToolRequest
from toolgate.policy.inputs import CWD_ARGUMENT
from toolgate.policy.policies import Policies
from toolgate.sandbox.sandbox import Command, SandboxError
from toolgate.sandbox.sessions import Sessions
from toolgate.tools.routing import Place

SECONDS: Final = 5.0  # 64 MiB, the most that a workspace holds, take some tenths of a second


class FilesRun:
    def __init__(self, policies: Policies, sessions: Sessions) -> None:
        self._policies = policies
        self._sessions = sessions

    def added_to(self, place: Place) -> Place:
        """A place that changes with the files that the call runs."""

        async def with_files(request: ToolRequest) -> str:
            return f"{await place(request)} {await self.digest(request)}".rstrip()

        return with_files

    async def digest(self, request: ToolRequest) -> str:
        """The digest of the files that the call's words name; empty where it runs none.

        A session that is not open has no files. Names that are no files do not count.
        """
        words = self._policies.files_run(request)
        session = self._sessions.warm_for(request) if words else None
        if session is None:
            return ""
        cwd = request.args.get(CWD_ARGUMENT)
        command = Command(
            argv=("sha256sum", "--", *words),
            cwd=cwd if isinstance(cwd, str) else "",
            timeout_seconds=SECONDS,
            clean=True,
        )
        try:
            finished = await session.exec(command)
        except SandboxError:
            return ""
        if not finished.stdout:
            return ""
        return "files:" + hashlib.sha256(finished.stdout).hexdigest()
