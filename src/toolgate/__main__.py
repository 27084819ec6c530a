"""`python -m toolgate` is the `toolgate` command."""

from toolgate.cli.start import run

run()
