"""What can go wrong, named by what the caller can do about it.

    ToolgateError
    ├── Invalid       the request cannot be understood: correct it
    ├── Refused       understood, and not allowed: do not repeat it
    ├── NotFound      there is no such thing (any more)
    ├── Conflict      someone else was first: read again, then decide
    │   └── Fenced    this worker has lost what it was working on: stop
    ├── Unavailable   a part we need does not answer: try later
    │   └── Damaged   a file of ours cannot be trusted: needs a person
    └── Misconfigured a setting is wrong: needs a person

A policy's "deny" is an answer, not an error.
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=Exception)


class ToolgateError(Exception):
    """The root of every error that Toolgate itself raises."""


class Invalid(ToolgateError):
    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Refused(ToolgateError):
    pass


class NotFound(ToolgateError):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} not found")
        self.kind = kind
        self.name = name


class Conflict(ToolgateError):
    pass


class Fenced(Conflict):
    def __init__(self, name: str, *, held: int, offered: int) -> None:
        super().__init__(f"{name} is held by epoch {held}; epoch {offered} may no longer write")
        self.name = name


class Unavailable(ToolgateError):
    pass


class Damaged(Unavailable):
    pass


class Misconfigured(ToolgateError):
    pass


def code_for(error: Exception, codes: Mapping[type[E], T], default: D) -> T | D:
    """The code of an error: that of the nearest of its classes in the table."""
    return next((codes[kind] for kind in type(error).__mro__ if kind in codes), default)
