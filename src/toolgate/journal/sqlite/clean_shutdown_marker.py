"""A file beside the journal that remembers how far it had come.

A journal that is behind its witness was put back from a copy: it lacks events that were delivered.
The witness is not synced, as after a power cut the journal does not vouch for those anyway.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from toolgate.core.errors import Unavailable

PERIOD: Final = 0.25  # seconds; to write it at each commit would cost a tenth of the commit


def witness_path(journal: Path) -> Path:
    return journal.with_name(journal.name + "-witness")


class Witness:
    def __init__(self, journal: Path) -> None:
        path = witness_path(journal)
        self._next = 0.0
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self.seen = _number(os.pread(self._descriptor, 64, 0))
                line = _line(self.seen or 0)
                os.pwrite(self._descriptor, line, 0)  # a full disk shows here
                os.ftruncate(self._descriptor, len(line))  # whatever else was in there
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as failed:
            raise Unavailable(
                f"{path} cannot be written ({failed.strerror}): check its disk"
            ) from failed

    def see(self, position: int, *, now: float) -> None:
        """Note the position, unless that was done just before."""
        if now >= self._next:
            self._next = now + PERIOD
            self.note(position)

    def note(self, position: int) -> None:
        with contextlib.suppress(OSError):  # then a later copy may pass for the journal itself
            os.pwrite(self._descriptor, _line(position), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def _line(position: int) -> bytes:
    return f"{position:020d}\n".encode()  # always as long, so that it is written in place


def _number(line: bytes) -> int | None:
    return int(line) if line.strip().isdigit() else None
