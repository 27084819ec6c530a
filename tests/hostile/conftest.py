"""One battery per place: opened once, closed once, and then nothing may be left."""

from tests.engines import engine

__all__ = ["engine"]
