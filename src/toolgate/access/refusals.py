"""Why a request is not let in.

Refused
├── AuthRequired   nobody said who they are, or the device is not paired
├── InvalidToken   they said, and it is not so (any more)
├── Forbidden      known, and not allowed to do this
└── RateLimited    known and allowed, but not so soon
Conflict
└── KeyConflict    the Idempotency-Key belongs to another request
"""

from toolgate.access.devices import Pending
from toolgate.core.errors import Conflict, Refused
from toolgate.core.rates import Spent


class AuthRequired(Refused):
    def __init__(self, message: str, *, pending: Pending | None = None, token: str = "") -> None:
        super().__init__(message)
        self.pending = pending
        self.token = token  # where the device was paired at once (local auto-approve)


class InvalidToken(Refused):
    pass


class Forbidden(Refused):
    pass


class RateLimited(Refused):
    def __init__(self, spent: Spent, *, what: str) -> None:
        super().__init__(f"too many commands for {what}")
        self.spent = spent


class KeyConflict(Conflict):
    def __init__(self) -> None:
        super().__init__("the Idempotency-Key was used for another request")
