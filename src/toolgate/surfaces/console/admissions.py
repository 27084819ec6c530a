"""Devices that knock and devices that are in; what is registered to be called."""

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from toolgate.domain.capabilities import Capability
from toolgate.domain.devices import Scope
from toolgate.domain.errors import Unavailable
from toolgate.domain.tools import Level
from toolgate.surfaces.console.parts import OPERATOR, Admission, Answer, Parts, body_of


class Grant(msgspec.Struct):
    tools: Level = Level.READ
    system: bool = False
    mcp: bool = False
    agent: bool = False
    approve: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionPages:
    parts: Parts

    async def devices(self, _: Request) -> Answer:
        admission = self._admission()
        return {
            "now": self.parts.clock.now_ms(),
            "pending": [
                {
                    "id": one.device_id,
                    "code": one.code,
                    "ip": one.ip,
                    "user_agent": one.user_agent,
                    "requested_at": one.requested_at,
                    "expires_at": one.expires_at,
                    "has_key": bool(one.public_key),
                }
                for one in admission.pairing.pending()
            ],
            "devices": [
                {
                    "id": device.device_id,
                    "scope": msgspec.to_builtins(device.scope),
                    "paired_at": device.paired_at,
                    "last_seen": admission.registry.last_seen(device.device_id),
                    "has_key": bool(device.public_key),
                }
                for device in admission.registry.devices
            ],
            "services": [
                {
                    "name": service.name,
                    "scope": msgspec.to_builtins(service.scope),
                    "made_at": service.made_at,
                }
                for service in admission.registry.services
            ],
        }

    async def pair(self, request: Request) -> Answer:
        """Let a device in, or give one that is in another token; it is shown this once."""
        grant = await body_of(request, Grant)
        scope = Scope(
            grant.tools,
            system=grant.system,
            mcp=grant.mcp,
            agent=grant.agent,
            approve=grant.approve,
        )
        token, _ = await self._admission().pairing.approve(
            request.path_params["id"], scope, by=OPERATOR
        )
        return {"token": token}

    async def revoke(self, request: Request) -> Answer:
        await self._admission().pairing.revoke(request.path_params["id"], by=OPERATOR)
        return {}

    async def capabilities(self, _: Request) -> Answer:
        found = self._admission().capabilities.all()
        return {"now": self.parts.clock.now_ms(), "items": [_shown(one) for one in found]}

    def _admission(self) -> Admission:
        if self.parts.admission is None:
            raise Unavailable("no gateway runs here")
        return self.parts.admission


def _shown(one: Capability) -> dict[str, Any]:
    """Without its server's environment and headers, which may hold secrets."""
    server = one.server
    return {
        "id": one.capability_id,
        "scope": one.scope,
        "level": one.level.value,
        "status": one.status.value,
        "version": one.version,
        "owner": one.owner,
        "rate": None if one.rate is None else one.rate.limit,
        "expires_at": one.expires_at,
        "updated_at": one.updated_at,
        "server": "" if server is None else (server.url or server.command),
    }
