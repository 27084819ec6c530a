"""Pairing: a device knocks, the operator looks at the code and lets it in, or does not."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import msgspec

from toolgate.access.audit import Records, Trail
from toolgate.access.devices import OPERATOR, Contact, Pending, Scope, ask, kind_of
from toolgate.access.refusals import AuthRequired
from toolgate.access.registry import Registry, encode
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, Invalid, NotFound, Unavailable
from toolgate.journal.journal import Delete, Journal, Operation, Row
from toolgate.journal.rows import store

PAIRINGS: Final = "pairings"
CODE_CHANCE: Final = 2**40
ACTIONS: Final = {"rotated": "approved"}  # as the audit calls them

_decode: Final = msgspec.json.Decoder(Pending).decode


@dataclass(slots=True)
class Pairing:
    journal: Journal
    clock: Clock
    registry: Registry
    trail: Trail
    evidence: Records
    auto_approve: bool = False  # those who knock from this machine; off unless the operator says so

    _waiting: dict[str, Pending] = field(default_factory=dict)
    _letting_in: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        rows = await self.journal.scan(PAIRINGS)
        self._waiting = {row.key: _decode(row.value) for row in rows}

    def pending(self) -> Sequence[Pending]:
        """Those who wait, oldest first."""
        now = self.clock.now_ms()
        live = (one for one in self._waiting.values() if one.expires_at > now)
        return sorted(live, key=lambda one: one.requested_at)

    async def knock(self, contact: Contact) -> AuthRequired:
        """What to tell a device that has no token; TooManyPending where too many wait.

        Raises Invalid for a name that is not a device's: its commands would be another's.
        """
        if contact.device_id == OPERATOR.name or kind_of(contact.device_id) is not None:
            raise Invalid("a device goes by a name of its own", field="deviceId")
        if self.auto_approve and _is_local(contact.ip):
            async with self._letting_in:
                if self._is_new(contact):
                    token = await self._let_in(contact)
                    return AuthRequired("paired: use this token", token=token)
        now = self.clock.now_ms()
        known = self._waiting.get(contact.device_id)
        pending = ask(
            contact, self._waiting.values(), now=now, chance=secrets.randbelow(CODE_CHANCE)
        )
        if pending is not known:
            self._waiting[contact.device_id] = pending  # before the commit: the next knock sees it
            await store(
                self.journal,
                PAIRINGS,
                contact.device_id,
                encode(pending),
                *self.trail.note(
                    "pairing.requested",
                    actor=contact.device_id,
                    resource=("device", contact.device_id),
                    metadata={"ip": contact.ip, "userAgent": pending.user_agent},
                ),
                due=pending.expires_at,
            )
        return AuthRequired("this device is not paired; ask the operator", pending=pending)

    async def approve(self, device_id: str, scope: Scope | None, *, by: str) -> tuple[str, Scope]:
        """Pair a device that waits, or rotate the token of one that is paired: (token, scope)."""
        async with self._letting_in:
            return await self._approve(device_id, scope, by=by)

    async def _approve(self, device_id: str, scope: Scope | None, *, by: str) -> tuple[str, Scope]:
        waiting = self._waiting.get(device_id)
        if waiting is not None and waiting.expires_at <= self.clock.now_ms():
            waiting = None
        known = self.registry.device(device_id)
        if waiting is None and (known is None or not known.active):
            raise NotFound("pairing request of device", device_id)
        paired = known is not None and known.active
        granted = scope or (known.scope if known is not None and paired else Scope())
        note = self._note("rotated" if paired else "approved", device_id, by=by, scope=granted)
        token = await self.registry.pair(
            device_id,
            granted,
            # Of one that is paired, whoever knocks under its name may be another: with its new
            # token it can bring a key itself.
            public_key=waiting.public_key if waiting is not None and not paired else "",
            also=[Delete(PAIRINGS, device_id), *note],
        )
        self._waiting.pop(device_id, None)
        return token, granted

    async def _let_in(self, contact: Contact) -> str:
        note = self._note("approved", contact.device_id, by="auto-approve", scope=Scope())
        return await self.registry.pair(
            contact.device_id, Scope(), public_key=contact.public_key, also=note
        )

    def _is_new(self, contact: Contact) -> bool:
        """A name alone takes no paired device's token, nor back what the operator took away."""
        return self.registry.device(contact.device_id) is None

    async def bind_key(self, device_id: str, public_key: str) -> None:
        """From now on a device that has proven its token is also known by this key."""
        note = self._note("key_bound", device_id, by=device_id)
        await self.registry.bind_key(device_id, public_key, also=note)

    def _note(
        self, status: str, device_id: str, *, by: str, scope: Scope | None = None
    ) -> Sequence[Operation]:
        """Its row of the audit and its record: what was granted, to whom, by whom."""
        granted = {} if scope is None else msgspec.to_builtins(scope)
        fields = {"status": status, "device_id": device_id, "by": by, **granted}
        return (
            *self.trail.note(
                f"pairing.{ACTIONS.get(status, status)}",
                actor=by,
                resource=("device", device_id),
                metadata={"scope": granted} if granted else None,
            ),
            *self.evidence.prepare("pairing", fields, subject=device_id),
        )

    async def revoke(self, device_id: str, *, by: str) -> None:
        """Take a device's right away, or turn down one that waits; raises NotFound."""
        if self.registry.may_revoke(device_id):
            await self._revoke(device_id, by=by)  # at once, whatever else is under way
            return
        async with self._letting_in:  # it may be about to be paired
            await self._revoke(device_id, by=by)

    async def reject(self, device_id: str, *, by: str) -> None:
        """Turn down one that waits; a paired device of that name keeps its right. Raises NotFound.

        Whoever knocks under a paired device's name may be another.
        """
        async with self._letting_in:  # it may be about to be paired
            if device_id not in self._waiting:
                raise NotFound("pairing request of device", device_id)
            await self._reject(device_id, by=by)

    async def _revoke(self, device_id: str, *, by: str) -> None:
        if device_id in self._waiting and not self.registry.may_revoke(device_id):
            await self._reject(device_id, by=by)
            return
        note = self._note("revoked", device_id, by=by)
        with self._forgotten(device_id):
            await self.registry.revoke(device_id, also=[Delete(PAIRINGS, device_id), *note])

    async def _reject(self, device_id: str, *, by: str) -> None:
        note = self._note("turned_down", device_id, by=by)
        with self._forgotten(device_id):
            await self.journal.commit(Delete(PAIRINGS, device_id), *note)

    @contextlib.contextmanager
    def _forgotten(self, device_id: str) -> Iterator[None]:
        """It waits no longer; where that could not be written, it does, and can be asked again."""
        waiting = self._waiting.pop(device_id, None)
        try:
            yield
        except Unavailable:
            if waiting is not None:
                self._waiting.setdefault(device_id, waiting)
            raise

    async def on_due(self, row: Row) -> None:
        """A request that nobody answered."""
        pending = self._waiting.get(row.key)
        if pending is not None and pending.expires_at <= self.clock.now_ms():
            del self._waiting[row.key]
        with contextlib.suppress(Conflict):  # it knocked again since this row was read
            await self.journal.commit(Delete(PAIRINGS, row.key, expected=row.version))


def _is_local(ip: str) -> bool:
    try:
        return ip_address(ip).is_loopback
    except ValueError:
        return False
