"""The system's randomness, asked for by the page: a system call each time costs more than all else."""

import os
import threading
from typing import Final

PAGE: Final = 4096


class Randomness:
    """Each byte is given once, in whichever thread; a forked process starts with a page of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page = b""
        self._at = 0
        os.register_at_fork(after_in_child=self._throw_away)

    def take(self, count: int) -> bytes:
        with self._lock:
            end = self._at + count
            if end > len(self._page):
                self._page = os.urandom(max(PAGE, count))
                self._at, end = 0, count
            taken = self._page[self._at : end]
            self._at = end
            return taken

    def _throw_away(self) -> None:
        self._lock = threading.Lock()
        self._page, self._at = b"", 0
