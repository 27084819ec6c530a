"""The policy's decisions on what sandboxes may reach, and the record of what they reached.

A sandbox is known by its tenant, workspace and session, so rules can name these.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from toolgate.core.errors import ToolgateError
from toolgate.core.tools import Caller
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.evidence.evidence import Evidence
from toolgate.policy.decide import FindPolicy
from toolgate.policy.egress import decide_connection, granting, may_reach_any
from toolgate.policy.model import (
    ACTIVE_POLICY,
    DENIAL_DIGESTS,
    EGRESS,
    POLICY_NOT_FOUND,
    Decision,
    Effect,
    Policy,
)
from toolgate.sandbox.sandbox import SessionKey

log = logging.getLogger(__name__)

MOST_REFUSED: Final = 256  # different hosts of one session that it did not reach
MOST_KEPT: Final = 1024  # of one session's hosts; an older one counts as new when it comes again

SERVER_EGRESS: Final = "server.egress"  # the member of a registration, in place of a rule

Allows = Callable[[str, int], bool]


@dataclass(slots=True)
class PolicyEgress:
    """The policy in force decides each connection anew; a change counts from the next one on."""

    find: FindPolicy
    _seen: Policy | None = None
    _granting: Policy | None = None

    def grants(self, key: SessionKey) -> Allows | None:
        """The hosts that this session may reach; None: no host, so it gets no way out."""
        granted = self._current()
        if granted is None or not may_reach_any(granted, _caller(key)):
            return None
        return lambda host, port: self.decide(key, host, port).effect is Effect.ALLOW

    def decide(self, key: SessionKey, host: str, port: int) -> Decision:
        granted = self._current()
        if granted is None:
            digest = DENIAL_DIGESTS[POLICY_NOT_FOUND]
            reason = "There is no policy"
            return Decision(Effect.DENY, POLICY_NOT_FOUND, reason, "", "", rule_digest=digest)
        return decide_connection(granted, _caller(key), host=host, port=port)

    def _current(self) -> Policy | None:
        policy = self.find(ACTIVE_POLICY)
        if policy is not self._seen:
            self._seen = policy
            self._granting = None if policy is None else granting(policy)
        return self._granting


def registered_egress(allowed: Allows) -> Callable[[SessionKey, str, int], Decision]:
    """The decisions for an MCP server: its registration lists the hosts, not the policy."""

    def decide(_key: SessionKey, host: str, port: int) -> Decision:
        effect = Effect.ALLOW if allowed(host, port) else Effect.DENY
        return Decision(effect, SERVER_EGRESS, "Its registration decides", "", "")

    return decide


@dataclass(slots=True)
class Noted:
    """The recorded connections of one session: host, port and whether it was granted."""

    hosts: dict[tuple[str, int, bool], "asyncio.Task[None]"] = field(default_factory=dict)
    unreached: int = 0


@dataclass(slots=True)
class EgressRecords:
    """Evidence and an audit row for each host that a session reaches, or tries to, the first time."""

    evidence: Evidence
    audit: AuditLog
    decide: Callable[[SessionKey, str, int], Decision]
    _noted: dict[SessionKey, Noted] = field(default_factory=dict)

    async def note(
        self, key: SessionKey, host: str, port: int, refusal: str, *, reached: bool = True
    ) -> None:
        """Before a byte goes there; raises Unavailable where it cannot be written.

        A session is refused, or does not reach, as many hosts as it likes to try, also below a name
        that it was granted whole: the first of them are written down.
        """
        noted = self._noted.setdefault(key, Noted())
        told = (host, port, not refusal)
        in_vain = bool(refusal) or not reached
        writing = noted.hosts.get(told)
        if writing is None:
            if in_vain and noted.unreached >= MOST_REFUSED:
                return
            noted.unreached += in_vain
            if len(noted.hosts) >= MOST_KEPT:
                del noted.hosts[next(iter(noted.hosts))]
            writing = asyncio.create_task(self._record(key, host, port, refusal))
            noted.hosts[told] = writing
        try:
            await asyncio.shield(writing)  # all who wait for it, wait for one write
        except ToolgateError:
            if noted.hosts.pop(told, None) is not None:  # the next one is to be written, then
                noted.unreached -= in_vain
            raise

    async def _record(self, key: SessionKey, host: str, port: int, refusal: str) -> None:
        decision = self.decide(key, host, port)
        where = f"{host}:{port}"
        decided = Effect.DENY.value if refusal else Effect.ALLOW.value
        await self.evidence.record(
            "egress",
            {
                "tenant": key.tenant,
                "workspace": key.workspace,
                "session": key.session,
                "host": host,
                "port": port,
                "decision": decided,
                "rule_id": decision.rule_id,
                "reason": refusal or decision.reason,
                "policy_version": decision.policy_version,
            },
            subject=key.digest,
            with_operations=self.audit.prepare(
                AuditEntry(
                    action=EGRESS,
                    actor=f"session:{key.session}",
                    tenant_id=key.tenant,
                    workspace_id=key.workspace,
                    resource_type="host",
                    resource_id=where,
                    metadata={"decision": decided, "ruleId": decision.rule_id},
                )
            ),
        )

    def forget(self, key: SessionKey) -> None:
        self._noted.pop(key, None)


def _caller(key: SessionKey) -> Caller:
    return Caller(tenant=key.tenant, workspace=key.workspace, session=key.session)
