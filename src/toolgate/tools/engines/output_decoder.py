"""A command's output as it comes, as text, so that what is split between two reads stays together.

Whoever looks for secrets in it sees one text. A program writes what is much in blocks, wherever in a
line they end; what its other stream says in between has to wait for the rest of that line.
"""

import codecs
from typing import Final

from toolgate.sandbox.sandbox import Stream
from toolgate.tools.engine import Update

BLOCK: Final = 4096  # bytes; what C's library writes to a pipe at once, and others a multiple of it
MOST_WAITING: Final = 65_536  # characters


class Pieces:
    """A `Piece` of `sandbox.sandbox`; `end` is called when there is nothing more to come."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._decoders = {s: codecs.getincrementaldecoder("utf-8")("replace") for s in Stream}
        self._amid: Stream | None = None  # whose last block ended within a line
        self._waiting = ""

    def __call__(self, stream: Stream, data: bytes) -> None:
        text = self._decoders[stream].decode(data)
        if self._amid not in {None, stream}:
            self._waiting += text
            if len(self._waiting) > MOST_WAITING:
                self._show_waiting()
            return
        if text:
            self._update(text)
        if len(data) >= BLOCK and not data.endswith(b"\n"):
            self._amid = stream
        else:
            self._show_waiting()

    def end(self) -> None:
        self._show_waiting()

    def _show_waiting(self) -> None:
        waiting, self._waiting, self._amid = self._waiting, "", None
        if waiting:
            self._update(waiting)
