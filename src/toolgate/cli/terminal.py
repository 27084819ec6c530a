"""Output for a terminal: tables, progress of long work, texts that cannot control it."""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment, Segments
from rich.table import Column, Table

from toolgate.core.visible import visible

T = TypeVar("T")
Progressed = Callable[[int, int], None]
"""Called with the part that is done, and the whole."""

WIDEST: Final = 1_000_000  # of a line; only so that nothing is folded
GAP: Final = 2  # between the columns of a table

# Escape sequences of terminals, other control characters, and what turns the direction of writing.
_STEERING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff]"  # halves of characters, which cannot be written at all
)


def plain(text: str) -> str:
    """A stranger's text; characters that would control a terminal are made visible."""
    return _STEERING.sub(_visible, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """A stranger's text where a line means something: nothing in it is unseen or looks like a line."""
    return visible(text).replace("\n", "\u240a")


def exact(value: Any) -> str:
    """A value as JSON for a person: each character is seen."""
    return visible(json.dumps(value, ensure_ascii=False, indent=2))


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a fact on each line, whole; facts that are empty are left out."""
    width = max(map(len, facts)) + GAP
    for name, fact in facts.items():
        if fact:
            click.echo(f"{name:<{width}}{fact.replace(chr(10), chr(10) + ' ' * width)}")


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"


def of_file(error: OSError) -> str:
    """Which file, and what is wrong with it; without the number that only programs know."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def table_of(*columns: str, header: bool = True) -> Table:
    """A table without lines, to be printed with `print_table`."""
    return Table(*columns, box=None, pad_edge=False, show_header=header)


def print_table(table: Table) -> None:
    """A row is one line in a pipe. A terminal folds it between words, and never within one.

    What is broken cannot be copied or searched for: a terminal that is narrower than the words
    gets lines that are longer than it.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    needs = [_needed(column, console) for column in table.columns]
    widths = [need.maximum for need in needs]
    room = console.width - GAP * (len(widths) - 1)
    while console.is_terminal and sum(widths) > room:
        foldable = [n for n, need in enumerate(needs) if widths[n] > need.minimum]
        if not foldable:
            break
        widths[max(foldable, key=widths.__getitem__)] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    whole = console.options.update_width(sum(widths) + GAP * len(widths))
    lines = console.render_lines(table, whole, pad=False)
    shown = Segments(part for line in lines for part in (*_trimmed(line), Segment.line()))
    console.print(shown, end="", crop=False, soft_wrap=True)


def _needed(column: Column, console: Console) -> Measurement:
    """The longest word and the longest line of a column."""
    endless = console.options.update(max_width=WIDEST)
    cells = [Measurement.get(console, endless, cell) for cell in (column.header, *column.cells)]
    return Measurement(
        max(cell.minimum for cell in cells),
        max(cell.maximum for cell in cells),
    )


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Without the blanks at its end, which would wrap."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progressed]:
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
    with progress(what) as show_progress:
        for done, item in enumerate(items, 1):
            show_progress(done, total or done)
            yield item
