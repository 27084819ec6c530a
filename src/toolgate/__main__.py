"""`python -m toolgate` is the `toolgate` command."""

from toolgate.cli.main import main

main()
