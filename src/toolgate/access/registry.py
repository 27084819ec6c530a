"""Who is known here: devices, scripts, the operator. In memory as it is in the journal.

Tokens are kept as hashes. Whoever holds a stream open for a device watches it here, and is told
when the device is revoked or gets another token. What agents do for one who is revoked, or may not
use them any more, ends.
"""

import asyncio
import contextlib
import hmac
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from toolgate.access.devices import OPERATOR, Device, Identity, Scope, Service, Who
from toolgate.access.refusals import AuthRequired, InvalidToken
from toolgate.access.revocations import no_runs, revocation
from toolgate.core.clock import Clock
from toolgate.core.errors import Invalid, NotFound
from toolgate.core.ids import is_path_safe
from toolgate.journal.journal import Delete, Journal, Operation, Put

DEVICES: Final = "devices"
SERVICES: Final = "services"
TOKEN_BYTES: Final = 32  # gateway contract
SERVICE_PREFIX: Final = "svc_"
SERVICE_NAMES: Final = "service:"  # how the names of scripts begin, as callers

encode: Final = msgspec.json.Encoder().encode
_decode_device: Final = msgspec.json.Decoder(Device).decode
_decode_service: Final = msgspec.json.Decoder(Service).decode


class Credentials(NamedTuple):
    """What a request says of its sender."""

    device_id: str = ""
    device_token: str = ""
    gateway_token: str = ""
    bearer: str = ""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def same(given: str, expected: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )


