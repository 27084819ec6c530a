"""The policy: show, check, simulate and activate it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request

from toolgate.core.errors import Conflict
from toolgate.journal.journal import Operation
from toolgate.policy.model import InvalidPolicy, Policy
from toolgate.policy.refusal_texts import decision_text
from toolgate.surfaces.console.parts import Answer, Parts, body_of

SIMULATED: Final = 1_000  # of the newest calls


class Text(msgspec.Struct):
    text: str


class Activation(msgspec.Struct):
    text: str
    over: str  # the version that was being looked at


@dataclass(frozen=True, slots=True)
class PolicyPages:
    parts: Parts

    async def show(self, _: Request) -> Answer:
        policy = self.parts.policy
        return {
            "text": policy.text,
            "error": policy.error,
            "rules": [
                {
                    "id": rule.id,
                    "effect": rule.effect.value,
                    "tools": list(rule.tools),
                    "reason": rule.reason,
                    "conditions": [condition.says for condition in rule.conditions],
                    "otherwise": rule.otherwise,
                }
                for rule in policy.current.rules
            ],
            **_summary(policy.current),
        }

    async def check(self, request: Request) -> Answer:
        text = (await body_of(request, Text)).text
        try:
            found = await asyncio.to_thread(self.parts.simulation.compile, text)
        except InvalidPolicy as wrong:
            return {"ok": False, "problems": list(wrong.problems)}
        return {"ok": True, "problems": [], **_summary(found)}

    async def simulate(self, request: Request) -> Answer:
        """Raises InvalidPolicy."""
        text = (await body_of(request, Text)).text
        looked_at, changes = await self.parts.simulation.run(text, limit=SIMULATED)
        return {
            "looked_at": looked_at,
            "changes": [
                {
                    "request_id": change.recorded.call.request_id,
                    "tool": change.recorded.call.tool,
                    "args": dict(change.recorded.call.args),
                    "was": change.recorded.effect.value,
                    "was_rule": change.recorded.rule_id,
                    "becomes": change.decision.effect.value,
                    "becomes_rule": change.decision.rule_id,
                    "text": decision_text(change.recorded.call.tool, change.decision),
                    "loosens": change.loosens,
                }
                for change in changes
            ],
        }

    async def activate(self, request: Request) -> Answer:
        """Raises InvalidPolicy; Conflict where someone else has changed it meanwhile."""
        wanted = await body_of(request, Activation)
        if not wanted.over:
            raise Conflict("say which version it replaces")

        def row(policy: Policy) -> Sequence[Operation]:
            metadata = {"version": policy.version, "previous": wanted.over}
            return self.parts.row("policy.changed", ("policy", policy.name), metadata)

        policy = await self.parts.policy.replace(wanted.text, over=wanted.over, also=row)
        return _summary(policy)


def _summary(policy: Policy) -> dict[str, Any]:
    return {
        "version": policy.version,
        "name": policy.name,
        "rule_count": len(policy.rules),
        "test_count": len(policy.tests),
    }
