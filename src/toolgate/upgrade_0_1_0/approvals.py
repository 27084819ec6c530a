"""The approvals of 0.1.0: bound to the rule that asked, and no longer to the whole policy."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from toolgate.core.enums import ApprovalStatus
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.journal.sqlite.upgrade import Change, OldFile
from toolgate.policy.model import Effect
from toolgate.runs.state import TurnEnded
from toolgate.secrets.seal import Seal
from toolgate.tools.approvals import binding_of
from toolgate.upgrade_0_1_0.reading import (
    OPEN_COMMANDS,
    SERVERS,
    TARGETS,
    Home,
    artifacts_of,
    decode_open,
    facts_of,
    json_of,
    members_of,
    naming,
    read,
    unsealed,
)

APPROVALS: Final = "approvals"
OPEN_APPROVALS: Final = "open_approvals"
LOCAL_TARGET: Final = "target_local_default local-host "  # as 0.1.0 spelt a place


class OldApproval(msgspec.Struct):
    approval_id: str
    request_id: str
    binding: str
    tool: str
    rule_id: str
    policy_version: str
    asked_at: int
    expires_at: int
    run_id: str
    status: str
    used: bool


class OldTarget(msgspec.Struct):
    id: str
    kind: str
    endpoint: str = ""
    config: dict[str, Any] = {}

    @property
    def place(self) -> str:
        configured = self.config.get("endpoint")
        url = self.endpoint.strip() or (configured.strip() if isinstance(configured, str) else "")
        return f"{self.id} {self.kind} {url}"


class OldServer(msgspec.Struct):
    command: str
    args: list[str]
    url: str

    @property
    def place(self) -> str:
        return msgspec.json.encode([self.url, self.command, self.args]).decode()


class OldCapability(msgspec.Struct):
    server: OldServer | None = None


_decode_approval: Final = msgspec.json.Decoder(OldApproval).decode
_decode_target: Final = msgspec.json.Decoder(OldTarget).decode
_decode_capability: Final = msgspec.json.Decoder(OldCapability).decode


def approvals(file: OldFile, home: Home, seal: Seal | None) -> Iterator[Change]:
    """Bind those that can still be used to the rule that asked; let the others expire.

    0.1.0 bound them to the version of the whole policy. The arguments that an approval is for are
    not in it, but those that are found elsewhere can be checked against its binding.
    """
    for row in file.rows(APPROVALS):
        old = read(file, row, _decode_approval)
        waits = old.status == ApprovalStatus.PENDING
        if not waits and (old.status != ApprovalStatus.APPROVED or old.used):
            continue
        new = read(file, row, members_of)
        due = row.due
        with naming(file, row):
            rebound = _rebound(file, home, seal, old)
        if rebound is not None:
            new["rule_digest"], new["binding"] = rebound
        elif waits:
            due = new["expires_at"] = old.asked_at  # the start that follows records that it expired
        else:
            continue
        yield row._replace(version=row.version + 1, value=json_of(new), due=due)
        is_open = file.row(OPEN_APPROVALS, row.key)
        if is_open is not None:
            yield is_open._replace(version=is_open.version + 1, value=json_of(new))


def _rebound(
    file: OldFile, home: Home, seal: Seal | None, old: OldApproval
) -> tuple[str, str] | None:
    """The digest of the rule that asked, and the binding to it; None if either is not known."""
    policy = home.policy()
    if old.status == ApprovalStatus.APPROVED and policy.version != old.policy_version:
        return None  # the answer was given under another policy
    rule = next((rule for rule in policy.rules if rule.id == old.rule_id), None)
    if rule is None:
        return None
    digest = (rule.decision if rule.effect is Effect.ASK else rule.signing).rule_digest
    commitment = home.commitment()

    def binding(args: Mapping[str, Any], place: str, bound_to: str) -> str:
        bound = binding_of(old.tool, args, target=place, rule=bound_to)
        return commitment(bound.encode())

    places = _places(file, seal)
    for args in _arguments(file, seal, old):
        for place in places:
            if binding(args, place, old.policy_version) == old.binding:
                return digest, binding(args, place, digest)
    return None


def _places(file: OldFile, seal: Seal | None) -> list[str]:
    """The places where a call may have been meant to run, as 0.1.0 spelt them."""
    places = ["", LOCAL_TARGET]
    if seal is not None:
        for row in file.rows(TARGETS):
            places.append(unsealed(file, row, seal, _decode_target).place)
        for row in file.rows(SERVERS):
            server = unsealed(file, row, seal, _decode_capability).server
            places += [] if server is None else [server.place]
    return places


def _arguments(file: OldFile, seal: Seal | None, old: OldApproval) -> Iterator[dict[str, Any]]:
    """The arguments of the call that waits, from its run, its command or, redacted, its evidence."""
    for fact in facts_of(file, old.run_id):
        if isinstance(fact, TurnEnded):
            yield from (call.args for call in fact.calls if call.call_id == old.request_id)
    command_id, _, number = old.request_id.rpartition(".")
    row = file.row(OPEN_COMMANDS, command_id)
    if row is not None and seal is not None and number.isdecimal():
        command = unsealed(file, row, seal, decode_open)
        with naming(file, row):
            args = _of_body(command.raw, int(number))
        yield from args
    for event in file.events_about(old.request_id, stream=EVIDENCE):
        if event.type == "decision":
            asked = artifacts_of(file, event).get("request")
            yield from [] if asked is None else [asked["args"]]


def _of_body(raw: bytes, number: int) -> list[dict[str, Any]]:
    """The arguments of one call of a command's body, if they are in it as they are."""
    payload = members_of(raw).get("payload", {})
    several = payload.get("toolCalls") or []
    one = several[number] if number < len(several) else payload
    args = one.get("arguments", one.get("args"))
    return [args] if isinstance(args, dict) else []
