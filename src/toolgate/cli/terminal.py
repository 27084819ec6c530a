"""What a terminal is given: tables, progress of long work, and texts that cannot steer it."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

T = TypeVar("T")
Told = Callable[[int, int], None]
"""How far it is, and of how much."""

# Escape sequences of terminals, other control characters, and what turns the direction of writing.
_STEERING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def plain(text: str) -> str:
    """What a stranger wrote, with everything visible that would act on a terminal."""
    return _STEERING.sub(_visible, text.replace("\r\n", "\n"))


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"


def table_of(columns: Iterable[str]) -> Table:
    """Without lines. Nothing is cut off: what has no room goes on below, the first column has it."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    return table


@contextlib.contextmanager
def progress(what: str) -> Iterator[Told]:
    """A bar on stderr while this goes on; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def through(items: Iterable[T], what: str, *, total: int = 0) -> Iterator[T]:
    """The items, with a bar while they are gone through."""
    with progress(what) as told:
        for done, item in enumerate(items, 1):
            told(done, total or done)
            yield item
