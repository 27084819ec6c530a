"""A command as it writes to a terminal."""

import fcntl
import os
import pty
import struct
import termios

from tests.e2e.forked import start
from tests.e2e.harness import PATIENCE, environment


def in_a_terminal(*arguments: str, columns: int = 100) -> str:
    """What a command writes where all its outputs are a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = start(arguments, environment({"TERM": "xterm"}), None, (theirs, theirs, theirs))
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    finally:
        os.close(ours)
    process.join(PATIENCE)
    assert process.exitcode is not None
    return written.decode()
