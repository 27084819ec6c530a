"""Who signs for this installation."""

from typing import Protocol

from toolgate.evidence.checkpoints import VerifierKey


class Signer(Protocol):
    @property
    def key(self) -> VerifierKey:
        """The public half, by which others check what this signs."""
        ...

    def sign(self, message: bytes) -> bytes: ...
