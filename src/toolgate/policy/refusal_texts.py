"""The text of a refused or waiting call: the reason, the rule, and what would change it.

One text for every surface. It names only commands, pages, routes and settings that exist.
"""

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from toolgate.policy.model import (
    DEFAULT_DENY,
    EVALUATION_ERROR,
    HOSTNAME_CHECK,
    LIMIT_REACHED,
    POLICY_NOT_FOUND,
    REQUEST_ID_CONFLICT,
    URL_VALIDATION,
    Decision,
    Effect,
)

# The ids of refusals that no policy makes: an approval, a limit or the caller's rights refused.
APPROVAL_REJECTED: Final = "approval_rejected"
APPROVAL_EXPIRED: Final = "approval_expired"
APPROVAL_DOES_NOT_FIT: Final = "approval_does_not_fit"
OUTSIDE_SCOPE: Final = "outside_scope"
RATE_LIMITED: Final = "rate_limited"
CAPABILITY_OFFLINE: Final = "capability_offline"
CAPABILITY_EXPIRED: Final = "capability_expired"
TOOL_CHANGED: Final = "tool_changed"

_EXPLAIN: Final = "toolgate policy explain --tool {tool}"
_CHANGE_RULE: Final = f"To allow it, change this rule of the policy: {_EXPLAIN}"
_DECIDE: Final = (
    "decide it on the console's Approvals page (toolgate console) "
    "or by POST /approvals/{approval}/decide"
)

REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        DEFAULT_DENY: f"To allow it, change the policy: {_EXPLAIN}",
        HOSTNAME_CHECK: f"To allow it, add the host to the policy: {_EXPLAIN}",
        URL_VALIDATION: "Correct the URL and send the call again with a new request id",
        EVALUATION_ERROR: f"Correct the arguments, or the rule that cannot be applied: {_EXPLAIN}",
        LIMIT_REACHED: "Send less in one call, with a new request id",
        POLICY_NOT_FOUND: "Set the call's policy_ref to policy.default, the policy in force",
        REQUEST_ID_CONFLICT: "Send the call with a new request id",
        APPROVAL_REJECTED: "To ask again, send the call with a new request id",
        APPROVAL_EXPIRED: (
            "To ask again, send the call with a new request id and decide it in time on the "
            "console's Approvals page; the setting APPROVAL_TIMEOUT_MS says how long that is"
        ),
        APPROVAL_DOES_NOT_FIT: (
            "An approval covers exactly the call that was shown; to ask again, send the call with "
            "a new request id"
        ),
        OUTSIDE_SCOPE: (
            "To allow it, give the device or token more rights: toolgate pair --help "
            "or toolgate token make --help"
        ),
        RATE_LIMITED: (
            "Wait and send the call again; the limits are the setting GATEWAY_RATE and, of a "
            "capability, toolgate capabilities register --rate"
        ),
        CAPABILITY_OFFLINE: (
            "Start its MCP server and send the call again; its health: toolgate capabilities list"
        ),
        TOOL_CHANGED: (
            "To see the change: toolgate mcp show {tool}; to accept it: toolgate mcp accept {tool}"
        ),
        CAPABILITY_EXPIRED: "To renew it: toolgate capabilities register --expires",
    }
)


def refusal_text(
    *,
    tool: str,
    rule_id: str,
    reason: str,
    effect: Literal[Effect.DENY, Effect.ASK],
    approval_id: str = "",
) -> str:
    """Two plain sentences on one line: reason and rule, then what would change it."""
    because = " ".join(reason.split()).rstrip(".")
    rule = f" [rule {rule_id}]" if rule_id else ""
    if effect is Effect.ASK:
        waiting = f"Waiting for approval {approval_id}" if approval_id else "Waiting for approval"
        remedy = f"{waiting}: {_DECIDE.replace('{approval}', approval_id or '{id}')}"
    else:
        named = shlex.quote(tool) if tool.isprintable() else "TOOL"
        remedy = REMEDIES.get(rule_id, _CHANGE_RULE).replace("{tool}", named)
    return f"{because}{rule}. {remedy}"


def decision_text(tool: str, decision: Decision) -> str:
    """The text that a caller would get of a decision; of one that allows, the reason and the rule."""
    if decision.effect is Effect.ALLOW:
        return f"{decision.reason} [rule {decision.rule_id}]"
    return refusal_text(
        tool=tool, rule_id=decision.rule_id, reason=decision.reason, effect=decision.effect
    )
