"""`/execution-targets`: where calls are run, made and changed. For the operator alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from toolgate.access.audit import Trail
from toolgate.commands.answers import Code, Problem, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.ids import is_path_safe
from toolgate.journal.journal import Operation
from toolgate.surfaces.gateway.routes import Access, Call, Route
from toolgate.tools.targets.registry import Targets
from toolgate.tools.targets.targets import Change, Target


@dataclass(frozen=True, slots=True)
class TargetRoutes:
    targets: Targets
    trail: Trail
    learn: Callable[[str, str], object]  # a secret that must not be written down, and its name

    def routes(self) -> Sequence[Route]:
        path = "/execution-targets/{targetId}"
        one = wire.ExecutionTarget
        return (
            Route(
                "GET",
                "/execution-targets",
                Access.OPERATOR,
                "The execution targets, without their tokens.",
                self._list,
                wire.TargetList,
                v2="executionTargets.list",
            ),
            Route(
                "GET",
                path,
                Access.OPERATOR,
                "One execution target.",
                self._get,
                one,
                v2="executionTargets.get",
                statuses=(200, 404),
            ),
            Route(
                "PUT",
                path,
                Access.OPERATOR,
                "Make an execution target, or change what is given.",
                self._put,
                one,
                v2="executionTargets.put",
                takes=wire.TargetUpsert,
            ),
            Route(
                "DELETE",
                path,
                Access.OPERATOR,
                "Remove an execution target.",
                self._delete,
                one,
                v2="executionTargets.delete",
                statuses=(200, 404),
            ),
        )

    async def _list(self, _: Call) -> Result:
        return Result(wire.TargetList(items=[_target(t) for t in await self.targets.list()]))

    async def _get(self, call: Call) -> Result:
        return Result(_target(await self.targets.get(_target_id(call))))

    async def _put(self, call: Call) -> Result:
        wanted: wire.TargetUpsert = call.body
        target_id = _target_id(call)
        token = _given(wanted.auth_token)
        if token:
            self.learn(token, f"target {target_id}")
        change = Change(
            tenant=_given(wanted.tenant_id),
            workspace=_given(wanted.workspace_id),
            kind=_given(wanted.kind),
            endpoint=_given(wanted.endpoint),
            auth_token=token,
            is_default=None if isinstance(wanted.is_default, UnsetType) else wanted.is_default,
            enabled=None if isinstance(wanted.enabled, UnsetType) else wanted.enabled,
            config=None if isinstance(wanted.config, UnsetType) else wanted.config,
        )
        note = self._note("target.upserted", call, target_id)
        target = await self.targets.upsert(target_id, change, also=note)
        return Result(_target(target))

    async def _delete(self, call: Call) -> Result:
        target_id = _target_id(call)
        target = await self.targets.get(target_id)
        await self.targets.delete(target_id, also=self._note("target.deleted", call, target_id))
        return Result(_target(target))

    def _note(self, action: str, call: Call, target_id: str) -> Sequence[Operation]:
        return self.trail.note(action, actor=call.caller.name, resource=("target", target_id))


def _target_id(call: Call) -> str:
    target_id = call.path["targetId"]
    if not is_path_safe(target_id):
        raise Problem(Code.INVALID_REQUEST, "targetId has 1 to 128 of A-Z a-z 0-9 . _ -")
    return target_id


def _given(value: str | UnsetType | None) -> str | None:
    """Left out: None, which changes nothing. Null: empty, which takes it away."""
    if isinstance(value, UnsetType):
        return None
    return "" if value is None else value


def _target(target: Target) -> wire.ExecutionTarget:
    return wire.ExecutionTarget(
        target_id=target.id,
        tenant_id=target.tenant,
        kind=target.kind,
        has_auth_token=bool(target.auth_token),
        is_default=target.is_default,
        enabled=target.enabled,
        config=dict(target.config),
        version=target.version,
        updated_at=to_iso_ms(target.updated_at),
        workspace_id=target.workspace or UNSET,
        endpoint=target.endpoint or UNSET,
    )
