"""Authentication for every listener: from the credential in a request to an identity.

The only place where a credential is compared with what is known. What an identity may do is decided by
the surface's routes, by its scope and by the gate.
"""

from dataclasses import replace

from toolgate.access.devices import ANY_CLIENT, CLIENT, EXECUTOR, OPERATOR, Identity, Who
from toolgate.access.refusals import AuthRequired, InvalidToken
from toolgate.access.registry import Credentials, Registry, hash_of, same


class Authenticator:
    def __init__(
        self,
        registry: Registry,
        *,
        operator_token: str = "",
        gateway_token: str = "",
        executor_token: str = "",
        internal_token: str = "",
        api_key: str = "",
    ) -> None:
        """A token that is empty opens nothing, but an empty `api_key` accepts any."""
        self.registry = registry
        self._operator = _hash_or_none(operator_token)
        self._gateway = _hash_or_none(gateway_token)
        self._executor = _hash_or_none(executor_token)
        self._internal = _hash_or_none(internal_token)
        self._api_key = _hash_or_none(api_key)

    @property
    def any_key(self) -> bool:
        """True if clients may say any key."""
        return not self._api_key

    @property
    def has_internal(self) -> bool:
        """True if ingress and orchestrator share a token."""
        return bool(self._internal)

    def internal(self, token: str) -> None:
        """Check the token that ingress and orchestrator share; raises InvalidToken."""
        if not same(hash_of(token), self._internal):
            raise InvalidToken(
                "the bearer token is missing or wrong: set INTERNAL_TOKEN to the same value for"
                " ingress and orchestrator"
            )

    def bearer(self, token: str) -> Identity:
        """The operator, or whose named token this is; raises InvalidToken."""
        return OPERATOR if same(hash_of(token), self._operator) else self._named(token)

    def executor(self, token: str) -> Identity:
        """Whoever has the executor's token, or whose named token this is; raises InvalidToken."""
        return EXECUTOR if same(hash_of(token), self._executor) else self._named(token)

    def _named(self, token: str) -> Identity:
        if (named := self.registry.named(hash_of(token))) is not None:
            return named
        raise InvalidToken("the bearer token is wrong, was revoked or has expired")

    def device(self, credentials: Credentials) -> Identity:
        """Raises AuthRequired where there is no token or the device is not paired, InvalidToken."""
        self.check_gateway_token(credentials.gateway_token)
        device = self.registry.device(credentials.device_id)
        if not credentials.device_token:
            raise AuthRequired("X-Device-Token is required")
        # An unknown device costs the same comparison as a known one.
        expected = device.token_hash if device is not None else self._operator
        right = same(hash_of(credentials.device_token), expected)
        if device is None:
            raise AuthRequired("this device is not paired")
        if not right or not device.active:
            raise InvalidToken("the device token is wrong or was revoked")
        return self.registry.seen(device.device_id)

    def check_gateway_token(self, given: str) -> None:
        if not self._gateway:
            return
        if not given:
            raise AuthRequired("X-Gateway-Token is required here")
        if not same(hash_of(given), self._gateway):
            raise InvalidToken("the gateway token is wrong")

    def client(self, user_id: str, api_key: str) -> Identity:
        """A client of the ingress: with the shared key, or with a named token; raises InvalidToken.

        The shared key proves the installation, not the person: the user is who they claim to be.
        """
        hashed = hash_of(api_key)
        claimed = f"{Who.USER}:{user_id}"
        if same(hashed, self._api_key):
            return replace(CLIENT, name=claimed)
        named = self.registry.named(hashed)
        if named is not None and named.who is Who.USER and named.name != claimed:
            raise InvalidToken("this key is another user's: say its own user_id")
        if named is not None and not (named.scope.agent or named.scope.approve):
            raise InvalidToken(
                "this key may neither talk to agents nor approve (scopes of the token)"
            )
        if named is not None:
            return named
        if self.any_key:
            return replace(ANY_CLIENT, name=claimed)
        raise InvalidToken("the api_key is wrong")


def _hash_or_none(token: str) -> str:
    return hash_of(token) if token else ""
