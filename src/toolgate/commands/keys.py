"""Idempotency keys: which are in use, and the answer that each got, in memory and in the journal.

The operations are committed by whoever runs the command, in the command's own commit.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from toolgate.access.refusals import KeyConflict
from toolgate.commands.idempotency import KEPT_MS, UNFINISHED_KEPT_MS, Known, Verdict, judge
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict
from toolgate.journal.journal import Delete, Journal, Operation, Overwrite, Row
from toolgate.secrets.seal import Seal

KEYS: Final = "idempotency"
REMEMBERED_KEYS: Final = 20_000  # answers kept in memory; what was dropped is in the journal
REMEMBERED_BODY: Final = 16 * 1024  # bytes of an answer that memory keeps

# MessagePack, which holds an answer's bytes as they are.
_encode_known: Final = msgspec.msgpack.Encoder().encode
_decode_known: Final = msgspec.msgpack.Decoder(Known).decode


@dataclass(slots=True)
class Claim:
    """A key that this command holds until its answer is there."""

    slot: str
    known: Known
    answered: asyncio.Future[Known | None]  # None: it was let go without an answer


@dataclass(slots=True)
class Keys:
    """Idempotency keys by their slots (`slot_of`)."""

    journal: Journal
    clock: Clock
    seal: Seal
    _recent: OrderedDict[str, Known] = field(default_factory=OrderedDict)
    _running: dict[str, Claim] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)  # every key with a row, and no other

    async def load(self) -> Sequence[tuple[str, Known]]:
        """The keys of commands that were begun and of which no end was told, with their slots."""
        after = ""
        untold: list[tuple[str, Known]] = []
        answered_due = self.clock.now_ms() + KEPT_MS  # or before: those need not be opened
        while rows := await self.journal.scan(KEYS, after=after):
            self._used.update(row.key for row in rows)
            begun = [row for row in rows if row.due is None or row.due > answered_due]
            known = ((row.key, self._read(row)) for row in begun)
            untold += [(slot, one) for slot, one in known if one.kind and not one.done]
            after = rows[-1].key
        return untold

    def is_used(self, slot: str) -> bool:
        """Whether this key runs now or has a row; if not, it is new for certain."""
        return slot in self._used or slot in self._running

    def remembered(self, slot: str, request_hash: str) -> Known | None:
        """The answer, where memory has it; raises KeyConflict. Costs no read."""
        known = self._recent.get(slot)
        match judge(known, request_hash, now=self.clock.now_ms()):
            case Verdict.REPLAY:
                return known
            case Verdict.CONFLICT:
                raise KeyConflict
            case _:
                return None

    async def settled(self, slot: str, request_hash: str) -> Known | None:
        """The answer of a command with this key that runs now or has ended; raises KeyConflict.

        Of a command that was begun and neither runs here nor ended: what is known of it. None where
        the key is new.
        """
        while (claim := self._running.get(slot)) is not None:
            if claim.known.request_hash != request_hash:
                raise KeyConflict
            answer = await asyncio.shield(claim.answered)
            if answer is not None:
                return answer
        known = self._recent.get(slot)
        if known is None and slot in self._used:
            row = await self.journal.get(KEYS, slot)
            known = None if row is None else self._read(row)
        match judge(known, request_hash, now=self.clock.now_ms()):
            case Verdict.CONFLICT:
                raise KeyConflict
            case Verdict.FIRST:
                return None
            case _:
                return known

    def running(self, slot: str) -> bool:
        return slot in self._running

    def claim(self, slot: str, known: Known) -> Claim:
        """Hold the key; nobody else may hold it now."""
        assert slot not in self._running
        claim = Claim(slot, known, asyncio.get_running_loop().create_future())
        self._running[slot] = claim
        return claim

    def begin(self, claim: Claim) -> Operation:
        """That the key is in use: for what must not be begun twice, or waits (from now on)."""
        expires_at = self.clock.now_ms() + UNFINISHED_KEPT_MS
        value = self.seal.close(_encode_known(claim.known._replace(expires_at=expires_at)))
        self._used.add(claim.slot)
        return Overwrite(KEYS, claim.slot, value, due=expires_at)

    def told(self, slot: str, known: Known) -> Operation:
        """That an end of it was told, though it has no answer: the same key may try again."""
        value = self.seal.close(_encode_known(known._replace(kind="")))
        self._used.add(slot)
        return Overwrite(KEYS, slot, value, due=known.expires_at)

    def answer(self, claim: Claim, status: int, body: bytes) -> tuple[Known, Operation]:
        expires_at = self.clock.now_ms() + KEPT_MS
        first = claim.known
        known = Known(
            request_hash=first.request_hash,
            command_id=first.command_id,
            request_id=first.request_id,
            at=first.at,
            expires_at=expires_at,
            done=True,
            status=status,
            body=body,
        )
        value = self.seal.close(_encode_known(known))
        self._used.add(claim.slot)
        return known, Overwrite(KEYS, claim.slot, value, due=expires_at)

    def release(self, claim: Claim, known: Known | None) -> None:
        """The answer is on disk (or there is none): tell those who wait for it."""
        if self._running.get(claim.slot) is claim:
            del self._running[claim.slot]
        if known is not None and known.done and len(known.body) <= REMEMBERED_BODY:
            self._recent[claim.slot] = known
            self._recent.move_to_end(claim.slot)
            while len(self._recent) > REMEMBERED_KEYS:
                self._recent.popitem(last=False)
        else:
            self._recent.pop(claim.slot, None)
        if not claim.answered.done():
            claim.answered.set_result(known if known is not None and known.done else None)

    async def on_due(self, row: Row) -> None:
        known = self._recent.get(row.key)
        if known is not None and known.expires_at <= self.clock.now_ms():
            del self._recent[row.key]
        if row.key in self._running:
            return
        try:
            await self.journal.commit(Delete(KEYS, row.key, expected=row.version))
        except Conflict:
            return  # it was used anew since this row was read
        if row.key not in self._running:
            self._used.discard(row.key)

    def _read(self, row: Row) -> Known:
        return _decode_known(self.seal.open(row.value))


def slot_of(device: str, key: str) -> str:
    return f"{device}\n{key}"


def first_use(
    request_hash: str,
    *,
    command_id: str,
    request_id: str,
    now: int,
    kind: str = "",
    name: str = "",
    trace_id: str = "",
) -> Known:
    return Known(
        request_hash=request_hash,
        command_id=command_id,
        request_id=request_id,
        at=now,
        expires_at=now + UNFINISHED_KEPT_MS,
        kind=kind,
        name=name,
        trace_id=trace_id,
    )
