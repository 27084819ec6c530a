"""The executor contract on this installation: its requests, for one caller, go to the gate."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import given, to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, Level
from toolgate.core.errors import Invalid
from toolgate.core.tools import Caller, CommandScope, ToolRequest
from toolgate.evidence.evidence import Evidence, Scalar
from toolgate.journal.journal import Journal, Operation
from toolgate.tools.engine import Update, no_update
from toolgate.tools.episodes import search_episodes
from toolgate.tools.files import FileArtifact, FileArtifacts, is_file
from toolgate.tools.outcomes import Denied, Pending, ToolGate
from toolgate.tools.responses import Response

_REF: Final = re.compile(r"[A-Za-z0-9._/-]+")
_NO_CTX: Final = wire.Ctx()
FILE_READ: Final = "file.read"


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """`caller` is whoever holds the executor's bearer, as the server knows them."""

    gate: ToolGate
    evidence: Evidence
    journal: Journal
    clock: Clock
    caller: Caller
    version: str
    files: FileArtifacts

    async def run_tool(
        self, request: wire.RunToolRequest, *, update: Update = no_update
    ) -> wire.RunToolResponse:
        """Run a tool; the same request again gives the result once a person has decided."""
        ctx = given(request.ctx, None) or _NO_CTX
        match await self.gate.begin(_tool_request(request, self.caller)):
            case Denied() as denied:
                return _to_wire(denied.response, ctx, message=denied.text)
            case Pending() as pending:
                return _to_wire(
                    pending.response, ctx, message=pending.text, approval_id=pending.approval_id
                )
            case allowed:
                await allowed.finish(await allowed.run(update))
                return _to_wire(allowed.response, ctx)

    async def artifact(self, ref: str) -> bytes:
        if (
            not _REF.fullmatch(ref)
            or len(ref) > wire.MAX_REF_CHARS
            or ".." in ref
            or ref.startswith("/")
        ):
            raise Invalid("not the ref of an artifact", field="ref")
        return await (self.files.fetch(ref) if is_file(ref) else self.evidence.fetch(ref))

    async def keep(self, content: bytes) -> wire.StoredArtifact:
        """Keep a file for this caller's tools, and a record of it; raises Invalid."""
        kept = await self.files.keep(content, owner=self.caller, also=self._on_record)
        return wire.StoredArtifact(ok=True, ref=kept.ref, sha256=kept.sha256, size=kept.size)

    def _on_record(self, kept: FileArtifact) -> Sequence[Operation]:
        fields: dict[str, Scalar] = {
            "tenant": self.caller.tenant,
            "workspace": self.caller.workspace,
            "ref": kept.ref,
            "size": kept.size,
        }
        return self.evidence.prepare("artifact", fields, subject=kept.ref)

    async def episodes(self, search: wire.EpisodeSearch) -> wire.EpisodePage:
        found, stopped_at = await search_episodes(self.journal, search)
        if stopped_at is None:
            return wire.EpisodePage(found)
        return wire.EpisodePage(found, complete=False, searched_to=to_iso_ms(stopped_at))

    async def health(self) -> wire.Health:
        return wire.Health(
            ok=not self.journal.fault,
            engine_ref=f"toolgate@{self.version}",
            version=self.version,
            time=to_iso_ms(self.clock.now_ms()),
        )


def _to_wire(
    response: Response | None,
    ctx: wire.Ctx,
    *,
    message: str | UnsetType = UNSET,
    approval_id: str | UnsetType = UNSET,
) -> wire.RunToolResponse:
    """The gate's response as the contract has it, with the ids that the request gave."""
    assert response is not None
    check, result = response.policy_check, response.tool_result
    return wire.RunToolResponse(
        ok=response.ok,
        policy_check=wire.PolicyCheck(wire.Decision(check.decision), check.reason, check.rule_id),
        evidence_refs=response.evidence_refs,
        engine_ref=response.engine_ref,
        tool_result=UNSET
        if isinstance(result, UnsetType)
        else wire.ToolResult(
            result.exit_code, result.stdout, result.stderr, result.data, result.truncated
        ),
        run_id=ctx.run_id,
        step_id=ctx.step_id,
        outcome=response.outcome,
        message=message,
        approval_id=approval_id,
    )


def _tool_request(given_request: wire.RunToolRequest, caller: Caller) -> ToolRequest:
    """Check the request again, because Python lets anyone build a model from anything."""
    try:
        request = msgspec.convert(msgspec.to_builtins(given_request), wire.RunToolRequest)
    except (msgspec.ValidationError, TypeError, RecursionError) as wrong:
        raise Invalid(str(wrong), field="request") from wrong
    ctx = given(request.ctx, None) or _NO_CTX
    args = request.args
    if request.tool_id == FILE_READ and not args.get("artifact"):
        args = {"max_bytes": wire.DEFAULT_READ_BYTES, **args}  # said by this contract alone
    return ToolRequest(
        request_id=request.request_id,
        tool=request.tool_id,
        args=args,
        caller=caller,
        run_id=given(ctx.run_id, ""),
        step_id=given(ctx.step_id, ""),
        policy_ref=given(ctx.policy_ref, wire.DEFAULT_POLICY_REF),
        scope=CommandScope((CommandKind.TOOL,), Level.READ) if caller.device else None,
    )
