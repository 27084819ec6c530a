"""The entry point of `toolgate`: sets up Ctrl-C and the three streams before it imports more."""

import os
import sys

from toolgate.cli import interrupts


def run() -> None:
    interrupts.end_at_once()
    open_streams()
    # What takes time is imported only now.
    from toolgate.cli.main import main  # noqa: PLC0415

    try:
        main()
    except OSError as failed:  # such as a full disk that --help is written to
        sys.stderr.write(f"toolgate: {failed}\n")
        sys.exit(1)


def open_streams() -> None:
    """A stream that was closed becomes an empty one: a socket in its place would end the loop."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        # The lowest number that is free, and so that of the stream.
        empty = os.open(os.devnull, os.O_RDWR)
        setattr(sys, name, os.fdopen(empty, "w" if number else "r", closefd=False))
