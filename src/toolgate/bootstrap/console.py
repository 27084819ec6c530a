"""The operator's pages, on everything that is here."""

from toolgate.bootstrap.admission import Admission
from toolgate.bootstrap.installation import VERSION, Core
from toolgate.bootstrap.tools import Execution
from toolgate.runs.runs import Runs
from toolgate.surfaces.console.context import ChatAddress, ConsoleContext
from toolgate.surfaces.console.server import Console
from toolgate.surfaces.gateway.translate import run_summary


def make_console(
    core: Core,
    admission: Admission,
    execution: Execution,
    runs: Runs,
    chat: ChatAddress,
) -> Console:
    context = ConsoleContext(
        version=VERSION,
        runs=runs,
        gate=execution.gate,
        approvals=execution.approvals,
        audit=execution.audit,
        evidence=execution.evidence,
        policy=execution.policy,
        journal=core.journal,
        bus=core.bus,
        clock=core.clock,
        chat=chat,
        run_summary=run_summary,
    )
    return Console(context, admission.sign_in)
