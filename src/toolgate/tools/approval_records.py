"""Approvals in the journal: one row each, by the request it is for.

An approval's id is made from the request's, so that a retry finds the same approval. A pending row is
due when it expires; `on_due` handles that deadline. While it is pending, a sealed row (`asked_args`)
has the arguments as they are: what an approver sees is made from them. Afterwards the evidence has it,
as `approval_request.json`.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from toolgate.access.devices import Identity
from toolgate.core.clock import Clock
from toolgate.core.enums import ApprovalStatus
from toolgate.core.errors import Conflict, Damaged, NotFound
from toolgate.core.tools import JsonValue, ToolRequest
from toolgate.core.visible import visible
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.evidence import Evidence
from toolgate.journal.journal import Append, Delete, Journal, NewEvent, Operation, Put, Row
from toolgate.journal.rows import version_of
from toolgate.policy.model import Decision
from toolgate.secrets.approver_view import ApproverView, Shown, summary_of, with_texts
from toolgate.secrets.redaction import MASK
from toolgate.secrets.seal import Seal
from toolgate.tools.approvals import DEFAULT_TTL_MS, POLICY, Approval, Question, askers, binding_of
from toolgate.tools.responses import Artifact, refs_of

COLLECTION: Final = "approvals"
OPEN: Final = "open_approvals"  # copies of the rows that wait for a person
ASKED_ARGS: Final = "asked_args"  # sealed, by approval
STREAM: Final = "approvals"
ASKED: Final = "asked"
LONGEST_LABEL: Final = 4_000  # characters of a row's summary; nobody decides on it

_HAPPENED: Final = {  # the types of the events; their subject is the run that waits
    ApprovalStatus.PENDING: ASKED,
    ApprovalStatus.APPROVED: "decided",
    ApprovalStatus.REJECTED: "decided",
    ApprovalStatus.EXPIRED: "expired",
}

decode: Final = msgspec.json.Decoder(Approval).decode
encode: Final = msgspec.json.Encoder().encode


class Approvals:
    def __init__(
        self,
        journal: Journal,
        evidence: Evidence,
        clock: Clock,
        audit: AuditLog,
        seal: Seal,
        view: ApproverView,
        *,
        ttl_ms: int = DEFAULT_TTL_MS,
    ) -> None:
        self._journal = journal
        self._evidence = evidence
        self._clock = clock
        self._audit = audit
        self._seal = seal
        self.view = view
        self._ttl_ms = ttl_ms

    async def get(self, approval_id: str) -> Approval:
        """An approval at this time; raises NotFound."""
        row = await self._row(approval_id)
        return decode(row.value).at(self._clock.now_ms())

    async def pending(self, *, tenant: str = "", limit: int = 1000) -> list[Approval]:
        """The approvals that wait for a person, oldest first."""
        now = self._clock.now_ms()
        found: list[Approval] = []
        after = ""
        while rows := await self._journal.scan(OPEN, after=after):
            after = rows[-1].key
            approvals = (decode(row.value).at(now) for row in rows)
            found += [
                approval
                for approval in approvals
                if approval.status is ApprovalStatus.PENDING and tenant in {"", approval.tenant}
            ]
        return sorted(found, key=lambda approval: approval.asked_at)[:limit]

    async def question(self, approval: Approval) -> Question:
        """An approval with the arguments as an approver sees them: from the original while it is open."""
        row = await self._journal.get(ASKED_ARGS, approval.approval_id)
        if row is not None:
            shown = self.view.show(json.loads(self._seal.open(row.value)))
            return _question(replace(approval, hidden=max(approval.hidden, shown.hidden)), shown)
        for artifact in (Artifact.APPROVAL_REQUEST, Artifact.REQUEST):
            (ref,) = refs_of(approval.request_id, [artifact])
            with contextlib.suppress(NotFound, Damaged, msgspec.DecodeError):
                content = msgspec.json.decode(await self._evidence.fetch(ref))
                if isinstance(args := with_texts(content.get("args"), visible), dict):
                    return _question(_as_kept(approval, args), Shown(args))
        return Question(approval, approval.summary, None)

    async def reveal(self, approval_id: str, *, by: str) -> Question:
        """The arguments with what is hidden in them; an audit row says who has seen it.

        Raises NotFound, Conflict if it is no longer open.
        """
        while True:
            row = await self._row(approval_id)
            revealed = decode(row.value).reveal(by=by, now=self._clock.now_ms())
            sealed = await self._journal.get(ASKED_ARGS, approval_id)
            if sealed is None:
                raise Conflict(
                    f"approval {approval_id} was asked for by an earlier version, which kept no more of"
                    " its call: reject it, and let it be asked for again"
                )
            shown = self.view.show(json.loads(self._seal.open(sealed.value)), reveal=True)
            value = encode(revealed)
            metadata: dict[str, JsonValue] = {"tool": revealed.tool, "hidden": revealed.hidden}
            with contextlib.suppress(Conflict):  # decided, or revealed to another
                await self._journal.commit(
                    Put(
                        COLLECTION,
                        approval_id,
                        value,
                        due=revealed.expires_at,
                        expected=row.version,
                    ),
                    Put(
                        OPEN,
                        approval_id,
                        value,
                        expected=await version_of(self._journal, OPEN, approval_id),
                    ),
                    *self._audit.note(
                        "approval.reveal",
                        actor=by,
                        resource=("approval", approval_id),
                        metadata=metadata,
                    ),
                )
                return _question(revealed, shown)

    async def get_for(self, request: ToolRequest) -> Approval:
        return await self.get(approval_id_of(request.request_id))

    def new(
        self,
        request: ToolRequest,
        decision: Decision,
        *,
        stored: Mapping[str, JsonValue],
        hidden: int = 0,
        place: str = "",
        definition: str = "",
    ) -> tuple[Approval, list[Operation]]:
        """An approval for this call at this place, and the operations that write it.

        `stored` are the arguments for the disk, and `hidden` counts what an approver does not see.
        """
        now = self._clock.now_ms()
        approval = Approval(
            approval_id=approval_id_of(request.request_id),
            request_id=request.request_id,
            binding=self._binding(request, decision.rule_digest, place),
            tool=request.tool,
            summary=_label(summary_of(request.tool, stored)),
            reason=decision.reason,
            rule_id=decision.rule_id,
            policy_version=decision.policy_version,
            asked_by=askers(request.caller),
            asked_at=now,
            expires_at=now + self._ttl_ms,
            tenant=request.caller.tenant,
            workspace=request.caller.workspace,
            session=request.caller.session,
            run_id=request.run_id,
            rule_digest=decision.rule_digest,
            definition=definition,
            target=request.target_id,
            user=request.caller.user if request.caller.agent else "",
            hidden=hidden,
        )
        sealed = self._seal.close(json.dumps(dict(request.args)).encode())
        asked = Put(ASKED_ARGS, approval.approval_id, sealed, expected=0)
        return approval, [asked, *self._write(approval, expected=0)]

    async def decide(
        self,
        approval_id: str,
        *,
        approve: bool,
        decided_by: Identity,
        reason: str = "",
        overtaken: str = "",
    ) -> Approval:
        """Raises NotFound, Conflict if it is no longer open, MayNotDecide if this one may not.

        `overtaken` is the reason why it cannot be approved any more: then it is closed.
        """
        while True:
            row = await self._row(approval_id)
            asked, now = decode(row.value), self._clock.now_ms()
            if approve:  # what is hidden is told by the secrets that are known now
                asked = replace(asked, hidden=(await self.question(asked)).approval.hidden)
            decided = asked.decide(approve=approve, decided_by=decided_by, now=now, note=reason)
            if overtaken:
                decided = asked.close(by=POLICY, now=now, note=overtaken)
            # Another decision may have been first: then the next attempt says which one.
            with contextlib.suppress(Conflict):
                await self._journal.commit(*self._write(decided, expected=row.version))
                return decided

    async def close(
        self, request_id: str, *, by: str, reason: str
    ) -> tuple[Approval, list[Operation]]:
        """Close an open approval without an answer: the closed approval, and the operations for it.

        Raises NotFound, or Conflict if it is no longer open.
        """
        row = await self._row(approval_id_of(request_id))
        closed = decode(row.value).close(by=by, now=self._clock.now_ms(), note=reason)
        return closed, self._write(closed, expected=row.version)

    async def overtake(self, request_id: str, *, reason: str) -> tuple[Approval, list[Operation]]:
        """Close an approved call that may not run any more; as `close`."""
        row = await self._row(approval_id_of(request_id))
        closed = decode(row.value).overtake(now=self._clock.now_ms(), note=reason)
        return closed, self._write(closed, expected=row.version)

    async def use(self, request: ToolRequest, decision: Decision, *, place: str = "") -> Operation:
        """The operation that marks the approval as used, for the commit that starts the call.

        Raises Refused if it is not for exactly this call, or was used before.
        """
        row = await self._row(approval_id_of(request.request_id))
        approval = decode(row.value)
        binding = self._binding(request, decision.rule_digest, place)
        used = approval.use(binding, now=self._clock.now_ms())
        return Put(COLLECTION, used.approval_id, encode(used), expected=row.version)

    async def on_due(self, row: Row) -> str:
        """Record that an approval has expired, and return the run that waits for it."""
        expired = decode(row.value).at(self._clock.now_ms())
        if expired.status is ApprovalStatus.EXPIRED:
            with contextlib.suppress(Conflict):  # decided at the same time
                await self._journal.commit(*self._write(expired, expected=row.version))
        return expired.run_id

    def _binding(self, request: ToolRequest, rule: str, place: str) -> str:
        """An HMAC, not a hash: a short secret in the arguments could be found by brute force."""
        bound = binding_of(request.tool, request.args, target=place, rule=rule)
        return self._evidence.commitment(bound.encode())

    async def _row(self, approval_id: str) -> Row:
        row = await self._journal.get(COLLECTION, approval_id)
        if row is None:
            raise NotFound("approval", approval_id)
        return row

    def _write(self, approval: Approval, *, expected: int) -> list[Operation]:
        pending = approval.status is ApprovalStatus.PENDING
        value = encode(approval)
        event = NewEvent(_HAPPENED[approval.status], value, approval.run_id)
        return [
            Put(
                COLLECTION,
                approval.approval_id,
                value,
                due=approval.expires_at if pending else None,
                expected=expected,
            ),
            *(
                [Put(OPEN, approval.approval_id, value, expected=0)]
                if pending
                else [Delete(name, approval.approval_id) for name in (OPEN, ASKED_ARGS)]
            ),
            Append(STREAM, [event]),
            *self._evidence.prepare(
                "approval",
                {
                    "approval_id": approval.approval_id,
                    "status": approval.status.value,
                    "tool": approval.tool,
                    "binding": approval.binding,
                    "rule_id": approval.rule_id,
                    "policy_version": approval.policy_version,
                    "decided_by": approval.decided_by,
                    "confirmation": approval.confirmation,
                    "note": approval.note,
                    **({"definition_digest": approval.definition} if approval.definition else {}),
                },
                subject=approval.request_id,
            ),
        ]


def _question(approval: Approval, shown: Shown) -> Question:
    return Question(approval, summary_of(approval.tool, shown.args), shown.args)


def _as_kept(approval: Approval, args: Mapping[str, JsonValue]) -> Approval:
    """An open approval of 0.1.0, which kept its arguments redacted only: each mask hides something."""
    masks = summary_of("", args).count(MASK) if approval.status is ApprovalStatus.PENDING else 0
    return replace(approval, hidden=max(approval.hidden, masks * len(MASK)))


def _label(text: str) -> str:
    left = len(text) - LONGEST_LABEL
    return text if left <= 0 else f"{text[:LONGEST_LABEL]}… [cut: {left} more characters]"


def approval_id_of(request_id: str) -> str:
    return f"apr_{request_id}"
