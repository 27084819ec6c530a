"""Devices that knock and devices that are in; scripts; what is registered to be called."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from toolgate.access.devices import Scope
from toolgate.access.ratelimit import Rate
from toolgate.core.enums import HealthStatus, Isolation, Level
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.ids import is_path_safe
from toolgate.surfaces.console.parts import OPERATOR, Admission, Answer, Parts, body_of
from toolgate.tools.capabilities import Capability, Mount, Server


class Named(msgspec.Struct):
    """A device by the name that it gave itself: it may have signs that no path can carry."""

    id: str


class Grant(msgspec.Struct):
    tools: Level = Level.READ
    system: bool = False
    mcp: bool = False
    agent: bool = False
    approve: bool = False

    def scope(self) -> Scope:
        return Scope(
            self.tools, system=self.system, mcp=self.mcp, agent=self.agent, approve=self.approve
        )


class DeviceGrant(Grant, kw_only=True):
    id: str  # of the device


class Terms(msgspec.Struct):
    """The terms of a capability. Without a server, it keeps the one it has."""

    level: Level = Level.WRITE
    scope: str = "mcp"
    rate: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    secrets: dict[str, str] = {}  # a program's environment, or the headers that go to a URL
    mounts: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    isolation: Isolation = Isolation.SANDBOX

    def server(self) -> Server | None:
        if not self.command and not self.url:
            return None
        pairs = tuple(self.secrets.items())
        if self.url:
            return Server(url=self.url, headers=pairs)
        return Server(
            command=self.command,
            args=self.args,
            env=pairs,
            mounts=tuple(map(Mount.parse, self.mounts)),
            egress=self.egress,
            isolation=self.isolation,
        )


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
        wanted = await body_of(request, DeviceGrant)
        pairing = self._admission().pairing
        token, _ = await pairing.approve(wanted.id, wanted.scope(), by=OPERATOR)
        return {"token": token}

    async def revoke(self, request: Request) -> Answer:
        device = (await body_of(request, Named)).id
        await self._admission().pairing.revoke(device, by=OPERATOR)
        return {}

    async def turn_down(self, request: Request) -> Answer:
        device = (await body_of(request, Named)).id
        await self._admission().pairing.turn_down(device, by=OPERATOR)
        return {}

    async def make_token(self, request: Request) -> Answer:
        """A token for a script, or another in the place of one; it is shown this once."""
        grant, name = await body_of(request, Grant), _name(request)
        scope = grant.scope()
        row = self.parts.row("token.made", ("token", name), {"scope": msgspec.to_builtins(scope)})
        token = await self._admission().registry.add_service(name, scope, also=row)
        return {"token": token}

    async def end_token(self, request: Request) -> Answer:
        name = request.path_params["id"]
        row = self.parts.row("token.ended", ("token", name))
        await self._admission().registry.remove_service(name, also=row)
        return {}

    async def register(self, request: Request) -> Answer:
        """Register a capability, or change its terms."""
        terms, name = await body_of(request, Terms), str(request.path_params["id"])
        capabilities = self._admission().capabilities
        known = capabilities.registered(name)
        if known is None:  # one that is there was named elsewhere, as it likes
            name = _name(request)
        if terms.command and terms.url:
            raise Invalid("a server is a program or an address, not both", field="server")
        for secret in terms.secrets.values():
            self.parts.learn(secret)
        wanted = Capability(
            capability_id=name,
            scope=terms.scope,
            level=terms.level,
            updated_at=self.parts.clock.now_ms(),
            rate=None if terms.rate is None else Rate(terms.rate),
            status=HealthStatus.HEALTHY if known is None else known.status,
            version="" if known is None else known.version,
            owner=OPERATOR,
            expires_at=None if known is None else known.expires_at,
            server=terms.server(),
        )
        return _shown(await capabilities.register(wanted, by=OPERATOR))

    async def unregister(self, request: Request) -> Answer:
        await self._admission().capabilities.remove(request.path_params["id"], by=OPERATOR)
        return {}

    async def capabilities(self, _: Request) -> Answer:
        found = self._admission().capabilities.all()
        return {"now": self.parts.clock.now_ms(), "items": [_shown(one) for one in found]}

    def _admission(self) -> Admission:
        if self.parts.admission is None:
            raise Unavailable("no gateway runs here")
        return self.parts.admission


def _name(request: Request) -> str:
    """The name in the path; raises Invalid."""
    name = str(request.path_params["id"])
    if not is_path_safe(name):
        raise Invalid("a name has 1 to 128 of A-Z a-z 0-9 . _ -", field="name")
    return name


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
        "server": "" if server is None else server.url or " ".join((server.command, *server.args)),
        "isolation": one.isolation,
        "reason": one.reason,
        "mounts": [] if server is None else [str(mount) for mount in server.mounts],
        "egress": [] if server is None else list(server.egress),
    }
