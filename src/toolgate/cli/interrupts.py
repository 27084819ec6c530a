"""Ctrl-C: the end at once while the program loads, an exception once a command has begun."""

import os
import signal

INTERRUPTED = 130


def end_at_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # or else it is ignored
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From here on there may be something that a command tidies up after."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)
