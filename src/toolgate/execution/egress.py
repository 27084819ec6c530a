"""The policy's word on what sandboxes may reach, and the record of what they did.

A sandbox is known by its tenant, workspace and session, so its rules can speak of these.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from toolgate.domain.errors import ToolgateError
from toolgate.domain.policy.decide import FindPolicy
from toolgate.domain.policy.egress import decide_connection, granting, may_reach_any
from toolgate.domain.policy.model import ACTIVE_POLICY, EGRESS, Decision, Effect, Policy
from toolgate.domain.tools import Caller
from toolgate.execution.audit import AuditEntry, AuditLog
from toolgate.ports.evidence import Evidence
from toolgate.ports.sandbox import SessionKey

log = logging.getLogger(__name__)

MOST_REFUSED: Final = 256  # different hosts of one session

Allows = Callable[[str, int], bool]


@dataclass(slots=True)
class PolicyEgress:
    """The policy in force decides each connection anew; a change counts from the next one on."""

    find: FindPolicy
    _seen: Policy | None = None
    _granting: Policy | None = None

    def grants(self, key: SessionKey) -> Allows | None:
        """What this session may reach; None: nothing, so it gets no way out."""
        granted = self._current()
        if granted is None or not may_reach_any(granted, _caller(key)):
            return None
        return lambda host, port: self.decide(key, host, port).effect is Effect.ALLOW

    def decide(self, key: SessionKey, host: str, port: int) -> Decision:
        granted = self._current()
        if granted is None:
            return Decision(Effect.DENY, "policy_not_found", "There is no policy", "", "")
        return decide_connection(granted, _caller(key), host=host, port=port)

    def _current(self) -> Policy | None:
        policy = self.find(ACTIVE_POLICY)
        if policy is not self._seen:
            self._seen = policy
            self._granting = None if policy is None else granting(policy)
        return self._granting


@dataclass(slots=True)
class EgressRecords:
    """Evidence and an audit row for each host that a session reaches, or tries to, the first time."""

    evidence: Evidence
    audit: AuditLog
    decide: Callable[[SessionKey, str, int], Decision]
    _noted: dict[SessionKey, dict[tuple[str, int, bool], "asyncio.Task[None]"]] = field(
        default_factory=dict
    )

    async def note(self, key: SessionKey, host: str, port: int, refusal: str) -> None:
        """Before a byte goes there; raises Unavailable where it cannot be written.

        A session is refused as many hosts as it likes to try: the first of them are written down.
        """
        noted = self._noted.setdefault(key, {})
        told = (host, port, not refusal)
        if told not in noted:
            if refusal and sum(not allowed for _, _, allowed in noted) >= MOST_REFUSED:
                return
            noted[told] = asyncio.create_task(self._record(key, host, port, refusal))
        try:
            await asyncio.shield(noted[told])  # all who wait for it, wait for one write
        except ToolgateError:
            noted.pop(told, None)  # the next one is to be written, then
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
