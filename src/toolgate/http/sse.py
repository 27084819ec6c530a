"""Server-sent events, read by the standard: names, ids, many data lines, comments, any line end."""

import codecs
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final

MAX_EVENT_CHARS: Final = 4 * 1024 * 1024  # an event without end must not take all memory


@dataclass(frozen=True, slots=True)
class SseEvent:
    event: str  # empty where the stream does not name it
    data: str
    event_id: str


class TooLong(Exception):
    """An event grew beyond every reason."""


class SseParser:
    """Bytes in, cut anywhere; whole events out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._rest: list[str] = []  # a line that has not ended, in the pieces it came in
        self._rest_size = 0
        self._skip_lf = False
        self._event = ""
        self._data: list[str] = []
        self._size = 0
        self._id = ""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        return self._take(self._decoder.decode(chunk))

    def finish(self) -> list[SseEvent]:
        """The stream has ended; an event that lacks only its blank line is taken."""
        events = self._take(self._decoder.decode(b"", final=True))
        if self._rest:
            events += self._line("".join(self._rest))
            self._rest, self._rest_size = [], 0
        return events + self._line("")

    def _take(self, text: str) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in self._lines(text):
            events += self._line(line)
        return events

    def _lines(self, text: str) -> list[str]:
        if self._skip_lf and text:
            text = text.removeprefix("\n")  # the second half of a CR LF that was cut in two
            self._skip_lf = False
        if text.endswith("\r"):
            self._skip_lf = True
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines:
            lines[0] = "".join((*self._rest, lines[0]))
            self._rest, self._rest_size = [], 0
        if rest:
            self._rest.append(rest)
            self._rest_size += len(rest)
        if self._rest_size > MAX_EVENT_CHARS:
            raise TooLong
        return lines

    def _line(self, line: str) -> list[SseEvent]:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
                self._size += len(value) + 1  # with its line end: an empty one takes room too
                if self._size > MAX_EVENT_CHARS:
                    raise TooLong
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
            case _:  # a comment (its name is empty), `retry`, or a field of the future
                pass
        return []

    def _dispatch(self) -> list[SseEvent]:
        event, data = self._event, self._data
        self._event, self._data, self._size = "", [], 0
        return [SseEvent(event, "\n".join(data), self._id)] if data else []


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[SseEvent]:
    parser = SseParser()
    async for chunk in chunks:
        for event in parser.feed(chunk):
            yield event
    for event in parser.finish():
        yield event
