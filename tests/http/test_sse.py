"""Server-sent events, by the standard, however they are cut."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.http.sse import MAX_EVENT_CHARS, SseEvent, SseParser, TooLong

STREAM = (
    b"\xef\xbb\xbf: a comment\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\n"
    b"id: 7\rdata:x\r\rretry: 5\nunknown: y\n\ndata\n\nid: 8\ndata: \xe4\xbd\xa0\n\ndata: last"
)
EVENTS = [
    SseEvent("a", "1\n2", ""),
    SseEvent("", "x", "7"),
    SseEvent("", "", "7"),
    SseEvent("", "你", "8"),
    SseEvent("", "last", "8"),
]


def parse(chunks: list[bytes]) -> list[SseEvent]:
    parser = SseParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


def test_names_ids_comments_line_ends_and_a_missing_last_blank_line() -> None:
    assert parse([STREAM]) == EVENTS


@pytest.mark.requirement("001/dispatch/sse-split-anywhere")
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_it_does_not_matter_where_the_stream_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in itertools.pairwise(places)]
    assert parse(chunks) == EVENTS


@given(st.binary())
def test_no_bytes_make_it_fail(data: bytes) -> None:
    parse([data])


@pytest.mark.parametrize("line", [b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_event_without_end_is_refused(line: bytes) -> None:
    parser = SseParser()
    parser.feed(line * (MAX_EVENT_CHARS // 1010))
    with pytest.raises(TooLong):
        parser.feed(line * 100)


def test_an_event_of_empty_lines_without_end_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.http.sse.MAX_EVENT_CHARS", 1000)
    with pytest.raises(TooLong):
        SseParser().feed(b"data:\n" * 1001)


def test_a_long_line_in_tiny_pieces_costs_no_more_than_its_length() -> None:
    parser = SseParser()
    began = time.process_time()
    parser.feed(b"data: ")
    for _ in range(60_000):
        parser.feed(b"x" * 50)
    (event,) = parser.feed(b"\n\n")
    assert event.data == "x" * 3_000_000
    assert time.process_time() - began < 5, "each piece was read with all that came before it"
