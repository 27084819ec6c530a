"""The registered capabilities, in memory as they are in the journal."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from toolgate.access.audit import Trail
from toolgate.core.clock import Clock
from toolgate.core.enums import HealthStatus
from toolgate.core.errors import Conflict, Invalid, NotFound
from toolgate.core.tools import JsonValue
from toolgate.journal.journal import Check, Journal, Operation, Put
from toolgate.journal.paging import all_rows
from toolgate.journal.rows import ATTEMPTS
from toolgate.secrets.seal import Seal
from toolgate.tools.capabilities import Capability, Server

CAPABILITIES: Final = "capabilities"

Tell = Callable[[str, HealthStatus], Sequence[Operation]]  # the event of a health that changed
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Capability | None).decode


@dataclass(slots=True)
class Capabilities:
    """`built_in` are always there; registering one of them again puts its terms over ours."""

    journal: Journal
    clock: Clock
    seal: Seal
    trail: Trail
    built_in: Sequence[Capability] = ()
    learn: Callable[[str, str], object] = lambda _secret, _name: None  # a secret, and its name
    tell: Tell = lambda _capability_id, _health: ()
    _known: dict[str, Capability] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)  # of the rows that memory holds
    _observed: dict[str, tuple[HealthStatus, str]] = field(default_factory=dict)
    _registering: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        self._known = {one.capability_id: one for one in self.built_in}
        self._versions = {}
        async for row in all_rows(self.journal, CAPABILITIES):
            self._keep(row.key, _decode(self.seal.open(row.value)), row.version)
        for capability in self._known.values():
            self._learn(capability)

    def get(self, capability_id: str) -> Capability | None:
        """The capability as registered, but no healthier than the last check found it."""
        known = self._known.get(capability_id)
        if known is None or capability_id not in self._observed:
            return known
        seen, reason = self._observed[capability_id]
        if seen.rank < known.status.rank:
            return known
        return replace(known, status=seen, reason=reason)

    def registered(self, capability_id: str) -> Capability | None:
        """The capability as registered, whatever checks have found."""
        return self._known.get(capability_id)

    def check_of(self, capability_id: str) -> Check | None:
        """Return the check that a capability's row is still the one in memory; None if unknown."""
        if capability_id not in self._known:
            return None
        return Check(CAPABILITIES, capability_id, self._versions.get(capability_id, 0))

    def all(self) -> Sequence[Capability]:
        found = (self.get(capability_id) for capability_id in sorted(self._known))
        return [one for one in found if one is not None]

    async def register(self, capability: Capability, *, by: str) -> Capability:
        """Register a capability, or change its terms; without a server it keeps the one it has.

        Raises Invalid for a server of a built-in capability that has none: nobody would call it.
        """
        ours = (one.capability_id for one in self.built_in if one.server is None)
        if capability.server is not None and capability.capability_id in ours:
            raise Invalid(
                f"{capability.capability_id} is our own: it takes no server", field="server"
            )
        async with self._registering:  # one that is being given was given before
            for _ in range(ATTEMPTS - 1):
                try:
                    return await self._register(capability, by=by)
                except Conflict:
                    await self._reload(capability.capability_id)
            return await self._register(capability, by=by)

    async def _register(self, capability: Capability, *, by: str) -> Capability:
        before = self._known.get(capability.capability_id)
        expected = self._versions.get(capability.capability_id, 0)
        if before is not None and capability.server is None:
            capability = replace(capability, server=before.server)
        self._learn(capability)
        health = before.status if before is not None else HealthStatus.HEALTHY
        changed = health is not capability.status
        server = capability.server
        await self.journal.commit(
            # Sealed: a server's environment and headers may hold its secrets.
            self._put(capability.capability_id, capability, expected),
            *self.trail.note(
                "capability.registered",
                actor=by,
                resource=("capability", capability.capability_id),
                metadata={
                    "level": capability.level,
                    "status": capability.status,
                    **(_placed(server) if server is not None else {}),
                },
            ),
            *(self.tell(capability.capability_id, capability.status) if changed else ()),
        )
        if before is not None and before.server != capability.server:
            self._observed.pop(capability.capability_id, None)  # that was another server's
        self._keep(capability.capability_id, capability, expected + 1)
        return capability

    async def remove(self, capability_id: str, *, by: str) -> None:
        """Remove a capability; a built-in one goes back to its own terms. Raises NotFound.

        Its row stays, empty: a new row would start at version 1, and a check of the old terms could
        hold for the new ones.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._remove(capability_id, by=by)
            except Conflict:
                await self._reload(capability_id)
                if capability_id not in self._known:
                    return None  # another request removed it at the same time
        return await self._remove(capability_id, by=by)

    async def _remove(self, capability_id: str, *, by: str) -> None:
        if capability_id not in self._known:
            raise NotFound("capability", capability_id)
        expected = self._versions.get(capability_id, 0)
        await self.journal.commit(
            self._put(capability_id, None, expected),
            *self.trail.note(
                "capability.removed", actor=by, resource=("capability", capability_id)
            ),
        )
        self._observed.pop(capability_id, None)
        self._keep(capability_id, None, expected + 1)

    async def _reload(self, capability_id: str) -> None:
        row = await self.journal.get(CAPABILITIES, capability_id)
        if row is None:
            self._keep(capability_id, None, 0)
        else:
            self._keep(capability_id, _decode(self.seal.open(row.value)), row.version)

    def _put(self, capability_id: str, capability: Capability | None, expected: int) -> Put:
        value = self.seal.close(_encode(capability))
        return Put(CAPABILITIES, capability_id, value, expected)

    def _keep(self, capability_id: str, capability: Capability | None, version: int) -> None:
        """Store a row's content in memory; None if the capability was removed."""
        self._versions[capability_id] = version
        self._known.pop(capability_id, None)
        self._known.update(
            (one.capability_id, one) for one in self.built_in if one.capability_id == capability_id
        )
        if capability is not None:
            self._learn(capability)
            self._known[capability_id] = capability

    def report(self, capability_id: str, health: HealthStatus, reason: str = "") -> bool:
        """Note what a check found, in memory only; return whether the health has changed."""
        before, _ = self._observed.get(capability_id, (HealthStatus.HEALTHY, ""))
        self._observed[capability_id] = (health, reason)
        return before is not health

    def _learn(self, capability: Capability) -> None:
        for secret in capability.server.secrets if capability.server is not None else ():
            self.learn(secret, capability.capability_id)


def _placed(server: Server) -> dict[str, JsonValue]:
    """The audit row's account of a server: where it is, and what a program may reach."""
    shown: dict[str, JsonValue] = {"server": server.url or server.command}
    if server.command:
        shown["isolation"] = server.isolation.value
        shown["mounts"] = [str(mount) for mount in server.mounts]
        shown["egress"] = list(server.egress)
    return shown
