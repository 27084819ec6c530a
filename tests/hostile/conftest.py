"""One battery per place: opened once, closed once, and then nothing may be left."""

from tests.support.engines import engine

__all__ = ["engine"]
