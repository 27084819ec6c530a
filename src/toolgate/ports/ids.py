"""New ids, as a thing that is handed in, so that a test can name them."""

from typing import Protocol


class NewId(Protocol):
    def __call__(self, prefix: str, /) -> str: ...
