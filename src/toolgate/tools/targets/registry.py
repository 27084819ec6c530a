"""The execution targets of an installation, kept as rows of the journal, and the engine over them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome, TargetKind
from toolgate.core.errors import Conflict, NotFound, Refused
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.journal.journal import Delete, Journal, Operation, Put
from toolgate.secrets.seal import Seal
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.targets.targets import (
    BUILT_IN,
    LOCAL_DEFAULT,
    Change,
    Target,
    TargetRefused,
    choose,
    displaced,
    upsert,
)

COLLECTION: Final = "execution_targets"
ATTEMPTS: Final = 5
PAGE: Final = 500


class _Row(msgspec.Struct, frozen=True):
    """A target as it is kept; the same members, but a config that the decoder can read."""

    id: str
    tenant: str
    workspace: str | None
    kind: TargetKind
    endpoint: str
    auth_token: str
    is_default: bool
    enabled: bool
    config: dict[str, Any]
    version: int
    updated_at: int
    promises: tuple[str, ...] | None = None


_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(_Row)

ReadPromises = Callable[[Target], Awaitable[tuple[str, ...] | None]]


async def no_promises(_: Target) -> None:
    """For registries whose targets nobody calls."""


class Targets:
    """Upsert, list, delete, choose. A token goes in and is used; `public` never shows it."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        seal: Seal,
        read_promises: ReadPromises = no_promises,
    ) -> None:
        """A row holds a token that must be sent as it is, so rows are closed with the seal.

        `read_promises` asks the runner of a target that is set; it does not wait for long.
        """
        self._read_promises = read_promises
        self._memory: dict[str, tuple[Target, int]] | None = None  # the rows; None: read them
        self._changes = 0
        self._journal = journal
        self._clock = clock
        self._seal = seal
        self._one_at_a_time = asyncio.Lock()

    async def upsert(
        self, target_id: str, change: Change, *, also: Sequence[Operation] = ()
    ) -> Target:
        """Raises Invalid, Refused, or Conflict where others change it all the time."""
        async with self._one_at_a_time:
            return await self._upsert(target_id, change, also)

    async def _upsert(self, target_id: str, change: Change, also: Sequence[Operation]) -> Target:
        for attempt in range(ATTEMPTS):
            row = await self._journal.get(COLLECTION, target_id)
            before = None if row is None else self._opened(row.value)
            after = upsert(target_id, before, change, now_ms=self._clock.now_ms())
            if after.kind is TargetKind.DOCKER_RUNNER:
                after = replace(after, promises=await self._read_promises(after))
            self._forget()
            kept = await self._kept()
            others = displaced(after, (target for target, _ in kept.values()))
            try:
                await self._journal.commit(
                    Put(
                        COLLECTION,
                        target_id,
                        self._closed(after),
                        expected=row.version if row else 0,
                    ),
                    *(
                        Put(
                            COLLECTION,
                            other.id,
                            self._closed(self._no_default(other)),
                            expected=kept[other.id][1],
                        )
                        for other in others
                    ),
                    *also,
                )
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            finally:
                self._forget()
            return after
        raise AssertionError("unreachable")

    def _closed(self, target: Target) -> bytes:
        return self._seal.close(_encode(target))

    def _opened(self, closed: bytes) -> Target:
        return Target(**msgspec.structs.asdict(_rows.decode(self._seal.open(closed))))

    def _no_default(self, target: Target) -> Target:
        change = Change(is_default=False)
        return upsert(target.id, target, change, now_ms=self._clock.now_ms())

    async def get(self, target_id: str) -> Target:
        row = await self._journal.get(COLLECTION, target_id)
        if row is not None:
            return self._opened(row.value)
        if target_id == LOCAL_DEFAULT:
            return BUILT_IN
        raise NotFound("execution target", target_id)

    async def list(self, *, tenant: str | None = None) -> list[Target]:
        """All of them, or what a tenant may use; the built-in one is always there."""
        found = {LOCAL_DEFAULT: BUILT_IN}
        found |= {name: target for name, (target, _) in (await self._kept()).items()}
        return [
            each
            for each in found.values()
            if tenant is None or each.tenant == tenant or each.id == LOCAL_DEFAULT
        ]

    async def _kept(self) -> Mapping[str, tuple[Target, int]]:
        """What was written, each with the version of its row."""
        if self._memory is not None:
            return self._memory
        changes = self._changes
        found: dict[str, tuple[Target, int]] = {}
        after = ""
        while True:
            rows = await self._journal.scan(COLLECTION, after=after, limit=PAGE)
            found |= {row.key: (self._opened(row.value), row.version) for row in rows}
            if len(rows) < PAGE:  # nothing follows: one read for nearly everyone
                break
            after = rows[-1].key
        if changes == self._changes:  # else what was read may be from before a change
            self._memory = found
        return found

    def _forget(self) -> None:
        """Read the rows again: one of them may have changed."""
        self._memory = None
        self._changes += 1

    async def delete(self, target_id: str, *, also: Sequence[Operation] = ()) -> None:
        """Raises NotFound; Refused for the built-in one, which can only be disabled."""
        if target_id == LOCAL_DEFAULT:
            raise Refused(f"{LOCAL_DEFAULT} cannot be deleted; disable it instead")
        for attempt in range(1, ATTEMPTS + 1):
            row = await self._journal.get(COLLECTION, target_id)
            if row is None:
                raise NotFound("execution target", target_id)
            try:
                await self._journal.commit(
                    Delete(COLLECTION, target_id, expected=row.version), *also
                )
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            else:
                return
            finally:
                self._forget()

    async def choose(
        self, *, tenant: str, workspace: str, explicit: str = "", of_agent: str = ""
    ) -> Target:
        """Raises TargetRefused for an unknown or disabled one."""
        return choose(
            await self.list(tenant=tenant),
            tenant=tenant,
            workspace=workspace,
            explicit=explicit,
            of_agent=of_agent,
        )


