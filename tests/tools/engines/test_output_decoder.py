"""A command's output as it comes: what is split between two reads stays together."""

import pytest

from toolgate.sandbox.sandbox import Stream
from toolgate.secrets.patterns import SecretPatterns
from toolgate.tools.engines.output_decoder import BLOCK, MOST_WAITING, Pieces

OUT, ERR = Stream.STDOUT, Stream.STDERR
SECRET = "correct-horse-battery-staple"


@pytest.mark.requirement("003/secrets/everywhere")
def test_a_secret_between_two_blocks_is_hidden_though_the_other_stream_speaks_in_between() -> None:
    redacting = SecretPatterns([SECRET]).redactor().stream()
    shown: list[str] = []
    pieces = Pieces(lambda text: shown.append(redacting.feed(text)))
    said = f"{'x ' * ((BLOCK - 10) // 2)}{SECRET} and on\n".encode()
    pieces(OUT, said[:BLOCK])
    pieces(ERR, b"warning: slow\n")
    pieces(OUT, said[BLOCK:])
    pieces.end()
    text = "".join([*shown, redacting.close()])
    assert text.endswith("x [redacted] and on\nwarning: slow\n")


def test_what_is_said_in_turn_is_shown_at_once() -> None:
    shown: list[str] = []
    pieces = Pieces(shown.append)
    for stream, data in ((OUT, b"Building... "), (ERR, b"\r10%"), (OUT, b"\xc3"), (OUT, b"\xa9")):
        pieces(stream, data)
    assert shown == ["Building... ", "\r10%", "é"]
    pieces(OUT, b"y" * BLOCK + b"\n")
    pieces(ERR, b"after")
    assert shown[-1] == "after"


def test_the_other_stream_waits_for_a_line_only_so_long() -> None:
    shown: list[str] = []
    pieces = Pieces(shown.append)
    pieces(OUT, b"x" * BLOCK)
    pieces(ERR, b"a" * MOST_WAITING)
    assert len(shown) == 1
    pieces(ERR, b"b")
    assert shown[1:] == ["a" * MOST_WAITING + "b"]
    pieces(OUT, b"x" * BLOCK)
    pieces(ERR, b"c")
    pieces.end()
    assert shown[-1] == "c"
