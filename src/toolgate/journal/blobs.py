"""Bytes by the name of their content: `sha256:<hex>`."""

from typing import Protocol


class Blobs(Protocol):
    async def put(self, content: bytes) -> str:
        """Store, durably, and return the digest; storing the same again costs nothing."""
        ...

    async def get(self, digest: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Raises NotFound where there is none, Damaged where the content isn't what it was."""
        ...

    async def size(self, digest: str) -> int: ...

    async def delete(self, digest: str) -> None: ...
