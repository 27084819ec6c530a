"""Closing bytes so that who reads the disk learns nothing of them."""

from typing import Protocol


class Seal(Protocol):
    def close(self, content: bytes) -> bytes: ...

    def open(self, closed: bytes) -> bytes:
        """Raises Damaged where it is not what was closed."""
        ...
