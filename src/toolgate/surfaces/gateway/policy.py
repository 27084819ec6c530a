"""`/policy`: show the policy in force, check another, replay past calls on it, replace it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from toolgate.access.audit import Trail
from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.journal.journal import Operation
from toolgate.policy.file import PolicyFile
from toolgate.policy.model import InvalidPolicy, Policy
from toolgate.policy.refusal_texts import decision_text
from toolgate.surfaces.gateway.routes import MAX_PAGE, Access, Call, Route
from toolgate.tools.simulation import Simulation


@dataclass(frozen=True, slots=True)
class PolicyRoutes:
    policy: PolicyFile
    simulation: Simulation
    trail: Trail

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/policy",
                Access.OPERATOR,
                "The policy in force.",
                self._get,
                wire.PolicyView,
                v2="policy.get",
            ),
            Route(
                "PUT",
                "/policy",
                Access.OPERATOR,
                "Put another policy in force, if it is sound.",
                self._put,
                wire.PolicyView,
                v2="policy.put",
                takes=wire.PolicyPut,
            ),
            Route(
                "POST",
                "/policy/check",
                Access.OPERATOR,
                "What is wrong with a policy; nothing is changed.",
                self._check,
                wire.PolicyChecked,
                v2="policy.check",
                takes=wire.PolicyCheck,
            ),
            Route(
                "POST",
                "/policy/simulate",
                Access.OPERATOR,
                "Which past calls a policy would have decided otherwise.",
                self._simulate,
                wire.PolicySimulated,
                v2="policy.simulate",
                takes=wire.PolicySimulate,
            ),
        )

    async def _get(self, _: Call) -> Result:
        return Result(self._view())

    async def _put(self, call: Call) -> Result:
        wanted: wire.PolicyPut = call.body

        def row(policy: Policy) -> Sequence[Operation]:
            return self.trail.note(
                "policy.changed",
                actor=call.caller.name,
                resource=("policy", policy.name),
                metadata={
                    "version": policy.version,
                    "previous": self.policy.current.version,  # until the row is written
                },
            )

        await self.policy.replace(wanted.text, over=wanted.over, also=row)
        return Result(self._view())

    async def _check(self, call: Call) -> Result:
        wanted: wire.PolicyCheck = call.body
        try:
            found = await asyncio.to_thread(self.simulation.compile, wanted.text)
        except InvalidPolicy as wrong:
            return Result(wire.PolicyChecked(problems=list(wrong.problems)))
        return Result(
            wire.PolicyChecked(
                problems=[], rule_count=len(found.rules), test_count=len(found.tests)
            )
        )

    async def _simulate(self, call: Call) -> Result:
        wanted: wire.PolicySimulate = call.body
        limit = MAX_PAGE if isinstance(wanted.limit, UnsetType) else min(wanted.limit, 10_000)
        checked, changes = await self.simulation.run(wanted.text, limit=limit)
        changed = [
            wire.PolicyChange(
                request_id=one.recorded.call.request_id,
                tool=one.recorded.call.tool,
                was=one.recorded.effect,
                would_be=one.decision.effect,
                rule_id=one.decision.rule_id,
                text=decision_text(one.recorded.call.tool, one.decision),
                args=dict(one.recorded.call.args),
                was_rule_id=one.recorded.rule_id,
                loosens=one.loosens,
            )
            for one in changes
        ]
        return Result(wire.PolicySimulated(checked=checked, changed=changed))

    def _view(self) -> wire.PolicyView:
        current = self.policy.current
        rules = [
            wire.PolicyRule(
                id=rule.id, effect=rule.effect.value, tools=list(rule.tools), reason=rule.reason
            )
            for rule in current.rules
        ]
        return wire.PolicyView(
            name=current.name,
            version=current.version,
            text=self.policy.text,
            rules=rules,
            test_count=len(current.tests),
            error=self.policy.error,
        )
