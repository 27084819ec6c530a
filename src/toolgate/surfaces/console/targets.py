"""Execution targets. A token goes in and is never shown."""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from toolgate.core.errors import Invalid
from toolgate.core.ids import is_path_safe
from toolgate.surfaces.console.parts import Answer, Parts, body_of
from toolgate.tools.targets.registry import public
from toolgate.tools.targets.targets import Change


class Wanted(msgspec.Struct, rename="camel"):
    tenant_id: str | None = None
    workspace_id: str | None = None
    kind: str | None = None
    endpoint: str | None = None
    auth_token: str | UnsetType = UNSET  # left out: it stays; empty: it is taken away
    is_default: bool | None = None
    enabled: bool | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TargetPages:
    parts: Parts

    async def listed(self, _: Request) -> Answer:
        return {"items": [public(target) for target in await self.parts.targets.list()]}

    async def put(self, request: Request) -> Answer:
        wanted = await body_of(request, Wanted)
        target_id = request.path_params["id"]
        if not is_path_safe(target_id):
            raise Invalid("an id has 1 to 128 of A-Z a-z 0-9 . _ -", field="targetId")
        token = None if isinstance(wanted.auth_token, UnsetType) else wanted.auth_token
        if token:
            self.parts.learn(token)
        target = await self.parts.targets.upsert(
            target_id,
            Change(
                tenant=wanted.tenant_id,
                workspace=wanted.workspace_id,
                kind=wanted.kind,
                endpoint=wanted.endpoint,
                auth_token=token,
                is_default=wanted.is_default,
                enabled=wanted.enabled,
                config=wanted.config,
            ),
            also=self.parts.row("target.upserted", ("target", target_id)),
        )
        return public(target)

    async def delete(self, request: Request) -> Answer:
        target_id = request.path_params["id"]
        row = self.parts.row("target.deleted", ("target", target_id))
        await self.parts.targets.delete(target_id, also=row)
        return {}
