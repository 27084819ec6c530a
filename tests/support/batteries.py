"""The choice between a short pass of a battery and all of it."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tests.support.soak import soaking

T = TypeVar("T")


def chosen(battery: Iterable[T], short: Iterable[T]) -> Sequence[T]:
    """The whole battery in a soak, else the short part of it, in the battery's order."""
    everything = list(battery)
    few = list(short)
    missing = [each for each in few if each not in everything]
    if missing:
        raise ValueError(f"not in the battery: {missing}")
    return everything if soaking() else [each for each in everything if each in few]
