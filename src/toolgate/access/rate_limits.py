"""The spent part of each caller's rate limits, in memory and in the journal.

`charge` gives the operations for the commit that begins something; `commit` makes that commit. A
command's end takes the operations of `writes` into its own commit.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from toolgate.access.refusals import RateLimited
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict
from toolgate.core.rates import Rate, Spent, spend
from toolgate.journal.journal import Delete, Journal, Operation, Overwrite, Put, Row
from toolgate.journal.paging import all_rows
from toolgate.journal.rows import ATTEMPTS

RATES: Final = "rates"
MANY_BUCKETS: Final = 50_000
# How long a full bucket's row stays. Within that time a node trusts the version it remembers: a row
# that was deleted and written again by another node starts at version 1 like the one before.
KEPT_MS: Final = 10 * 60_000

_encode: Final = msgspec.json.Encoder().encode
_decode_tat: Final = msgspec.json.Decoder(float).decode


class Bucket(msgspec.Struct, frozen=True):
    name: str
    rate: Rate
    what: str


class Paid(msgspec.Struct, frozen=True):
    """What one command cost, and how to take it back."""

    spent: Spent  # of the first bucket: the device's
    taken: tuple[tuple[str, float], ...] = ()  # bucket, and by how much its `tat` went up


class Charge(msgspec.Struct, frozen=True):
    """A charge and the operations that write it, for one commit in this turn of the loop."""

    paid: Paid
    operations: Sequence[Put]
    seen: Sequence[tuple[str, int]]  # each bucket with the number of times it was reloaded before


@dataclass(slots=True)
class RateLimits:
    journal: Journal
    clock: Clock
    _tats: dict[str, float] = field(default_factory=dict)
    _written: dict[str, float] = field(default_factory=dict)
    # The version that each row has once the commits under way are done; 0 where there is none.
    _versions: dict[str, int] = field(default_factory=dict)
    _stale: set[str] = field(default_factory=set)  # buckets whose version is not known
    _reloads: dict[str, int] = field(default_factory=dict)
    _reloading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        async for row in all_rows(self.journal, RATES):
            self._tats[row.key] = _decode_tat(row.value)
            self._versions[row.key] = row.version

    def look(self, bucket: Bucket) -> Spent:
        now = self.clock.now_ms()
        return spend(bucket.rate, self._tats.get(bucket.name, 0.0), now=now, cost=0)

    def check(self, buckets: Sequence[Bucket]) -> None:
        """Check that so many could be taken, a bucket as often as it is named; raises RateLimited."""
        now = self.clock.now_ms()
        for bucket, times in Counter(buckets).items():
            tat = self._tats.get(bucket.name, 0.0)
            spent = spend(bucket.rate, tat, now=now, cost=times)
            if not spent.allowed:
                raise RateLimited(spent, what=bucket.what)

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
            # A row that is still there is a conflict, and then read again.
            self._versions = {n: v for n, v in self._versions.items() if n in self._tats}
            self._reloads = {n: v for n, v in self._reloads.items() if n in self._tats}
            self._stale.intersection_update(self._tats)
        return Paid(spends[0], tuple([(b.name, b.rate.window_ms / b.rate.limit) for b in buckets]))

    async def commit(self, buckets: Sequence[Bucket], *operations: Operation) -> Paid:
        """Take one from each bucket, in one commit with `operations`; raises RateLimited.

        Nothing is read unless a bucket's row was changed elsewhere: then it is read and the limit
        decided again. Raises Conflict if `operations` do not hold.
        """
        for attempt in range(1, ATTEMPTS + 1):
            await self.refresh(buckets)
            charge = self.charge(buckets)
            try:
                await self.journal.commit(*charge.operations, *operations)
            except Conflict:
                self.undo(charge)
                if attempt == ATTEMPTS:
                    raise
            except BaseException:  # the commit may have been done
                self.undo(charge)
                raise
            else:
                return charge.paid
        raise AssertionError("unreachable")

    async def refresh(self, buckets: Sequence[Bucket]) -> None:
        """Read the rows that another node, or a commit that failed, may have left different."""
        await self._reload(self._seen(one.name for one in buckets if self._is_stale(one.name)))

    def charge(self, buckets: Sequence[Bucket]) -> Charge:
        """Take one from each bucket, and return the writes of it; raises RateLimited.

        Call `refresh` before, and `undo` if the commit fails.
        """
        paid = self.take(*buckets)
        seen = self._seen(name for name, _ in paid.taken)
        return Charge(paid, self._puts(paid), seen)

    def undo(self, charge: Charge) -> None:
        """Give back a charge whose commit failed; its rows are read before the next one."""
        self.give_back(charge.paid)
        self._stale.update(
            name for name, reloads in charge.seen if self._reloads.get(name, 0) == reloads
        )

    async def was_stale(self, charge: Charge) -> bool:
        """Read the rows of an undone charge; whether they were not the ones it was to write over."""
        is_changed = any(self._reloads.get(name, 0) != reloads for name, reloads in charge.seen)
        await self._reload(charge.seen)
        return is_changed or any(
            self._versions.get(put.key, 0) != put.expected for put in charge.operations
        )

    def _is_stale(self, name: str) -> bool:
        """Tell if another node may have changed or deleted the row unnoticed."""
        kept_until = self._tats.get(name, 0.0) + KEPT_MS
        forgotten = name in self._versions and kept_until <= self.clock.now_ms()
        return forgotten or name in self._stale

    def _seen(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """Each bucket with the number of times it was reloaded so far."""
        return [(name, self._reloads.get(name, 0)) for name in dict.fromkeys(names)]

    def _puts(self, paid: Paid) -> list[Put]:
        """The rows of what was taken, each over the version that the commits under way make."""
        puts: list[Put] = []
        for name in dict.fromkeys(name for name, _ in paid.taken):
            tat, expected = self._tats[name], self._versions.get(name, 0)
            self._written[name] = tat
            self._versions[name] = expected + 1
            puts.append(Put(RATES, name, _encode(tat), expected, int(tat) + KEPT_MS))
        return puts

    async def _reload(self, seen: Sequence[tuple[str, int]]) -> None:
        """Read the rows of these buckets, unless they were read since the number seen.

        One commit that fails makes those behind it fail: the first of them reads for all.
        """
        if not seen:
            return
        async with self._reloading:
            for name, reloads in seen:
                if self._reloads.get(name, 0) != reloads:
                    continue
                row = await self.journal.get(RATES, name)
                self._reloads[name] = reloads + 1
                self._stale.discard(name)
                self._versions[name] = 0 if row is None else row.version
                if row is not None:
                    self._tats[name] = max(self._tats.get(name, 0.0), _decode_tat(row.value))

    def writes(self, paid: Paid) -> Sequence[Operation]:
        """The operations that must be on disk when this command is answered.

        Empty if a commit under way covers what was taken. They expect no version: a conflict must
        not undo the end of a command that has run.
        """
        puts: list[Operation] = []
        for name, _ in paid.taken:
            tat = self._tats.get(name, 0.0)
            if tat > self._written.get(name, 0.0):
                self._written[name] = tat
                self._stale.add(name)
                puts.append(Overwrite(RATES, name, _encode(tat), due=int(tat) + KEPT_MS))
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
        """Delete the row of a bucket that has been full for a while."""
        name = row.key
        if self._tats.get(name, 0.0) + KEPT_MS > self.clock.now_ms():
            return
        with contextlib.suppress(Conflict):  # something was taken since it was read
            await self.journal.commit(Delete(RATES, name, expected=row.version))
            if self._versions.get(name) == row.version:
                del self._versions[name]
        if self._tats.get(name, 0.0) <= self.clock.now_ms():
            self._tats.pop(name, None)
            self._written.pop(name, None)
