"""The known callers: devices, scripts, the operator; a copy in memory of the rows in the journal.

Tokens are kept as hashes. A stream that is open for a device watches the device here and ends when the
device is revoked or gets another token. Runs of a revoked caller, or one without the agent scope, end.
"""

import asyncio
import contextlib
import hmac
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from toolgate.access.devices import NAMED, OPERATOR, Device, Identity, Scope, Service, Who
from toolgate.access.refusals import InvalidToken
from toolgate.access.revocations import REASON, revocation
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, Invalid, NotFound
from toolgate.core.ids import is_path_safe
from toolgate.core.tools import CommandScope
from toolgate.journal.journal import Check, Journal, Operation, Put
from toolgate.journal.paging import all_rows
from toolgate.journal.rows import ATTEMPTS
from toolgate.secrets.own_tokens import TokenKind, new_token

DEVICES: Final = "devices"
SERVICES: Final = "services"

encode: Final = msgspec.json.Encoder().encode
_decode_device: Final = msgspec.json.Decoder(Device).decode
_decode_service: Final = msgspec.json.Decoder(Service | None).decode
_REMOVED: Final = encode(None)  # a removed service keeps its row: see `remove_service`

T = TypeVar("T")


class Credentials(msgspec.Struct, frozen=True):
    """The credentials that a request carries."""

    device_id: str = ""
    device_token: str = ""
    gateway_token: str = ""
    bearer: str = ""


