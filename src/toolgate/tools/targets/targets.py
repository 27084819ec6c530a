"""Execution targets: where tools run, which one a call gets, and when to stop asking a dead one.

Pure: time comes in, rows and HTTP are elsewhere.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolgate.core.enums import TargetKind
from toolgate.core.errors import Invalid, Refused
from toolgate.core.tools import JsonValue
from toolgate.core.urls import parse_url

LOCAL_DEFAULT: Final = "target_local_default"
EVERYONE: Final = ""  # the tenant of the built-in target

DEFAULT_TIMEOUT_MS: Final = 15_000  # seed 000 §7
MAX_TIMEOUT_MS: Final = 180_000  # seed 000 §7

POLICY_DENIED: Final = "POLICY_DENIED"


class TargetRefused(Refused):
    """A call may not have this target."""

    code: Final = POLICY_DENIED

    def __init__(self, target_id: str, reason: str) -> None:
        super().__init__(f"execution target {target_id} {reason}")
        self.target_id = target_id


@dataclass(frozen=True, slots=True)
class Target:
    id: str
    tenant: str
    workspace: str | None  # None: the whole tenant's
    kind: TargetKind
    endpoint: str = ""
    auth_token: str = field(default="", repr=False)
    is_default: bool = False
    enabled: bool = True
    config: dict[str, Any] = field(default_factory=dict)  # JSON
    version: int = 1
    updated_at: int = 0
    promises: tuple[str, ...] | None = None  # of its runner, when it was set; None: not known

    @property
    def url(self) -> str:
        """Where its runner is; empty where nothing says so."""
        configured = self.config.get("endpoint")
        return self.endpoint.strip() or (configured.strip() if isinstance(configured, str) else "")

    @property
    def timeout_ms(self) -> int:
        return read_timeout(self.config.get("timeoutMs"))

    def serves(self, tenant: str, workspace: str) -> bool:
        if self.id == LOCAL_DEFAULT:
            return True
        return self.tenant == tenant and self.workspace in (None, workspace)


BUILT_IN: Final = Target(LOCAL_DEFAULT, EVERYONE, None, TargetKind.LOCAL_HOST)


@dataclass(frozen=True, slots=True)
class Change:
    """What an upsert says; None is what it leaves out."""

    tenant: str | None = None
    workspace: str | None = None  # empty: the whole tenant's
    kind: str | None = None
    endpoint: str | None = None
    auth_token: str | None = field(default=None, repr=False)  # empty: take it away
    is_default: bool | None = None
    enabled: bool | None = None
    config: Mapping[str, JsonValue] | None = None


def read_timeout(value: JsonValue) -> int:
    """The deadline a target's config asks for, in milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return DEFAULT_TIMEOUT_MS
    if isinstance(value, float) and not math.isfinite(value):
        return DEFAULT_TIMEOUT_MS
    floored = math.floor(value)
    return min(floored, MAX_TIMEOUT_MS) if floored > 0 else DEFAULT_TIMEOUT_MS


def upsert(target_id: str, before: Target | None, change: Change, *, now_ms: int) -> Target:
    """The target after the change; raises Invalid or Refused."""
    if target_id == LOCAL_DEFAULT:
        return _change_built_in(before or BUILT_IN, change, now_ms=now_ms)
    if before is None:
        if not change.tenant:
            raise Invalid("a new execution target needs a tenantId", field="tenantId")
        kind = _kind(change.kind or "")
        before = Target(target_id, change.tenant, None, kind, version=0)
    elif change.tenant not in (None, before.tenant):
        raise Refused(f"execution target {target_id} belongs to another tenant")
    return replace(
        before,
        workspace=before.workspace if change.workspace is None else change.workspace or None,
        kind=before.kind if change.kind is None else _kind(change.kind),
        endpoint=before.endpoint if change.endpoint is None else _endpoint(change.endpoint),
        auth_token=before.auth_token if change.auth_token is None else change.auth_token,
        is_default=before.is_default if change.is_default is None else change.is_default,
        enabled=before.enabled if change.enabled is None else change.enabled,
        config=before.config if change.config is None else dict(change.config),
        version=before.version + 1,
        updated_at=now_ms,
    )


def _change_built_in(before: Target, change: Change, *, now_ms: int) -> Target:
    if change.kind not in (None, TargetKind.LOCAL_HOST) or change.endpoint or change.auth_token:
        raise Refused(f"{LOCAL_DEFAULT} is this machine and nothing else")
    return replace(
        before,
        enabled=before.enabled if change.enabled is None else change.enabled,
        config=before.config if change.config is None else dict(change.config),
        version=before.version + 1,
        updated_at=now_ms,
    )


def _endpoint(text: str) -> str:
    text = text.strip()
    if text:
        try:
            parse_url(text)
        except Invalid as wrong:
            raise Invalid(f"not an endpoint: {wrong}", field="endpoint") from wrong
    return text


def _kind(text: str) -> TargetKind:
    try:
        return TargetKind(text)
    except ValueError:
        kinds = ", ".join(TargetKind)
        raise Invalid(f"the kind must be one of {kinds}", field="kind") from None


def displaced(target: Target, others: Iterable[Target]) -> list[Target]:
    """The targets that stop being the default because this one now is."""
    if not target.is_default:
        return []
    return [
        other
        for other in others
        if other.is_default
        and other.id != target.id
        and (other.tenant, other.workspace) == (target.tenant, target.workspace)
    ]


def choose(
    targets: Iterable[Target],
    *,
    tenant: str,
    workspace: str,
    explicit: str = "",
    of_agent: str = "",
) -> Target:
    """The target a call runs on; raises TargetRefused.

    The one it names, the agent's, the workspace's default, the tenant's, this machine.
    """
    available = {LOCAL_DEFAULT: BUILT_IN}
    available |= {each.id: each for each in targets if each.serves(tenant, workspace)}
    named = explicit or of_agent
    if named:
        found = available.get(named)
        if found is None:
            raise TargetRefused(named, "is not known here")
    else:
        found = _default(available.values(), workspace) or _default(available.values(), None)
        found = found or available[LOCAL_DEFAULT]
    if not found.enabled:
        raise TargetRefused(found.id, "is disabled")
    return found


def _default(targets: Iterable[Target], workspace: str | None) -> Target | None:
    defaults = (each for each in targets if each.is_default and each.workspace == workspace)
    return next(iter(sorted(defaults, key=lambda each: each.id)), None)


class Breaker:
    """Stops calls to a target that does not answer; after a rest, the first call is a probe."""

    def __init__(self, *, failures: int = 5, rest_seconds: float = 2.0) -> None:
        self._most = failures
        self._rest = rest_seconds
        self._failures = 0
        self._opened_at: float | None = None

    def allows(self, now: float) -> bool:
        if self._opened_at is None:
            return True
        if now - self._opened_at < self._rest:
            return False
        self._opened_at = now  # this one may try; the others wait for what comes of it
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._opened_at = None

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= self._most:
            self._opened_at = now

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None
