"""Reading a text as a POSIX or bash shell would."""

from typing import Protocol

from toolgate.policy.shell import Script


class ShellParser(Protocol):
    def __call__(self, text: str, /) -> Script:
        """Every simple command of the text, with an obstacle where any part is not static.

        Never raises for what a text says; raises TooComplex where there is too much of it.
        """
        ...
