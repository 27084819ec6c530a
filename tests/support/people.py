"""Those who decide approvals and who connect, for tests below the doors."""

from toolgate.access.authentication import Authenticator
from toolgate.access.devices import EVERYTHING, OPERATOR, Identity, kind_of
from toolgate.access.devices import Who as Kind
from toolgate.access.registry import Registry
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def by(name: str) -> Identity:
    """The operator, or the owner of a named token; a name without a kind is a user's."""
    if name == OPERATOR.name:
        return OPERATOR
    kind = kind_of(name)
    return Identity(kind or Kind.USER, name if kind else f"{Kind.USER}:{name}", EVERYTHING)


def known_to(registry: Registry) -> Authenticator:
    """An authenticator of these devices and tokens, with `op` as the operator's token."""
    return Authenticator(registry, operator_token="op")


def keyed(api_key: str = "", *, executor: str = "") -> Authenticator:
    """An authenticator that knows this shared key; without one, any key is right."""
    clock = FakeClock()
    return Authenticator(
        Registry(MemoryJournal(clock=clock, bus=LocalBus()), clock), api_key=api_key, executor_token=executor
    )
