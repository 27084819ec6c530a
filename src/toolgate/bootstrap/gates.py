"""A gate on a home, with the policy, audit and evidence of that home; the same for every role."""

from dataclasses import dataclass
from pathlib import Path

from toolgate.access.registry import Registry
from toolgate.bootstrap.installation import Core, Installation
from toolgate.core.errors import Misconfigured
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.records import LOG_DIRECTORY
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.policy.file import PolicyFile
from toolgate.policy.model import InvalidPolicy
from toolgate.policy.policies import LevelOf, Policies
from toolgate.policy.records import PolicyRecords
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.secrets.approver_view import ApproverView
from toolgate.settings import Settings
from toolgate.tools.approval_records import Approvals
from toolgate.tools.gate import Gate
from toolgate.tools.ledger import Ledger
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.routing import Routing


@dataclass(frozen=True, slots=True)
class GateParts:
    """The policy, evidence, audit and ledger of one gate."""

    blobs: DiskBlobs
    evidence: EvidenceLog
    audit: AuditLog
    policy: PolicyFile
    parse_shell: TreeSitterShellParser
    approvals: Approvals
    ledger: Ledger

    def policies(self, level_of: LevelOf) -> Policies:
        return Policies(
            self.policy.find,
            self.parse_shell,
            level_of=level_of,
            read_row_version=lambda: self.policy.row_version,
        )

    def gate(
        self,
        core: Core,
        policies: Policies,
        routing: Routing,
        *,
        registry: Registry | None = None,
        limits: CapabilityLimits | None = None,
        unanswered: str = "",
    ) -> Gate:
        return Gate(
            policies=policies,
            routing=routing,
            ledger=self.ledger,
            approvals=self.approvals,
            redactor=core.redactor,
            registry=registry,
            limits=limits,
            unanswered=unanswered,
        )


async def open_gate_parts(settings: Settings, installation: Installation, core: Core) -> GateParts:
    home, journal, clock = settings.home, core.journal, core.clock
    blobs = DiskBlobs(home / "blobs")
    await blobs.sweep()
    evidence = await EvidenceLog.open(
        TileFiles(home / LOG_DIRECTORY),
        journal=journal,
        blobs=blobs,
        bus=core.bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home),
        redactor=core.redactor,
        commit=Commitments.in_home(home),
        published=core.mark.published,
    )
    installation.on_stop(evidence.close)
    parse_shell = TreeSitterShellParser()
    audit = AuditLog(journal, redactor=core.redactor)
    path = Path(settings.policy_file) if settings.policy_file else None
    try:
        policy = await PolicyFile.open(
            path,
            parse_shell=parse_shell,
            records=PolicyRecords(journal, evidence, audit),
            keep_at=home / "policy.yaml",
        )
    except (OSError, UnicodeDecodeError, InvalidPolicy) as wrong:
        which = path or home / "policy.yaml"
        raise Misconfigured(f"POLICY_FILE {which}: {wrong}") from wrong
    installation.keep_running(policy.watch())
    return GateParts(
        blobs,
        evidence,
        audit,
        policy,
        parse_shell,
        Approvals(
            journal,
            evidence,
            clock,
            audit,
            core.seal,
            ApproverView(core.patterns),
            ttl_ms=settings.approval_timeout_ms,
        ),
        Ledger(journal, evidence, audit, clock, core.owner),
    )
