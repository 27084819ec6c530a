"""What the `toolgate` script calls: from its first moment on, Ctrl-C ends it without a traceback."""

import sys

from toolgate.cli import interrupts


def run() -> None:
    interrupts.end_at_once()
    # What takes time is imported only now.
    from toolgate.cli.main import main  # noqa: PLC0415

    try:
        main()
    except OSError as failed:  # such as a full disk that --help is written to
        sys.stderr.write(f"toolgate: {failed}\n")
        sys.exit(1)
