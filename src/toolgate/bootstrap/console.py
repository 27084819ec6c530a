"""The operator's pages, on everything that is here."""

import asyncio

from toolgate.bootstrap.admission import operator_token
from toolgate.bootstrap.installation import VERSION, Core
from toolgate.bootstrap.tools import Execution
from toolgate.evidence.check import ClosedHome, check_home
from toolgate.runs.runs import Runs
from toolgate.settings import Settings
from toolgate.surfaces.console.parts import Admission, ChatDoor, Parts, Verification
from toolgate.surfaces.console.server import Console
from toolgate.surfaces.console.sign_in import SignIn
from toolgate.surfaces.gateway.assembly import Assembled


async def open_console(
    settings: Settings,
    core: Core,
    execution: Execution,
    runs: Runs,
    door: Assembled,
    chat: ChatDoor,
) -> Console:
    home, log_key = settings.home, execution.evidence.key

    def check() -> Verification:
        mark = core.mark.mark
        with ClosedHome(home) as closed:
            found = check_home(closed, key=log_key, mark=mark)
        return Verification(found.size, found.artifacts, found.problems, found.notes)

    async def verify() -> Verification:
        await execution.evidence.publish()
        return await asyncio.to_thread(check)

    sign_in = SignIn(operator_token(settings, core.patterns), core.clock, core.journal)
    await sign_in.load()
    parts = Parts(
        version=VERSION,
        runs=runs,
        gate=execution.gate,
        approvals=execution.approvals,
        audit=execution.audit,
        evidence=execution.evidence,
        verify=verify,
        policy=execution.policy,
        simulation=execution.simulation,
        targets=execution.targets,
        journal=core.journal,
        bus=core.bus,
        clock=core.clock,
        chat=chat,
        learn=core.patterns.learn,
        admission=Admission(door.registry, door.pairing, door.capabilities),
        tasks=execution.tasks,
    )
    return Console(parts, sign_in)
