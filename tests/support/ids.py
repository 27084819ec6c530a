"""Ids that a test can name before they are made: `run_1`, `run_2`, `apr_1`."""

from collections import Counter


class CountingIds:
    def __init__(self) -> None:
        self._made: Counter[str] = Counter()

    def __call__(self, prefix: str, /) -> str:
        self._made[prefix] += 1
        return f"{prefix}_{self._made[prefix]}"
