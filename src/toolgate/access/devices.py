"""Devices: how one asks to be paired, what it may do once it is, and how that ends.

A pairing request waits for the operator, shown on both sides under a short code. What a device may
do is its scope; a token is known by its hash alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from toolgate.core.enums import CommandKind, Level
from toolgate.core.errors import Refused

PENDING_MS: Final = 600_000  # gateway contract: pending requests expire after 10 min
MAX_PENDING: Final = 100  # in all; ours
MAX_PENDING_PER_ADDRESS: Final = 10  # ours
CODE_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # nothing that reads like another
CODE_LENGTH: Final = 6
MAX_USER_AGENT: Final = 256
COMMAND_SESSIONS: Final = "gw:"  # how the sessions of gateway commands begin


@dataclass(frozen=True, slots=True)
class Scope:
    tools: Level = Level.READ
    system: bool = False
    mcp: bool = False
    agent: bool = False
    approve: bool = False

    def refusal(self, kind: CommandKind, level: Level) -> str:
        """Why a command of this kind and level is outside the scope; empty where it is not."""
        if kind is CommandKind.TOOL:
            if level.rank <= self.tools.rank:
                return ""
            return f"this caller may use tools up to level {self.tools}, not {level}"
        granted = {
            CommandKind.AGENT: self.agent,
            CommandKind.SYSTEM: self.system,
            CommandKind.MCP: self.mcp,
        }
        return "" if granted[kind] else f"this caller may not use {kind} commands"


EVERYTHING: Final = Scope(Level.SIGN, system=True, mcp=True, agent=True, approve=True)


@dataclass(frozen=True, slots=True)
class Device:
    device_id: str
    token_hash: str
    scope: Scope
    paired_at: int
    revoked_at: int = 0
    public_key: str = ""  # Ed25519, base64
    key_by_token: bool = False  # it came later, and only its token vouches for it

    @property
    def active(self) -> bool:
        return not self.revoked_at


@dataclass(frozen=True, slots=True)
class Pending:
    """A device that asked to be paired, and has not been answered."""

    device_id: str
    code: str
    requested_at: int
    expires_at: int
    ip: str
    user_agent: str
    public_key: str = ""


@dataclass(frozen=True, slots=True)
class Contact:
    """Who knocks, as the server sees it."""

    device_id: str
    ip: str
    user_agent: str = ""
    public_key: str = ""


class TooManyPending(Refused):
    """Nobody answers the pairing requests that wait already."""

    def __init__(self, retry_ms: int) -> None:
        super().__init__("too many devices wait to be paired")
        self.retry_ms = retry_ms


def ask(contact: Contact, waiting: Collection[Pending], *, now: int, chance: int) -> Pending:
    """The request that waits for this device, made where there is none.

    Raises TooManyPending; Refused where someone else waits under its name: with another key, or
    elsewhere and with a key that this one has not, or has and the other has not.
    """
    live = [one for one in waiting if one.expires_at > now]
    for one in live:
        if one.device_id == contact.device_id:
            two_keys = one.public_key and contact.public_key
            if one.public_key != contact.public_key and (two_keys or one.ip != contact.ip):
                # The operator compares codes: one code must not let in another's key.
                raise Refused("someone else waits to be paired under this name")
            better = contact.public_key and not one.public_key
            return replace(one, public_key=contact.public_key) if better else one
    same_address = [one for one in live if one.ip == contact.ip]
    for crowd, most in ((live, MAX_PENDING), (same_address, MAX_PENDING_PER_ADDRESS)):
        if len(crowd) >= most:
            raise TooManyPending(min(one.expires_at for one in crowd) - now)
    return Pending(
        device_id=contact.device_id,
        code=code_of(chance),
        requested_at=now,
        expires_at=now + PENDING_MS,
        ip=contact.ip,
        user_agent=contact.user_agent[:MAX_USER_AGENT],
        public_key=contact.public_key,
    )


def code_of(chance: int) -> str:
    letters: list[str] = []
    for _ in range(CODE_LENGTH):
        chance, letter = divmod(chance, len(CODE_ALPHABET))
        letters.append(CODE_ALPHABET[letter])
    return "".join(letters)


class Who(StrEnum):
    DEVICE = "device"
    USER = "user"
    AGENT = "agent"
    SERVICE = "service"
    OPERATOR = "operator"
    EXECUTOR = "executor"  # a holder of EXECUTOR_TOKEN
    INGRESS = "ingress"  # a holder of the internal token


class Via(StrEnum):
    """The proof of an identity, where it says less, or more, than the name."""

    CLAIMED = "claimed"  # a user whose client has the shared API_KEY
    ANY_KEY = "any key"  # a user whose client has no key
    CONSOLE = "console"


NAMED: Final = frozenset({Who.USER, Who.AGENT, Who.SERVICE})  # the kinds of named tokens


@dataclass(frozen=True, slots=True)
class Service:
    """A named token, of a user, an agent or a service; known by its hash alone."""

    name: str
    token_hash: str
    scope: Scope
    made_at: int
    kind: Who = Who.SERVICE
    expires_at: int = 0  # never

    @property
    def caller(self) -> str:
        return f"{self.kind}:{self.name}"

    def is_valid(self, *, now: int) -> bool:
        return not self.expires_at or now < self.expires_at


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, once it has been proven."""

    who: Who
    name: str
    scope: Scope = field(default_factory=Scope)
    via: str = ""  # a Via; for an ingress, its address

    @property
    def user(self) -> str:
        """The user's own name, as a client says it; of others, their name as a caller."""
        return self.name.removeprefix(f"{Who.USER}:") if self.who is Who.USER else self.name

    @property
    def principal(self) -> str:
        """The name for records of decisions."""
        match self.who:
            case Who.INGRESS:
                user = self.name.removeprefix(f"{Who.USER}:")
                return f"{self.who} {self.via}" + (f" for user {user}" if user else "")
            case Who.OPERATOR:
                text = self.name
            case _:
                text = f"{self.who} {self.name.removeprefix(f'{self.who}:')}"
        return f"{text} ({self.via})" if self.via else text

    @property
    def may_decide(self) -> bool:
        """True if it may decide approvals of its session's agents: the scope, or a person's key."""
        person = self.who is Who.USER and self.via != Via.ANY_KEY
        return person or self.scope.approve

    def may_decide_level(self, level: Level) -> bool:
        """True if it may decide a call of this level: a program only one that it might call."""
        is_program = self.who in (Who.DEVICE, Who.AGENT, Who.SERVICE)
        return not is_program or level.rank <= self.scope.tools.rank


