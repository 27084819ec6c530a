"""Warm sandbox sessions, each on a lease of the caller that opened it.

A lease ends when it was not used for a time, at the end of its life, or when another session needs its
place. Then the caller with the most sessions loses the one that it has not used for longest.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, ToolRequest
from toolgate.sandbox.sandbox import (
    Egress,
    Limits,
    NotStarted,
    Sandbox,
    Session,
    SessionKey,
    SessionSpec,
)

log = logging.getLogger(__name__)

MOST_SESSIONS: Final = 64
MOST_OF_ONE: Final = 32  # of one caller
SWEEP_SECONDS: Final = 15.0


@dataclass(slots=True)
class Lease:
    session: Session
    owner: str
    opened: float
    used: float
    is_new: bool = True  # until its caller has been told


class Sessions:
    def __init__(
        self,
        sandbox: Sandbox,
        *,
        clock: Clock,
        limits: Limits | None = None,
        most: int = MOST_SESSIONS,
        most_of_one: int = MOST_OF_ONE,
        egress: Egress | None = None,
    ) -> None:
        self.isolation = sandbox.isolation
        self.limits = limits or Limits()
        self._sandbox = sandbox
        self._clock = clock
        self._most = most
        self._most_of_one = most_of_one
        self._egress = egress
        self._leases: dict[SessionKey, Lease] = {}
        # Kept for as long as somebody waits for one or has it.
        self._locks: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()
        self._opening: Counter[str] = Counter()  # by owner
        self._sweeper: asyncio.Task[None] | None = None
        self._proof: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Prove the isolation, or raise Unavailable; then sweep from time to time."""
        await self._sandbox.check()
        self._sweeper = asyncio.create_task(self._sweep_on())

    def start_soon(self) -> None:
        """Prove it in the background; nothing opens before it is proven, or where it is not."""
        self._proof = asyncio.create_task(self.start())
        self._proof.add_done_callback(self._tell)

    def _tell(self, proof: "asyncio.Task[None]") -> None:
        """Whoever looks after this machine should not learn it from the first refused command."""
        if not proof.cancelled() and (unproven := proof.exception()) is not None:
            log.warning("sandbox_unavailable isolation=%s reason=%s", self.isolation, unproven)

    @property
    def can_be_clean(self) -> bool:
        return self._sandbox.can_be_clean

    async def health(self) -> dict[str, JsonValue]:
        """The health in a runner's form; waits for a running self-test."""
        shown: dict[str, JsonValue] = {"ok": True, "backend": self.isolation}
        if self._proof is not None:
            try:
                await asyncio.shield(self._proof)
            except Unavailable as unproven:
                return {"ok": False, "reason": str(unproven)}
        return shown

    async def open_for(self, request: ToolRequest) -> Session:
        """The session of a call; two tenants, workspaces or sessions never share one."""
        return await self.open(_key_of(request), owner=_owner_of(request))

    def is_new(self, request: ToolRequest) -> bool:
        """True once for each workspace of a session with a name: files of it from before are gone."""
        lease = self._leases.get(_key_of(request)) if request.caller.session else None
        if lease is None or not lease.is_new:
            return False
        lease.is_new = False
        return True

    def warm_for(self, request: ToolRequest) -> Session | None:
        """The session of a call where it is open already."""
        lease = self._usable(_key_of(request))
        return None if lease is None else lease.session

    async def open(self, key: SessionKey, *, owner: str = "") -> Session:
        """The warm session, or a new one of this owner; raises NotStarted."""
        lease = self._usable(key)
        if lease is None:
            async with self._lock(key):
                lease = self._usable(key) or await self._open_new(key, owner)
        lease.used = self._clock.monotonic()
        return lease.session

    def __len__(self) -> int:
        return len(self._leases)

    async def sweep(self) -> None:
        """End the leases that are over."""
        for key in list(self._leases):
            try:
                await self._end_if(key, lambda lease: self._is_over(lease, self._clock.monotonic()))
            except Exception:  # those after it must not stay for ever
                log.exception("sandbox_not_closed session=%s", key.digest)

    async def close(self) -> None:
        if self._proof is not None:
            await asyncio.wait([self._proof])
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        # At once: a container takes half a second, and whoever stops us does not wait for ever.
        ends = (self._end(key) for key in list(self._leases))
        for failed in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(failed, Exception):
                log.error("sandbox_not_closed", exc_info=failed)
        await self._sandbox.close()

    def _is_over(self, lease: Lease, now: float) -> bool:
        """A life that is over ends even a command that runs; idleness does not."""
        if not lease.session.alive or now - lease.opened > self.limits.life_seconds:
            return True
        if lease.session.busy:
            lease.used = now
        return now - lease.used > self.limits.idle_seconds

    def _usable(self, key: SessionKey) -> Lease | None:
        lease = self._leases.get(key)
        over = lease is None or self._is_over(lease, self._clock.monotonic())
        return None if over else lease

    async def _open_new(self, key: SessionKey, owner: str) -> Lease:
        await self._end(key)
        await self._be_proven()
        self._opening[owner] += 1
        try:
            await self._make_room(owner)
            way_out = await self._egress.open(key) if self._egress is not None else None
            session = await self._sandbox.open(SessionSpec(key, egress=way_out))
        except BaseException as failed:
            await self._close_egress(key)
            if isinstance(failed, Unavailable | OSError):
                raise NotStarted(str(failed)) from failed
            raise
        finally:
            self._opening[owner] -= 1
        now = self._clock.monotonic()
        lease = self._leases[key] = Lease(session, owner, now, now)
        log.info("sandbox_opened session=%s isolation=%s", key.digest, self.isolation)
        return lease

    async def _be_proven(self) -> None:
        """Wait for the self-test, and repeat a failed one: the disk may have been full. Raises NotStarted."""
        if self._proof is None:
            return
        if self._proof.done() and self._proof.exception() is not None:
            self.start_soon()
        try:
            await asyncio.shield(self._proof)
        except Unavailable as unproven:
            raise NotStarted(str(unproven)) from unproven

    async def _make_room(self, owner: str) -> None:
        """End sessions until the owner may have another; raises NotStarted where all are busy."""
        while True:
            held = self._opening + Counter(lease.owner for lease in self._leases.values())
            is_quota = held[owner] > self._most_of_one
            if not is_quota and held.total() <= self._most:
                return
            idle = [
                (-held[lease.owner], lease.used, key)
                for key, lease in self._leases.items()
                if not lease.session.busy and (lease.owner == owner or not is_quota)
            ]
            if not idle:
                whose = f"{self._most_of_one} of this caller's" if is_quota else str(self._most)
                raise NotStarted(f"all {whose} sandboxes are busy")
            key = min(idle, key=lambda each: each[:2])[2]
            await self._end_if(key, lambda lease: not lease.session.busy)

    def _lock(self, key: SessionKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _end_if(self, key: SessionKey, so: Callable[[Lease], bool]) -> None:
        """End a lease that is still so, and let nobody open it anew before it has ended."""
        async with self._lock(key):
            lease = self._leases.get(key)
            if lease is not None and so(lease):
                await self._end(key)

    async def _end(self, key: SessionKey) -> None:
        lease = self._leases.pop(key, None)
        if lease is None:
            return
        try:
            await lease.session.close()
        finally:
            await self._close_egress(key)
        log.info("sandbox_closed session=%s", key.digest)

    async def _close_egress(self, key: SessionKey) -> None:
        if self._egress is not None:
            await self._egress.close(key)

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()


def _owner_of(request: ToolRequest) -> str:
    caller = request.caller
    who = caller.device or caller.user or caller.role
    return "\0".join((caller.tenant, caller.workspace, who))


def _key_of(request: ToolRequest) -> SessionKey:
    caller = request.caller
    session = caller.session or request.run_id or request.request_id
    return SessionKey(caller.tenant, caller.workspace, session)
