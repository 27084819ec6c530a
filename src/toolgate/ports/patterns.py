"""What finds secrets in a text: the known ones exactly, the others by how they look."""

from collections.abc import Sequence
from typing import Protocol

from toolgate.secrets.redaction import Span


class Patterns(Protocol):
    def find(self, text: str) -> Sequence[Span]:
        """Every secret in the text, in any order; they may overlap."""
        ...

    def is_clean(self, text: str) -> bool:
        """Whether there is none."""
        ...

    def unfinished(self, text: str) -> int:
        """From where on the text may be the beginning of a secret that has not all come yet."""
        ...

    def learn(self, secret: str) -> None:
        """From now on, know this secret."""
        ...

    def forget(self, secret: str) -> None: ...