class Registry:
    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        operator_token: str,
        gateway_token: str = "",
        end_runs: Callable[[str], Awaitable[None]] = no_runs,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._end_runs = end_runs
        self._operator_hash = hash_of(operator_token)
        self._gateway_hash = hash_of(gateway_token) if gateway_token else ""
        self._devices: dict[str, Device] = {}
        self._identities: dict[str, Identity] = {}
        self._services: dict[str, Service] = {}
        # Whose end may not be on disk yet: refused already, and may be ended again.
        self._unwritten: set[str] = set()
        self._leaving: dict[str, Service] = {}
        self._seen: dict[str, int] = {}
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.cuts = 0  # how often somebody's right has ended
        self._changing = asyncio.Lock()  # nobody is written from what was read before

    async def load(self) -> None:
        after = ""
        while rows := await self._journal.scan(DEVICES, after=after):
            for row in rows:
                self._keep(_decode_device(row.value))
            after = rows[-1].key
        after = ""
        while rows := await self._journal.scan(SERVICES, after=after):
            self._services.update((row.key, _decode_service(row.value)) for row in rows)
            after = rows[-1].key

    @property
    def devices(self) -> Sequence[Device]:
        return [device for device in self._devices.values() if device.active]

    def device(self, device_id: str) -> Device | None:
        return self._devices.get(device_id)

    def identity(self, name: str) -> Identity | None:
        """A device or script that is still known, by its name."""
        device = self._devices.get(name)
        if device is not None and device.active:
            return self._identities[name]
        service = self._services.get(name.removeprefix(SERVICE_NAMES))
        if service is not None and name.startswith(SERVICE_NAMES):
            return Identity(Who.SERVICE, name, service.scope)
        return None

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

    def check_gateway_token(self, given: str) -> None:
        if not self._gateway_hash:
            return
        if not given:
            raise AuthRequired("X-Gateway-Token is required here")
        if not same(hash_of(given), self._gateway_hash):
            raise InvalidToken("the gateway token is wrong")

    def device_of(self, credentials: Credentials) -> Identity:
        """Raises AuthRequired where there is no token or the device is not paired, InvalidToken."""
        self.check_gateway_token(credentials.gateway_token)
        device = self._devices.get(credentials.device_id)
        if not credentials.device_token:
            raise AuthRequired("X-Device-Token is required")
        # An unknown device costs the same comparison as a known one.
        expected = device.token_hash if device is not None else self._operator_hash
        right = same(hash_of(credentials.device_token), expected)
        if device is None:
            raise AuthRequired("this device is not paired")
        if not right or not device.active:
            raise InvalidToken("the device token is wrong or was revoked")
        self._seen[device.device_id] = self._clock.now_ms()
        return self._identities[device.device_id]

    def bearer_of(self, token: str) -> Identity:
        """The operator, or the script whose token this is; raises InvalidToken."""
        hashed = hash_of(token)
        if same(hashed, self._operator_hash):
            return OPERATOR
        for service in self._services.values():
            if same(hashed, service.token_hash):
                return Identity(Who.SERVICE, f"{SERVICE_NAMES}{service.name}", service.scope)
        raise InvalidToken("the bearer token is wrong or was revoked")

    async def pair(
        self, device_id: str, scope: Scope, *, public_key: str, also: Sequence[Operation] = ()
    ) -> str:
        """Pair a device, or give a paired one another token; returns the token.

        Raises NotFound for one that was paired, and was revoked before its turn came.
        """
        token = new_token()
        before = self._devices.get(device_id)
        async with self._changing:
            known = self._devices.get(device_id)
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
                self._keep(replace(known, scope=replace(known.scope, agent=False)))
                ends = (revocation(device_id, now=self._clock.now_ms()),)
            await self._journal.commit(Put(DEVICES, device_id, encode(device)), *ends, *also)
            await self._end_runs(device_id)  # before it can start any that are not meant
            self._keep_unless_revoked(device, known)
        self._cut(device_id)
        return token

    async def bind_key(
        self, device_id: str, public_key: str, *, also: Sequence[Operation] = ()
    ) -> None:
        """For a device that has just proven its token; the first key stays.

        Raises InvalidToken where it got another token before its turn came.
        """
        before = self._devices[device_id]
        async with self._changing:
            known = self._devices[device_id]
            if not same(known.token_hash, before.token_hash):
                raise InvalidToken("the device token was replaced")
            if known.public_key:
                return
            device = replace(known, public_key=public_key, key_by_token=True)
            await self._journal.commit(Put(DEVICES, device_id, encode(device)), *also)
            self._keep_unless_revoked(device, known)

    def may_revoke(self, device_id: str) -> bool:
        """Whether it is paired, or may be so again after a restart."""
        device = self._devices.get(device_id)
        return device is not None and (device.active or device_id in self._unwritten)

    async def revoke(self, device_id: str, *, also: Sequence[Operation] = ()) -> None:
        device = self._devices.get(device_id)
        if device is None or not self.may_revoke(device_id):
            raise NotFound("device", device_id)
        now = self._clock.now_ms()
        gone = replace(device, revoked_at=now, public_key="")
        # First in memory: what comes in while the commit is under way is refused already.
        self._keep(gone)
        self._cut(device_id)
        self._unwritten.add(device_id)
        await self._journal.commit(
            Put(DEVICES, device_id, encode(gone)), revocation(device_id, now=now), *also
        )
        self._unwritten.discard(device_id)
        await self._end_runs(device_id)

    async def add_service(self, name: str, scope: Scope, *, also: Sequence[Operation] = ()) -> str:
        """A token for a script; the same name again gives another token in its place.

        Raises Invalid for a name that cannot be part of a path: nobody could end it by that.
        """
        if not is_path_safe(name):
            raise Invalid("a token's name has 1 to 128 of A-Z a-z 0-9 . _ -", field="name")
        token = SERVICE_PREFIX + new_token()
        caller = f"{SERVICE_NAMES}{name}"
        async with self._changing:
            service = Service(name, hash_of(token), scope, self._clock.now_ms())
            known = self._services.get(name)
            ends: Sequence[Operation] = ()
            if known is not None and not scope.agent:  # as in `pair`
                self._services[name] = replace(known, scope=replace(known.scope, agent=False))
                ends = (revocation(caller, now=self._clock.now_ms()),)
            await self._journal.commit(Put(SERVICES, name, encode(service)), *ends, *also)
            await self._end_runs(caller)
            if known is not None and name not in self._services:
                return token  # it was ended meanwhile, and is gone from the disk too
            self._services[name] = service
        self._cut(caller)
        return token

    async def remove_service(self, name: str, *, also: Sequence[Operation] = ()) -> None:
        self._leaving[name] = self.service(name)
        self._services.pop(name, None)
        caller = f"{SERVICE_NAMES}{name}"
        self._cut(caller)
        ends = revocation(caller, now=self._clock.now_ms())
        await self._journal.commit(Delete(SERVICES, name), ends, *also)
        self._leaving.pop(name, None)
        await self._end_runs(caller)

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set when this caller's right to listen ends."""
        cut = asyncio.Event()
        self._watchers[name].add(cut)
        try:
            yield cut
        finally:
            self._watchers[name].discard(cut)
            if not self._watchers[name]:
                del self._watchers[name]

    def _keep(self, device: Device) -> None:
        self._devices[device.device_id] = device
        self._identities[device.device_id] = Identity(Who.DEVICE, device.device_id, device.scope)

    def _keep_unless_revoked(self, device: Device, known: Device | None) -> None:
        """Who was revoked while this was written is revoked on disk too, after it."""
        if known is None or not known.active or self._devices[device.device_id].active:
            self._keep(device)

    def _cut(self, name: str) -> None:
        self.cuts += 1
        for cut in self._watchers.get(name, ()):
            cut.set()
