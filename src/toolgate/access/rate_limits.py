"""How much each caller has spent of its rate limits, in memory and in the journal.

The operations are committed by whoever runs the command, in the command's own commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from toolgate.access.ratelimit import Rate, Spent, spend
from toolgate.access.refusals import RateLimited
from toolgate.core.clock import Clock
from toolgate.journal.journal import Delete, Journal, Operation, Put, Row

RATES: Final = "rates"
MANY_BUCKETS: Final = 50_000

_encode: Final = msgspec.json.Encoder().encode
_decode_tat: Final = msgspec.json.Decoder(float).decode


class Bucket(NamedTuple):
    name: str
    rate: Rate
    what: str


class Paid(NamedTuple):
    """What one command cost, and how to take it back."""

    spent: Spent  # of the first bucket: the device's
    taken: tuple[tuple[str, float], ...] = ()  # bucket, and by how much its `tat` went up


@dataclass(slots=True)
class RateLimits:
    journal: Journal
    clock: Clock
    _tats: dict[str, float] = field(default_factory=dict)
    _written: dict[str, float] = field(default_factory=dict)

    async def load(self) -> None:
        after = ""
        while rows := await self.journal.scan(RATES, after=after):
            self._tats.update((row.key, _decode_tat(row.value)) for row in rows)
            after = rows[-1].key

    def look(self, bucket: Bucket) -> Spent:
        now = self.clock.now_ms()
        return spend(bucket.rate, self._tats.get(bucket.name, 0.0), now=now, cost=0)

    def take(self, *buckets: Bucket) -> Paid:
        """One from each, or none at all; raises RateLimited."""
        now = self.clock.now_ms()
        spends = [spend(b.rate, self._tats.get(b.name, 0.0), now=now) for b in buckets]
        for bucket, spent in zip(buckets, spends, strict=True):
            if not spent.allowed:
                raise RateLimited(spent, what=bucket.what)
        for bucket, spent in zip(buckets, spends, strict=True):
            self._tats[bucket.name] = spent.tat
        if len(self._tats) > MANY_BUCKETS:
            self._tats = {name: tat for name, tat in self._tats.items() if tat > now}
            self._written = {name: self._written.get(name, 0.0) for name in self._tats}
        return Paid(spends[0], tuple([(b.name, b.rate.window_ms / b.rate.limit) for b in buckets]))

    def writes(self, paid: Paid) -> Sequence[Operation]:
        """What must be on disk when this command is answered; commit it before anything else runs.

        One row holds for all that was taken so far: where it is on its way already, this is empty.
        """
        puts: list[Operation] = []
        for name, _ in paid.taken:
            tat = self._tats.get(name, 0.0)
            if tat > self._written.get(name, 0.0):
                self._written[name] = tat
                puts.append(Put(RATES, name, _encode(tat), due=int(tat) + 1))
        return puts

    def give_back(self, paid: Paid) -> None:
        """As much as was taken, whatever others have taken since."""
        now = self.clock.now_ms()
        for name, step in paid.taken:
            self._written.pop(name, None)  # what is on disk is too high: the next one is written
            left = self._tats.pop(name, 0.0) - step
            if left > now:
                self._tats[name] = left

    async def on_due(self, row: Row) -> None:
        """All of it is there again: nothing is left to remember."""
        if self._tats.get(row.key, 0.0) <= self.clock.now_ms():
            self._tats.pop(row.key, None)
            self._written.pop(row.key, None)
            await self.journal.commit(Delete(RATES, row.key))
