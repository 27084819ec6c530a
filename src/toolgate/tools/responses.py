"""The response of a call as its row and its evidence keep it.

The executor contract answers with the same members; its surface translates. Data only.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.core.enums import Outcome
from toolgate.core.tools import ToolOutput


class Artifact(StrEnum):
    """The documents that the evidence of a call holds, at `requests/<call id>/<name>.json`."""

    REQUEST = "request"
    ENGINE_IDENTITY = "engine_identity"
    POLICY_DECISION = "policy_decision"
    APPROVAL_REQUEST = "approval_request"  # of a call that a person was asked about
    APPROVAL = "approval"  # the person's answer
    TOOL_RESULT = "tool_result"
    RESPONSE = "response"


ON_DENY: Final = (Artifact.REQUEST, Artifact.ENGINE_IDENTITY, Artifact.POLICY_DECISION)
ON_ALLOW: Final = (*ON_DENY, Artifact.TOOL_RESULT, Artifact.RESPONSE)
ON_WAIT: Final = (Artifact.REQUEST, Artifact.ENGINE_IDENTITY, Artifact.APPROVAL_REQUEST)
ON_ANSWER: Final = (Artifact.APPROVAL_REQUEST, Artifact.APPROVAL)

ALLOW: Final = "allow"
DENY: Final = "deny"


class StoredResult(msgspec.Struct, frozen=True):
    exit_code: int
    stdout: str
    stderr: str
    data: Any | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class StoredCheck(msgspec.Struct, frozen=True):
    """What was decided: `allow` covers a call that a person approved."""

    decision: str
    reason: str
    rule_id: str | UnsetType = UNSET


class Response(msgspec.Struct, frozen=True):
    ok: bool
    policy_check: StoredCheck
    evidence_refs: list[str]
    engine_ref: str
    tool_result: StoredResult | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET

    @property
    def rule_id(self) -> str:
        found = self.policy_check.rule_id
        return "" if isinstance(found, UnsetType) else found

    def output(self, isolation: str) -> ToolOutput | None:
        """The tool's output as it was; None of a call that was denied."""
        result = self.tool_result
        if isinstance(result, UnsetType):
            return None
        return ToolOutput(
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            data=None if isinstance(result.data, UnsetType) else result.data,
            says_null=result.data is None,
            truncated=result.truncated is True,
            outcome=self.outcome if isinstance(self.outcome, Outcome) else Outcome.EXECUTED,
            isolation=isolation,
        )


decode_response: Final = msgspec.json.Decoder(Response).decode


def refs_of(call_id: str, artifacts: Sequence[str]) -> list[str]:
    return [f"requests/{call_id}/{artifact}.json" for artifact in artifacts]