def public(target: Target) -> dict[str, JsonValue]:
    """A target as anyone may see it."""
    shown: dict[str, JsonValue] = {
        "targetId": target.id,
        "tenantId": target.tenant,
        "kind": target.kind.value,
        "isDefault": target.is_default,
        "enabled": target.enabled,
        "config": dict(target.config),
        "version": target.version,
        "updatedAt": target.updated_at,
        "hasAuthToken": bool(target.auth_token),
    }
    if target.workspace is not None:
        shown["workspaceId"] = target.workspace
    if target.endpoint:
        shown["endpoint"] = target.endpoint
    return shown


class TargetEngine:
    """Runs each call on its target: this machine's sandbox, or a runner elsewhere."""

    ref: Final = "toolgate-targets"

    def __init__(
        self,
        targets: Targets,
        *,
        local: Engine,
        remote: Callable[[Target], Engine],
        can_be_clean: Callable[[Target], bool] = lambda _: False,
        agents: Mapping[str, str] | None = None,
    ) -> None:
        """`agents` maps an agent to the target that is its own.

        `can_be_clean`: a target promises that a command can run in a fixed environment.
        """
        self._can_be_clean = can_be_clean
        self._targets = targets
        self._local = local
        self._remote = remote
        self._agents = agents or {}

    async def place(self, request: ToolRequest) -> str:
        """The target that the call would run on now; empty where there is none for it."""
        try:
            target = await self._choose(request)
        except TargetRefused:
            return ""
        return f"{target.id} {target.kind} {target.url}"

    async def can_be_clean(self, request: ToolRequest) -> bool:
        try:
            return self._can_be_clean(await self._choose(request))
        except TargetRefused:
            return True  # it runs nowhere, and says so

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        try:
            target = await self._choose(request)
        except TargetRefused as refused:
            error: JsonValue = {"code": refused.code, "message": str(refused)}
            return ToolOutput(
                1, stderr=str(refused), data={"error": error}, outcome=Outcome.NOT_STARTED
            )
        engine = self._local if target.kind is TargetKind.LOCAL_HOST else self._remote(target)
        return await engine.run(request, update=update)

    async def _choose(self, request: ToolRequest) -> Target:
        caller = request.caller
        return await self._targets.choose(
            tenant=caller.tenant,
            workspace=caller.workspace,
            explicit=request.target_id,
            of_agent=self._agents.get(caller.agent, ""),
        )


def tokens(targets: Sequence[Target]) -> dict[str, str]:
    """Every token that is known, for the redactor, with its name."""
    return {each.auth_token: f"target {each.id}" for each in targets if each.auth_token}
