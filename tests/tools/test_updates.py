"""Updates of a running call: order, batches, limits."""

import asyncio
from collections.abc import Sequence

from toolgate.core.errors import Unavailable
from toolgate.testing.clock import FakeClock
from toolgate.tools import updates
from toolgate.tools.updates import Piece, TimedText, Updates, with_time_of


class Written:
    """Takes batches; `gate` holds each of them until it is set."""

    def __init__(self) -> None:
        self.batches: list[list[Piece]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, pieces: Sequence[Piece]) -> None:
        await self.gate.wait()
        self.batches.append(list(pieces))

    @property
    def pieces(self) -> list[Piece]:
        return [piece for batch in self.batches for piece in batch]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


async def test_pieces_are_written_in_order_and_all_before_the_close_returns() -> None:
    written = Written()
    taken = Updates(written, FakeClock())
    for number in range(1000):
        taken(f"{number} ")
        if number % 100 == 0:
            await asyncio.sleep(0)
    await taken.close()
    assert written.text == "".join(f"{number} " for number in range(1000))
    taken("too late")
    await taken.close()
    assert "late" not in written.text


async def test_what_comes_within_the_pause_is_one_batch_and_one_piece() -> None:
    written = Written()
    taken = Updates(written, FakeClock())
    taken("first")
    while not written.batches:
        await asyncio.sleep(0)
    for _ in range(100):
        taken("x")
    await taken.close()
    assert [[piece.text for piece in batch] for batch in written.batches] == [
        ["first"],
        ["x" * 100],
    ]


async def test_each_piece_keeps_the_time_of_its_source_up_to_a_number_of_pieces() -> None:
    written = Written()
    taken = Updates(written, FakeClock())
    for at in range(100):
        taken(TimedText("x", at=at))
    await taken.close()
    assert written.text == "x" * 100
    assert [piece.at for piece in written.pieces] == [*range(updates.MOST_PIECES - 1), 99]


def test_the_time_of_a_piece_goes_with_what_is_made_of_it() -> None:
    made = with_time_of("clean", TimedText("raw", at=5))
    assert isinstance(made, TimedText)
    assert (made, made.at) == ("clean", 5)
    assert type(with_time_of("clean", "raw")) is str


async def test_a_flood_is_cut_once_with_a_note_and_in_pieces_that_a_client_takes() -> None:
    written = Written()
    written.gate.clear()
    taken = Updates(written, FakeClock())
    for _ in range(3):
        taken("x" * updates.LIMIT)
    written.gate.set()
    await taken.close()
    assert written.text.endswith(updates.STOPPED)
    assert written.text.count(updates.STOPPED) == 1
    assert len(written.text) <= updates.LIMIT + len(updates.STOPPED)
    assert max(len(piece.text) for piece in written.pieces) <= updates.BATCH


async def test_many_pieces_count_for_more_than_their_text() -> None:
    written = Written()
    taken = Updates(written, FakeClock(), limit=10 * (updates.PIECE_COST + 1))
    for at in range(100):
        taken(TimedText("x", at=at))
    await taken.close()
    assert written.text == "x" * 10 + updates.STOPPED


async def test_a_journal_that_refuses_them_does_not_fail_the_call() -> None:
    async def refuse(_: Sequence[Piece]) -> None:
        raise Unavailable("the disk is full")

    taken = Updates(refuse, FakeClock())
    taken("x")
    await asyncio.sleep(0)
    taken("y")
    await taken.close()
