"""What a decision costs: as the rules grow, with a shell command, and beside Cedar and Casbin.

Cedar and Casbin get the same rules in the form they are fastest in: parsed once, entities ready.
"""

import gc
from collections.abc import Callable
from typing import Any, Final

import casbin  # type: ignore[import-untyped]
import cedarpy
from casbin.persist.adapters.string_adapter import (  # type: ignore[import-untyped]
    StringAdapter,
)

from bench.measure import Cost, Result, at_least, at_most, interleave, table, timed
from toolgate.core.enums import Level
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy.compile import compile_policy
from toolgate.policy.decide import decide
from toolgate.policy.file import default_policy_text, load_policy
from toolgate.policy.model import Effect, Policy
from toolgate.policy.shell_parser import TreeSitterShellParser

ROUNDS: Final = 9
PARSE: Final = TreeSitterShellParser()
DEV: Final = Caller(role="dev")

CASBIN_MODEL: Final = """
[request_definition]
r = role, tool, amount
[policy_definition]
p = role, tool
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.tool == p.tool && r.role == p.role && r.amount < 100
"""


def rules(count: int) -> Policy:
    """One rule per tool: an allow for a role, with a comparison; every tenth asks or denies."""
    made: list[JsonValue] = []
    for number in range(count):
        effect = {3: "ask", 7: "deny"}.get(number % 10, "allow")
        made.append(
            {
                "id": f"rule-{number}",
                effect: f"tool.{number}",
                "for": {"role": "dev"},
                "when": {"args.amount": "< 100"},
                "reason": "Measured",
            }
        )
    return compile_policy({"version": 1, "rules": made}, name="policy.default")


def host_rules(count: int) -> Policy:
    made: list[JsonValue] = [
        {
            "id": f"host-{number}",
            "allow": "web.fetch",
            "match": {"url": {"scheme": "https", "host": [f"h{number}.test", f"*.d{number}.test"]}},
            "reason": "Measured",
        }
        for number in range(count)
    ]
    return compile_policy({"version": 1, "rules": made}, name="policy.default")


def ours(policy: Policy, call: ToolRequest, expect: Effect) -> Callable[[], object]:
    def once() -> object:
        return decide(policy, call, level=Level.READ, parse_shell=PARSE)

    assert decide(policy, call, level=Level.READ, parse_shell=PARSE).effect is expect
    return once


def cedar(count: int) -> Callable[[], object]:
    policies = cedarpy.PolicySet.from_str(
        "\n".join(
            f'permit(principal, action == Action::"tool.{number}", resource)'
            ' when { context.role == "dev" && context.amount < 100 };'
            for number in range(count)
        )
    )
    entities = cedarpy.Entities.from_json_str("[]")
    request: dict[str, Any] = {
        "principal": 'User::"dev"',
        "action": f'Action::"tool.{count // 2}"',
        "resource": 'Resource::"any"',
        "context": {"role": "dev", "amount": 5},
    }

    def once() -> object:
        return cedarpy.is_authorized(request, policies, entities)

    assert cedarpy.is_authorized(request, policies, entities).allowed
    return once


def casbin_enforcer(count: int) -> Callable[[], object]:
    lines = "\n".join(f"p, dev, tool.{number}" for number in range(count))
    model = casbin.Enforcer.new_model(text=CASBIN_MODEL)
    enforcer = casbin.Enforcer(model, StringAdapter(lines))
    tool = f"tool.{count // 2}"

    def once() -> object:
        return enforcer.enforce("dev", tool, 5)

    assert enforcer.enforce("dev", tool, 5)
    return once


def repeated(work: Callable[[], object], count: int) -> Callable[[], Cost]:
    def case() -> Cost:
        gc.collect()
        return timed(lambda: [work() for _ in range(count)]).each(count)

    return case


def micros(what: str, cost: Cost, budget: float) -> Result:
    measured = cost.cpu * 1e6
    return Result(what, f"{measured:.1f} µs", f"<= {budget:g} µs", measured <= budget)


def budgets() -> list[Result]:
    small, large = rules(50), rules(1000)
    shell = load_policy(default_policy_text(), parse_shell=PARSE)
    few, many = host_rules(10), host_rules(5000)

    def tool(number: int) -> ToolRequest:
        return ToolRequest("r", f"tool.{number}", {"amount": 5}, caller=DEV)

    def command(text: str) -> ToolRequest:
        return ToolRequest("r", "shell", {"command": text}, caller=DEV)

    def fetch(number: int) -> ToolRequest:
        return ToolRequest("r", "web.fetch", {"url": f"https://a.d{number}.test/x?y=1"}, caller=DEV)

    costs = interleave(
        {
            "50": repeated(ours(small, tool(25), Effect.ALLOW), 5000),
            "50 deny": repeated(ours(small, tool(27), Effect.DENY), 5000),
            "50 unknown": repeated(ours(small, ToolRequest("r", "no", {}), Effect.DENY), 5000),
            "1000": repeated(ours(large, tool(500), Effect.ALLOW), 5000),
            "shell": repeated(ours(shell, command("git status --short"), Effect.ALLOW), 1000),
            "shell deny": repeated(ours(shell, command("ls && rm -rf /"), Effect.DENY), 1000),
            "few hosts": repeated(ours(few, fetch(5), Effect.ALLOW), 3000),
            "many hosts": repeated(ours(many, fetch(2500), Effect.ALLOW), 3000),
        },
        rounds=ROUNDS,
    )
    flat = costs["many hosts"].cpu / costs["few hosts"].cpu
    return [
        micros("decide, 50 rules, allowed", costs["50"], 5),
        micros("decide, 50 rules, denied by a rule", costs["50 deny"], 5),
        micros("decide, 50 rules, no rule", costs["50 unknown"], 5),
        micros("decide, 1,000 rules", costs["1000"], 25),
        micros("decide, a URL and 10 host rules", costs["few hosts"], 5),
        at_most("5,000 host rules over 10 host rules", flat, 1.3),
        micros("decide, shipped policy, git status --short", costs["shell"], 40),
        micros("decide, shipped policy, ls && rm -rf /", costs["shell deny"], 40),
    ]


def side_by_side() -> list[Result]:
    results: list[Result] = []
    for count in (50, 1000):
        call = ToolRequest("r", f"tool.{count // 2}", {"amount": 5}, caller=DEV)
        costs = interleave(
            {
                "ours": repeated(ours(rules(count), call, Effect.ALLOW), 2000),
                "cedar": repeated(cedar(count), 100),
                "casbin": repeated(casbin_enforcer(count), 20),
            },
            rounds=ROUNDS,
        )
        for name in ("cedar", "casbin"):
            detail = f"{costs[name].cpu * 1e6:.0f} µs to {costs['ours'].cpu * 1e6:.1f}"
            ratio = costs[name].cpu / costs["ours"].cpu
            results.append(at_least(f"{name} over ours, {count} rules", ratio, 20, detail=detail))
    return results


def main() -> list[str]:
    return table("policy: a decision", [*budgets(), *side_by_side()])


if __name__ == "__main__":
    print("\n".join(main()))
