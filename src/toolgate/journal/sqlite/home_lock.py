"""One process per home: an advisory lock on `<home>/lock`, which the system drops with its holder."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final, Self

from toolgate.core.errors import Misconfigured

_NAME: Final = "lock"


class HomeInUse(Misconfigured):
    """Another process has it."""


class HomeLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, home: Path) -> Self:
        """Make the home where there is none, and hold it; raises Misconfigured where one cannot."""
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(home / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as refused:
            raise Misconfigured(
                f"{home} cannot be written ({refused.strerror}):"
                " set TOOLGATE_HOME to a directory that you may write to"
            ) from refused
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as held:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise HomeInUse(
                f"{home} is in use by process {holder}:"
                " stop that process, or set TOOLGATE_HOME to another directory"
            ) from held
        with contextlib.suppress(OSError):  # on a full disk it is held, but does not say by whom
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        os.close(self._descriptor)