OPERATOR: Final = Identity(Who.OPERATOR, "operator", EVERYTHING)
AT_CONSOLE: Final = replace(OPERATOR, via=Via.CONSOLE)
EXECUTOR: Final = Identity(Who.EXECUTOR, "executor", Scope(Level.SIGN))
CLIENT: Final = Identity(Who.USER, "", Scope(agent=True), via=Via.CLAIMED)
ANY_CLIENT: Final = replace(CLIENT, via=Via.ANY_KEY)


def kind_of(caller: str) -> Who | None:
    """The kind of a named token, by its name as a caller; None for the name of a device."""
    kind, colon, _ = caller.partition(":")
    return Who(kind) if colon and kind in NAMED else None


def is_by_program(user: str, session: str) -> bool:
    """True if a device, an agent or a service started the run of this user and session."""
    kind = kind_of(user)
    if kind is None:
        return session.startswith(COMMAND_SESSIONS)
    return kind is not Who.USER


def session_of(device: str, name: str) -> str:
    """A session that only this device can name; without a name, the one it is always in."""
    return f"{_sessions_of(device)}:{name}" if name else _sessions_of(device)


def named_session(device: str, session: str) -> str:
    """The name that the device gave its session; empty where it gave none."""
    start = f"{_sessions_of(device)}:"
    return session.removeprefix(start) if session.startswith(start) else ""


def _sessions_of(device: str) -> str:
    """Without a colon of the device's own: `a` in `b:c` is not `a:b` in `c`."""
    return f"{COMMAND_SESSIONS}{device.replace('%', '%25').replace(':', '%3A')}"
