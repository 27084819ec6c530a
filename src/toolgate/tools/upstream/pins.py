"""The pinned definitions of MCP servers' tools: one row each, from when it is first listed.

A server that changes a definition quarantines the tool: it is not offered, and its calls are refused,
until a person accepts the change. Another server of the same capability starts anew.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec

from toolgate.access.audit import Trail
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, NotFound
from toolgate.journal.journal import Check, Journal, Operation, Put
from toolgate.journal.paging import all_rows
from toolgate.journal.rows import ATTEMPTS
from toolgate.secrets.seal import Seal
from toolgate.tools.capabilities import Server

COLLECTION: Final = "mcp_definitions"

Definition = dict[str, Any]  # JSON

_canonical: Final = msgspec.json.Encoder(order="sorted").encode


def definition_of(listed: Any) -> Definition:
    """All that a server says about a tool (the SDK's `Tool`), for people and for the digest."""
    said: Definition = listed.model_dump(mode="json", by_alias=True, exclude_none=True)
    names = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    return {name: said[name] for name in names if name in said}


def digest_of(definition: Definition) -> str:
    return hashlib.sha256(_canonical(definition)).hexdigest()


@dataclass(frozen=True, slots=True)
class Pin:
    capability_id: str
    tool: str  # as the server names it
    place: str  # of the server that listed it
    definition: Definition
    digest: str
    at: int  # Unix ms
    accepted_by: str = ""  # empty: pinned when it was first listed
    changed: Definition | None = None  # what the server says now, if that is different

    @property
    def name(self) -> str:
        return f"{self.capability_id}.{self.tool}"

    @property
    def changed_digest(self) -> str:
        return "" if self.changed is None else digest_of(self.changed)

    def after(self, definition: Definition) -> "Pin":
        """The pin once its server has listed this definition."""
        if digest_of(definition) == self.digest:
            return self if self.changed is None else replace(self, changed=None)
        return self if self.changed == definition else replace(self, changed=definition)


class _Held(NamedTuple):
    pin: Pin
    version: int


_decode: Final = msgspec.json.Decoder(Pin).decode


class Pins:
    def __init__(self, journal: Journal, clock: Clock, seal: Seal, trail: Trail) -> None:
        self._journal = journal
        self._clock = clock
        self._seal = seal
        self._trail = trail
        self._held: dict[tuple[str, str], _Held] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        async for row in all_rows(self._journal, COLLECTION):
            pin = _decode(self._seal.open(row.value))
            self._held[pin.capability_id, pin.tool] = _Held(pin, row.version)

    def get(self, capability_id: str, tool: str) -> Pin | None:
        held = self._held.get((capability_id, tool))
        return None if held is None else held.pin

    def of(self, capability_id: str) -> list[Pin]:
        """The pins of a capability, by name."""
        return [pin for pin in self.all() if pin.capability_id == capability_id]

    def all(self) -> list[Pin]:
        return [self._held[key].pin for key in sorted(self._held)]

    def check_of(self, capability_id: str, tool: str) -> Check:
        """The check that a tool's pin is the one in memory, or that it has none."""
        held = self._held.get((capability_id, tool))
        version = 0 if held is None else held.version
        return Check(COLLECTION, _key(capability_id, tool), version)

    def refusal(self, capability_id: str, tool: str) -> str:
        """The reason why a tool may not be called; empty if its definition is the pinned one."""
        pin = self.get(capability_id, tool)
        if pin is None or pin.changed is None:
            return ""
        return f"the server has changed the definition of {pin.name} since it was accepted"

    async def observe(
        self, capability_id: str, server: Server, definitions: Sequence[Definition]
    ) -> None:
        """Pin the tools that are new, and note those that have changed. Raises Unavailable."""
        place = place_of(server)
        async with self._writing:
            for attempt in range(1, ATTEMPTS + 1):
                changes = [
                    pin
                    for definition in definitions
                    if (pin := self._after(capability_id, place, definition)) is not None
                ]
                if not changes:
                    return
                try:
                    await self._write(changes, self._noted(capability_id, changes))
                    return
                except Conflict:  # another process writes the same rows
                    if attempt == ATTEMPTS:
                        raise
                    await self.load()

    async def accept(self, capability_id: str, tool: str, digest: str, *, by: str) -> Pin:
        """Pin the changed definition with this digest. Raises NotFound, Conflict."""
        async with self._writing:
            pin = self.get(capability_id, tool)
            if pin is None:
                raise NotFound("tool", f"{capability_id}.{tool}")
            if pin.changed is None or pin.changed_digest != digest:
                raise Conflict(
                    f"{pin.name} has no change with this digest; see toolgate mcp show {pin.name}"
                )
            accepted = replace(
                pin,
                definition=pin.changed,
                digest=digest,
                changed=None,
                at=self._clock.now_ms(),
                accepted_by=by,
            )
            note = self._trail.note(
                "mcp.definition_accepted",
                actor=by,
                resource=("tool", pin.name),
                metadata={"from": pin.digest, "to": digest},
            )
            await self._write([accepted], note)
            return accepted

    def _after(self, capability_id: str, place: str, definition: Definition) -> Pin | None:
        """The pin that a listed definition makes; None where nothing changes."""
        tool = str(definition["name"])
        before = self.get(capability_id, tool)
        if before is not None and before.place == place:
            after = before.after(definition)
            return None if after is before else after
        now, digest = self._clock.now_ms(), digest_of(definition)
        return Pin(capability_id, tool, place, definition, digest, now)

    def _noted(self, capability_id: str, changes: Sequence[Pin]) -> Sequence[Operation]:
        """The audit rows: one for all tools that are new, one for each that has changed."""
        operations: list[Operation] = []
        new = 0
        for pin in changes:
            before = self.get(capability_id, pin.tool)
            if before is None or before.place != pin.place:
                new += 1
                continue
            operations += self._trail.note(
                "mcp.definition_changed",
                actor=capability_id,
                resource=("tool", pin.name),
                metadata={"from": pin.digest, "to": pin.changed_digest or pin.digest},
            )
        if new:
            operations += self._trail.note(
                "mcp.definitions_pinned",
                actor=capability_id,
                resource=("capability", capability_id),
                metadata={"tools": new},
            )
        return operations

    async def _write(self, pins: Sequence[Pin], also: Sequence[Operation]) -> None:
        written: list[tuple[tuple[str, str], _Held]] = []
        operations: list[Operation] = []
        for pin in pins:
            key = (pin.capability_id, pin.tool)
            held = self._held.get(key)
            version = 0 if held is None else held.version
            value = self._seal.close(msgspec.json.encode(pin))  # a server may say anything
            operations.append(Put(COLLECTION, _key(*key), value, expected=version))
            written.append((key, _Held(pin, version + 1)))
        await self._journal.commit(*operations, *also)
        self._held.update(written)


def place_of(server: Server) -> str:
    """The server, but for its environment and headers, which may hold secrets."""
    return msgspec.json.encode([server.url, server.command, server.args]).decode()


def _key(capability_id: str, tool: str) -> str:
    """A short key of a row, whatever a server calls its tools."""
    name = f"{len(capability_id)}:{capability_id}.{tool}"
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
