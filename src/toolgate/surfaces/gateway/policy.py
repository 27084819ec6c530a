"""`/policy`: show the policy in force, replace it, simulate another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import UnsetType

from toolgate.access.audit import Trail
from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.journal.journal import Operation
from toolgate.policy.model import Policy
from toolgate.policy.refusal_texts import decision_text
from toolgate.surfaces.gateway.routes import MAX_PAGE, Access, Call, Route
from toolgate.tools.simulation import Simulation


class PolicyInForce(Protocol):
    text: str
    current: Policy

    async def replace(
        self, text: str, *, over: str, also: Callable[[Policy], Sequence[Operation]]
    ) -> Policy:
        """Commit the operations of `also` with the change. Raises InvalidPolicy, Refused,
        Unavailable, Conflict where another than `over` is in force, and then changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyRoutes:
    policy: PolicyInForce
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
                metadata={"version": policy.version},
            )

        await self.policy.replace(wanted.text, over=wanted.over, also=row)
        return Result(self._view())

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
            )
            for one in changes
        ]
        return Result(wire.PolicySimulated(checked=checked, changed=changed))

    def _view(self) -> wire.PolicyView:
        current = self.policy.current
        return wire.PolicyView(name=current.name, version=current.version, text=self.policy.text)