def hash_of(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def same(given: str, expected: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )


class Registry:
    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._subscribers: list[Callable[[str], Awaitable[None]]] = []
        self._devices: dict[str, Device] = {}
        self._identities: dict[str, Identity] = {}
        self._services: dict[str, Service] = {}
        # Whose end may not be on disk yet: refused already, and may be ended again.
        self._unwritten: set[str] = set()
        self._leaving: dict[str, Service] = {}
        # By collection and key, the version of the row that memory holds.
        self._versions: dict[tuple[str, str], int] = {}
        self._seen: dict[str, int] = {}
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.cuts = 0  # how often somebody's right has ended
        self._changing = asyncio.Lock()  # nobody is written from what was read before

    async def load(self) -> None:
        async for row in all_rows(self._journal, DEVICES):
            self._keep(_decode_device(row.value), row.version)
        async for row in all_rows(self._journal, SERVICES):
            self._keep_service(row.key, _decode_service(row.value), row.version)

    @property
    def devices(self) -> Sequence[Device]:
        return [device for device in self._devices.values() if device.active]

    def device(self, device_id: str) -> Device | None:
        return self._devices.get(device_id)

    def identity(self, name: str) -> Identity | None:
        """A device or the owner of a named token that is still known, by its name."""
        device = self._devices.get(name)
        if device is not None and device.active:
            return self._identities[name]
        service = self._service_of(name)
        if service is None or not service.is_valid(now=self._clock.now_ms()):
            return None
        return Identity(service.kind, name, service.scope)

    def named(self, token_hash: str) -> Identity | None:
        """The owner of the named token with this hash, while the token is valid."""
        for service in self._services.values():
            if same(token_hash, service.token_hash):
                return self.identity(service.caller)
        return None

    def _service_of(self, caller: str) -> Service | None:
        service = self._services.get(caller.partition(":")[2])
        return service if service is not None and service.caller == caller else None

    def check_of(self, name: str) -> Check | None:
        """Return the check that a caller's row is still the one in memory; None for the operator.

        Raises NotFound for an unknown or revoked caller. Compare `identity` with the one that was
        authenticated in the same step, without an await between: its token or scope may be new.
        """
        if name == OPERATOR.name:
            return None
        if self.identity(name) is None:
            raise NotFound("device or service token", name)
        row = (DEVICES, name)
        if (service := self._service_of(name)) is not None:
            row = (SERVICES, service.name)
        return Check(*row, self._versions[row])

    def scope_refusal(self, name: str, needed: CommandScope) -> str:
        """The reason why a caller's present scope does not cover a command; empty if it does."""
        identity = OPERATOR if name == OPERATOR.name else self.identity(name)
        if identity is None:
            return REASON
        for kind in needed.kinds:
            if refusal := identity.scope.refusal(kind, needed.level):
                return refusal
        return ""

    def subscribe(self, notify: Callable[[str], Awaitable[None]]) -> None:
        """Await `notify` with the name of each caller that may have lost rights, once it is on disk."""
        self._subscribers.append(notify)

    async def _notify(self, name: str) -> None:
        for notify in self._subscribers:
            await notify(name)

    def last_seen(self, device_id: str) -> int | None:
        return self._seen.get(device_id)

    @property
    def services(self) -> Sequence[Service]:
        return list(self._services.values())

    def service(self, name: str) -> Service:
        found = self._services.get(name) or self._leaving.get(name)
        if found is None:
            raise NotFound("service token", name)
        return found

    def seen(self, device_id: str) -> Identity:
        """Note that a device that is known was here."""
        self._seen[device_id] = self._clock.now_ms()
        return self._identities[device_id]

    async def pair(
        self, device_id: str, scope: Scope, *, public_key: str, also: Sequence[Operation] = ()
    ) -> str:
        """Pair a device, or give a paired one another token; returns the token.

        Raises NotFound for one that was paired, and was revoked before its turn came.
        """
        token = new_token(TokenKind.DEVICE)
        before = self._devices.get(device_id)

        async def write() -> None:
            known, expected = self._devices.get(device_id), self._version(DEVICES, device_id)
            if before is not None and before.active and known is not None and not known.active:
                raise NotFound("device", device_id)
            # A key that came with the old token may be the one's who is to be shut out by the new.
            keeps = known is not None and known.active and not known.key_by_token
            device = Device(
                device_id=device_id,
                token_hash=hash_of(token),
                scope=scope,
                paired_at=self._clock.now_ms(),
                public_key=public_key or (known.public_key if known is not None and keeps else ""),
            )
            ends: Sequence[Operation] = ()
            if known is not None and known.active and not scope.agent:
                # First in memory: no run may begin while the commit is under way.
                self._keep(replace(known, scope=replace(known.scope, agent=False)), expected)
                ends = (await revocation(self._journal, device_id, now=self._clock.now_ms()),)
            put = Put(DEVICES, device_id, encode(device), expected)
            await self._journal.commit(put, *ends, *also)
            await self._notify(device_id)  # before it can start any that are not meant
            self._keep_unless_revoked(device, known, expected + 1)

        async with self._changing:
            await self._retry(write, lambda: self._reload_device(device_id))
        self._cut(device_id)
        return token

    async def bind_key(
        self, device_id: str, public_key: str, *, also: Sequence[Operation] = ()
    ) -> None:
        """For a device that has just proven its token; the first key stays.

        Raises InvalidToken where it got another token before its turn came.
        """
        before = self._devices[device_id]

        async def write() -> None:
            known, expected = self._devices[device_id], self._version(DEVICES, device_id)
            if not same(known.token_hash, before.token_hash):
                raise InvalidToken("the device token was replaced")
            if not known.active:
                raise InvalidToken("the device token was revoked")
            if known.public_key:
                return
            device = replace(known, public_key=public_key, key_by_token=True)
            await self._journal.commit(Put(DEVICES, device_id, encode(device), expected), *also)
            self._keep_unless_revoked(device, known, expected + 1)

        async with self._changing:
            await self._retry(write, lambda: self._reload_device(device_id))

    def may_revoke(self, device_id: str) -> bool:
        """Return True if the device is paired, or may be paired again after a restart."""
        device = self._devices.get(device_id)
        return device is not None and (device.active or device_id in self._unwritten)

    async def revoke(self, device_id: str, *, also: Sequence[Operation] = ()) -> None:
        if not self.may_revoke(device_id):
            raise NotFound("device", device_id)
        now = self._clock.now_ms()

        async def write() -> None:
            expected = self._version(DEVICES, device_id)
            gone = replace(self._devices[device_id], revoked_at=now, public_key="")
            # First in memory: what comes in while the commit is under way is refused already.
            self._keep(gone, expected)
            self._cut(device_id)
            self._unwritten.add(device_id)
            ends = await revocation(self._journal, device_id, now=now)
            await self._journal.commit(Put(DEVICES, device_id, encode(gone), expected), ends, *also)
            self._versions[DEVICES, device_id] = expected + 1
            self._unwritten.discard(device_id)

        await self._retry(write, lambda: self._reload_device(device_id))
        await self._notify(device_id)

    async def add_service(
        self,
        name: str,
        scope: Scope,
        *,
        kind: Who = Who.SERVICE,
        expires_at: int = 0,
        also: Sequence[Operation] = (),
    ) -> str:
        """Make a named token; the same name again gives another token in its place.

        Raises Invalid for a name that cannot be part of a path: nobody could end it by that.
        """
        if not is_path_safe(name):
            raise Invalid("a token's name has 1 to 128 of A-Z a-z 0-9 . _ -", field="name")
        assert kind in NAMED, kind
        token = new_token(TokenKind.SERVICE)
        caller = f"{kind}:{name}"
        if self._devices.get(caller) is not None:
            raise Conflict(f"a device is paired as {caller}: choose another name")

        async def write() -> bool:
            now = self._clock.now_ms()
            service = Service(name, hash_of(token), scope, now, kind, expires_at)
            known, expected = self._services.get(name), self._version(SERVICES, name)
            ends: Sequence[Operation] = ()
            before = caller if known is None else known.caller
            if known is not None and (not scope.agent or known.kind is not kind):  # as in `pair`
                self._services[name] = replace(known, scope=replace(known.scope, agent=False))
                ends = (await revocation(self._journal, before, now=now),)
            put = Put(SERVICES, name, encode(service), expected)
            await self._journal.commit(put, *ends, *also)
            await self._notify(before)
            if known is not None and name not in self._services:
                return False  # it was ended meanwhile, and is gone from the disk too
            self._keep_service(name, service, expected + 1)
            self._cut(before)
            return True

        async with self._changing:
            await self._retry(write, lambda: self._reload_service(name))
        return token

    async def remove_service(self, name: str, *, also: Sequence[Operation] = ()) -> None:
        """Remove a script's token; raises NotFound.

        Its row stays, empty: a new row would start at version 1, and a check of the old token's row
        could hold for the new one's.
        """
        self._leaving[name] = self.service(name)
        self._services.pop(name, None)
        caller = self._leaving[name].caller
        self._cut(caller)

        async def write() -> None:
            expected = self._version(SERVICES, name)
            ends = await revocation(self._journal, caller, now=self._clock.now_ms())
            await self._journal.commit(Put(SERVICES, name, _REMOVED, expected), ends, *also)
            self._keep_service(name, None, expected + 1)
            self._leaving.pop(name, None)

        await self._retry(write, lambda: self._reload_service(name))
        await self._notify(caller)

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set when this caller's right to listen ends, or its token expires."""
        cut = asyncio.Event()
        self._watchers[name].add(cut)
        service, end = self._service_of(name), None
        if service is not None and service.expires_at:
            left_s = max(0, service.expires_at - self._clock.now_ms()) / 1000
            end = asyncio.get_running_loop().call_later(left_s, cut.set)
        try:
            yield cut
        finally:
            if end is not None:
                end.cancel()
            self._watchers[name].discard(cut)
            if not self._watchers[name]:
                del self._watchers[name]

    async def _retry(
        self, write: Callable[[], Awaitable[T]], reload: Callable[[], Awaitable[None]]
    ) -> T:
        """Write a row; if it was changed elsewhere, reload it and decide again."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await write()
            except Conflict:
                await reload()
        return await write()

    async def _reload_device(self, device_id: str) -> None:
        row = await self._journal.get(DEVICES, device_id)
        if row is None:
            return
        device = _decode_device(row.value)
        known = self._devices.get(device_id)
        if device_id in self._unwritten and known is not None:
            device = known  # refused already, whatever the row says
        self._keep(device, row.version)
        if known is not None and not same(known.token_hash, device.token_hash):
            self._cut(device_id)

    async def _reload_service(self, name: str) -> None:
        row = await self._journal.get(SERVICES, name)
        service = None if row is None or name in self._leaving else _decode_service(row.value)
        self._keep_service(name, service, 0 if row is None else row.version)

    def _version(self, collection: str, key: str) -> int:
        return self._versions.get((collection, key), 0)

    def _keep_service(self, name: str, service: Service | None, version: int) -> None:
        self._versions[SERVICES, name] = version
        if service is None:
            self._services.pop(name, None)
        else:
            self._services[name] = service

    def _keep(self, device: Device, version: int) -> None:
        self._versions[DEVICES, device.device_id] = version
        self._devices[device.device_id] = device
        self._identities[device.device_id] = Identity(Who.DEVICE, device.device_id, device.scope)

    def _keep_unless_revoked(self, device: Device, known: Device | None, version: int) -> None:
        """Keep the device unless it was revoked while its row was written."""
        if known is None or not known.active or self._devices[device.device_id].active:
            self._keep(device, version)

    def _cut(self, name: str) -> None:
        self.cuts += 1
        for cut in self._watchers.get(name, ()):
            cut.set()
