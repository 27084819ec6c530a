"""What a sandbox may reach: decided for each connection, and granted only by a rule that says so.

A connection is a call of `sandbox.egress` to the policy. A rule for `*` allows tools; it does not
open the network to whatever those tools run.
"""

from typing import Final

from toolgate.core.enums import Level
from toolgate.core.tools import Caller, ToolRequest
from toolgate.policy.decide import decide, may_pass
from toolgate.policy.model import EGRESS, Decision, Effect, Policy
from toolgate.policy.shell import Script, TooComplex

PLAIN_PORT: Final = 80


def granting(policy: Policy) -> Policy:
    """The rules that count: each deny and ask, and the allows that name `sandbox.egress`."""
    rules = [
        rule for rule in policy.rules if rule.effect is not Effect.ALLOW or EGRESS in rule.tools
    ]
    return Policy(name=policy.name, version=policy.version, rules=rules, tests=())


def may_reach_any(granted: Policy, caller: Caller) -> bool:
    """Whether a sandbox needs a way out at all."""
    allows = any(rule.effect is Effect.ALLOW for rule in granted.rules)
    return allows and may_pass(granted, EGRESS, caller=caller, level=Level.WRITE)


def decide_connection(granted: Policy, caller: Caller, *, host: str, port: int) -> Decision:
    """Never raises. Nobody can be asked while a connection waits: an ask is no grant."""
    scheme = "http" if port == PLAIN_PORT else "https"
    name = f"[{host}]" if ":" in host else host
    request = ToolRequest("", EGRESS, {"url": f"{scheme}://{name}:{port}/"}, caller)
    return decide(granted, request, level=Level.WRITE, parse_shell=_no_shell)


def _no_shell(_: str) -> Script:
    raise TooComplex("a connection has no command")
