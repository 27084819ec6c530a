"""`/pairing/*` and `/tokens`: who may come in. For the operator alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.access.audit import Trail
from toolgate.access.devices import Scope, Service, Who
from toolgate.access.pairing import Pairing
from toolgate.access.registry import Registry
from toolgate.commands.answers import Extra, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.clock import Clock
from toolgate.core.tools import JsonValue
from toolgate.http.bodies import check_id
from toolgate.journal.journal import Operation
from toolgate.surfaces.gateway.routes import Access, Call, Route
from toolgate.surfaces.gateway.translate import pending_out, scope_in, scope_out


@dataclass(frozen=True, slots=True)
class PairingRoutes:
    pairing: Pairing

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/pairing/pending",
                Access.OPERATOR,
                "The devices that wait to be paired.",
                self._pending,
                wire.PendingDevices,
                v2="pairing.pending",
            ),
            Route(
                "POST",
                "/pairing/approve",
                Access.OPERATOR,
                "Pair a device that waits, or give a paired one a new token.",
                self._approve,
                wire.PairingApproved,
                v2="pairing.approve",
                takes=wire.PairingApprove,
                statuses=(200, 404),
            ),
            Route(
                "POST",
                "/pairing/reject",
                Access.OPERATOR,
                "Reject a device that waits; a paired device of its name stays paired.",
                self._reject,
                wire.PairingRejected,
                v2="pairing.reject",
                takes=wire.PairingReject,
                statuses=(200, 404),
            ),
            Route(
                "POST",
                "/pairing/revoke",
                Access.OPERATOR,
                "Take a device's token away, at once.",
                self._revoke,
                wire.PairingRevoked,
                v2="pairing.revoke",
                takes=wire.PairingRevoke,
                statuses=(200, 404),
            ),
        )

    async def _reject(self, call: Call) -> Result:
        wanted: wire.PairingReject = call.body
        device_id = check_id("deviceId", wanted.device_id)
        await self.pairing.reject(device_id, by=call.caller.name)
        return Result(wire.PairingRejected(device_id=device_id))

    async def _pending(self, _: Call) -> Result:
        return Result(wire.PendingDevices(pending=[pending_out(p) for p in self.pairing.pending()]))

    async def _approve(self, call: Call) -> Result:
        wanted: wire.PairingApprove = call.body
        device_id = check_id("deviceId", wanted.device_id)
        scope = None if isinstance(wanted.scope, UnsetType) else scope_in(wanted.scope)
        token, granted = await self.pairing.approve(device_id, scope, by=call.caller.name)
        approved = wire.PairingApproved(
            device_id=device_id, device_token=token, scope=scope_out(granted)
        )
        return Result(approved, Extra(headers=((wire.HEADER_DEVICE_TOKEN, token),)))

    async def _revoke(self, call: Call) -> Result:
        wanted: wire.PairingRevoke = call.body
        device_id = check_id("deviceId", wanted.device_id)
        await self.pairing.revoke(device_id, by=call.caller.name)
        return Result(wire.PairingRevoked(device_id=device_id, revoked=True))


@dataclass(frozen=True, slots=True)
class TokenRoutes:
    """Named tokens, of users, agents and services."""

    registry: Registry
    clock: Clock
    trail: Trail

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/tokens",
                Access.OPERATOR,
                "The named tokens that there are, without themselves.",
                self._list,
                wire.ServiceTokens,
            ),
            Route(
                "POST",
                "/tokens",
                Access.OPERATOR,
                "Make a named token, or another in the place of one.",
                self._make,
                wire.ServiceToken,
                takes=wire.ServiceTokenMake,
            ),
            Route(
                "DELETE",
                "/tokens/{name}",
                Access.OPERATOR,
                "Revoke a named token, at once.",
                self._end,
                wire.ServiceToken,
                statuses=(200, 404),
            ),
        )

    async def _list(self, _: Call) -> Result:
        return Result(wire.ServiceTokens(items=[_token(one) for one in self.registry.services]))

    async def _make(self, call: Call) -> Result:
        wanted: wire.ServiceTokenMake = call.body
        name = check_id("name", wanted.name)
        scope = Scope() if isinstance(wanted.scope, UnsetType) else scope_in(wanted.scope)
        kind, lasts_ms = Who(wanted.kind), given(wanted.expires_in_ms, 0)
        expires_at = self.clock.now_ms() + lasts_ms if lasts_ms else 0
        if kind is Who.USER:  # a person who talks to agents is what the kind is for
            scope = replace(scope, agent=True)
        granted: dict[str, JsonValue] = {
            "kind": kind,
            "scope": msgspec.to_builtins(scope),
            "expiresAt": expires_at or None,
        }
        note = self._note("token.made", call, name, metadata=granted)
        token = await self.registry.add_service(
            name, scope, kind=kind, expires_at=expires_at, also=note
        )
        return Result(_token(self.registry.service(name), token))

    async def _end(self, call: Call) -> Result:
        name = check_id("name", call.path["name"])
        ended = _token(self.registry.service(name))
        await self.registry.remove_service(name, also=self._note("token.ended", call, name))
        return Result(ended)

    def _note(
        self, action: str, call: Call, name: str, metadata: Mapping[str, JsonValue] | None = None
    ) -> Sequence[Operation]:
        return self.trail.note(
            action, actor=call.caller.name, resource=("token", name), metadata=metadata
        )


def _token(service: Service, token: str = "") -> wire.ServiceToken:
    return wire.ServiceToken(
        name=service.name,
        scope=scope_out(service.scope),
        made_at=service.made_at,
        kind=wire.NamedKind(service.kind),
        expires_at=service.expires_at or UNSET,
        token=token or UNSET,
    )
