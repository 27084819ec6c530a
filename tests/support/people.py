"""Those who decide approvals and who connect, for tests below the doors."""

from toolgate.access.authentication import Authenticator
from toolgate.access.devices import EVERYTHING, OPERATOR, Identity, Who, kind_of
from toolgate.access.registry import Registry
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def by(name: str) -> Identity:
    """The operator, the owner of a named token (`user:anna`), or a device."""
    return (
        OPERATOR
        if name == OPERATOR.name
        else Identity(kind_of(name) or Who.DEVICE, name, EVERYTHING)
    )


def known_to(registry: Registry) -> Authenticator:
    """An authenticator of these devices and tokens, with `op` as the operator's token."""
    return Authenticator(registry, operator_token="op")


def keyed(api_key: str = "", *, executor: str = "", internal: str = "") -> Authenticator:
    """An authenticator that knows this shared key; without one, any key is right."""
    clock = FakeClock()
    return Authenticator(
        Registry(MemoryJournal(clock=clock, bus=LocalBus()), clock),
        api_key=api_key,
        executor_token=executor,
        internal_token=internal,
    )
