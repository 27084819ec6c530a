"""Make ids, and check those that a caller chose.

A made id is `<prefix>_<26 characters>`: 48 bits of time and 80 of chance in Crockford's base 32, so
that ids sort by the time they were made. The time and the chance come in from outside.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

NewId = Callable[[str], str]  # makes an id from its prefix

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
TIME_BITS: Final = 48
CHANCE_BITS: Final = 80
LENGTH: Final = 26  # 130 bits of base 32 hold the 128

_PAIRS: Final = tuple(high + low for high in ALPHABET for low in ALPHABET)  # ten bits at a time
_PATH_SAFE: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Owner(NamedTuple):
    """One start of a node: the process that may leave calls and commands open."""

    node: str
    incarnation: str

    @property
    def name(self) -> str:
        """The owner as rows keep it."""
        return f"{self.node}/{self.incarnation}"

    def is_same_node(self, name: str) -> bool:
        return name.partition("/")[0] == self.node


def make(prefix: str, *, now_ms: int, chance: int) -> str:
    """An id that sorts by time; `chance` gives its lower 80 bits."""
    number = ((now_ms & ((1 << TIME_BITS) - 1)) << CHANCE_BITS) | (
        chance & ((1 << CHANCE_BITS) - 1)
    )
    text = "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])
    return f"{prefix}_{text}"


def is_path_safe(text: str) -> bool:
    """Whether an id that a caller chose may become part of a path (executor contract)."""
    return _PATH_SAFE.fullmatch(text) is not None and ".." not in text and text != "."
