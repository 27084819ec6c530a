"""Who stands at the door: from headers to an identity, or to the refusal that fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

from toolgate.access.authentication import Authenticator
from toolgate.access.devices import AT_CONSOLE, NAMED, Contact, Identity, Who
from toolgate.access.pairing import Pairing
from toolgate.access.refusals import AuthRequired, Forbidden
from toolgate.access.registry import Credentials, Registry
from toolgate.access.sign_in import SAFE_METHODS, SignIn, check_own_page
from toolgate.contracts import gateway_v1 as wire
from toolgate.http.asgi import LOCAL_NAMES, Scope, host_name
from toolgate.http.bodies import check_id
from toolgate.surfaces.gateway.routes import Access

DEVICE_ID: Final = wire.HEADER_DEVICE_ID.lower().encode()
DEVICE_TOKEN: Final = wire.HEADER_DEVICE_TOKEN.lower().encode()
GATEWAY_TOKEN: Final = wire.HEADER_GATEWAY_TOKEN.lower().encode()
AUTHORIZATION: Final = wire.HEADER_AUTHORIZATION.lower().encode()

RawHeaders = Mapping[bytes, bytes]

_BEARERS: Final = {  # which tokens of an Authorization header open what
    Access.CALLER: NAMED,
    Access.READER: NAMED | {Who.OPERATOR},
    Access.TRUSTED: frozenset({Who.SERVICE, Who.OPERATOR}),
    Access.APPROVER: NAMED | {Who.OPERATOR},
    Access.OPERATOR: frozenset({Who.OPERATOR}),
}
_FOR_DEVICES: Final = frozenset({Access.CALLER, Access.READER, Access.APPROVER})


def text(headers: RawHeaders, name: bytes) -> str:
    """As clients send what is not ASCII: in UTF-8, or else in the standard's Latin-1."""
    raw = headers.get(name)
    if raw is None:
        return ""
    try:
        return raw.decode().strip()
    except UnicodeDecodeError:
        return raw.decode("latin-1").strip()


@dataclass(frozen=True, slots=True)
class Doors:
    authenticator: Authenticator
    pairing: Pairing
    sign_in: SignIn
    hosts: frozenset[str]  # names besides this machine's own that requests may be for

    @property
    def registry(self) -> Registry:
        return self.authenticator.registry

    def is_ours(self, host: str) -> bool:
        """Whether a Host header names us: a foreign page that rebinds its name's address does not.

        An address cannot be rebound, so any address will do.
        """
        name, is_address = host_name(host)
        return is_address or name in LOCAL_NAMES or name in self.hosts or "*" in self.hosts

    def is_same_site(self, origin: str, host: str) -> bool:
        """Whether a page that opens a WebSocket is one of ours; what is no page has no Origin."""
        if not origin:
            return True
        _, _, name = origin.partition("://")
        return name == host and self.is_ours(name)

    def credentials(self, headers: RawHeaders) -> Credentials:
        scheme, _, token = text(headers, AUTHORIZATION).partition(" ")
        return Credentials(
            device_id=text(headers, DEVICE_ID),
            device_token=text(headers, DEVICE_TOKEN),
            gateway_token=text(headers, GATEWAY_TOKEN),
            bearer=token.strip() if scheme.lower() == "bearer" else "",
        )

    def signed_in(self, scope: Scope, access: Access) -> Identity | None:
        """The operator, for a page of the console with its cookie; raises Forbidden.

        Only where the operator's token counts, and for a request that has no other credentials.
        """
        if Who.OPERATOR not in _BEARERS.get(access, ()):
            return None
        headers = Headers(scope=scope)
        if "authorization" in headers or not self.sign_in.has_session(headers):
            return None
        check_own_page(headers, changes=scope["method"] not in SAFE_METHODS)
        return AT_CONSOLE

    async def identify(
        self, credentials: Credentials, access: Access, *, ip: str, user_agent: str
    ) -> Identity | None:
        """Raises AuthRequired, InvalidToken or Forbidden; a device without a token knocks."""
        if access is Access.ANYONE:
            return None
        if credentials.bearer:
            return self._allowed(self.authenticator.bearer(credentials.bearer), access)
        if access not in _FOR_DEVICES:
            raise AuthRequired("this needs the operator's token")
        if not credentials.device_id:
            raise AuthRequired("X-Device-Id is required")
        if not credentials.device_token:
            self.authenticator.check_gateway_token(credentials.gateway_token)
            device_id = check_id(wire.HEADER_DEVICE_ID, credentials.device_id)
            raise await self.pairing.knock(Contact(device_id, ip, user_agent))
        return self._allowed(self.authenticator.device(credentials), access)

    def allow(self, identity: Identity, access: Access) -> None:
        """For one who is known already; raises AuthRequired or Forbidden."""
        if access is Access.ANYONE:
            return
        if identity.who is Who.DEVICE and access not in _FOR_DEVICES:
            raise AuthRequired("this needs the operator's token")
        self._allowed(identity, access)

    def _allowed(self, identity: Identity, access: Access) -> Identity:
        if identity.who is not Who.DEVICE and identity.who not in _BEARERS[access]:
            if access is Access.CALLER:
                raise AuthRequired(
                    "commands need a device's token (X-Device-Id, X-Device-Token) or a named one as bearer"
                )
            raise Forbidden("this needs the operator's token")
        if access is Access.APPROVER and not identity.scope.approve:
            raise Forbidden("this needs the operator's token, or the scope to approve")
        return identity
