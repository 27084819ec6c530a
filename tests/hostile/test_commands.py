"""Commands under a policy that allows reading: none runs code, none reads a secret."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from tests.hostile.commands import ATTACKS, MARK, SECRET, Attack
from tests.support.batteries import chosen
from tests.support.engines import sandbox_of
from tests.support.web import FakeWeb
from tests.tools.engines.test_transfers import behind_http
from toolgate.core.enums import Level
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolRequest
from toolgate.journal.local_bus import LocalBus
from toolgate.policy.compile import compile_policy
from toolgate.policy.file import default_policy_text, load_policy
from toolgate.policy.model import Effect, Policy
from toolgate.policy.policies import Policies
from toolgate.policy.shell import WRAPPERS
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.sandbox.sandbox import Command, Session
from toolgate.sandbox.sessions import Sessions
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engine import Engine
from toolgate.tools.engines.builtin.engine import BuiltInEngine
from toolgate.tools.engines.path_rules import PathRules
from toolgate.tools.engines.sandbox import SandboxEngine

PARSE = TreeSitterShellParser()
WORDS = [
    ":",
    "[",
    "alias",
    "builtin",
    "cat",
    "cd",
    "command",
    "compgen",
    "complete",
    "coproc",
    "declare",
    "dirs",
    "echo",
    "enable",
    "eval",
    "exec",
    "exit",
    "export",
    "false",
    "fc",
    "getopts",
    "git",
    "grep",
    "hash",
    "jobs",
    "kill",
    "let",
    "local",
    "ls",
    "mapfile",
    "popd",
    "printf",
    "pushd",
    "pwd",
    "read",
    "readarray",
    "readonly",
    "set",
    "source",
    "test",
    "times",
    "touch",
    "trap",
    "true",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unset",
    "wait",
    ".",
]
SHIPPED = load_policy(default_policy_text(), parse_shell=PARSE)
TRUSTING = compile_policy(
    {
        "version": 1,
        "rules": [
            {
                "id": "words",
                "allow": ["shell", "exec"],
                "match": {"command": [f"{word} *" for word in WORDS if word not in WRAPPERS]},
                "reason": "They only read",
            }
        ],
    },
    name="policy.default",
)


class Door:
    """The policy, the engines behind the gate and a sandbox: of this machine, or of a runner."""

    def __init__(self, sessions: Sessions, target: Engine | None = None) -> None:
        self.sessions = sessions
        self.target = target or sandbox_engine(sessions)
        self.engines = {
            policy: PathRules(self.target, policies_of(policy)) for policy in (SHIPPED, TRUSTING)
        }

    async def gets_past(self, attack: Attack, *, approved: bool = False) -> str:
        """The way in which an attack got past; empty: it was held. `approved`: no rule decided it."""
        policy = SHIPPED if attack.shipped else TRUSTING
        caller = Caller("t_1", "w_1", role="agent", session=f"{attack.kind} {attack.name}")
        request = ToolRequest("r", attack.tool, attack.args, caller)
        decision = policies_of(policy).decide(request, level=Level.WRITE)
        if decision.effect is not Effect.ALLOW and not approved:
            return ""
        session = await self.sessions.open_for(request)
        try:
            await prepare(session, attack)
            if approved:
                done = await session.exec(Command(attack.args["command"]))
                said = done.stdout.decode("utf-8", "replace")
            else:
                clean = request._replace(clean=decision.clean)  # as the gate runs it
                output = await self.engines[policy].run(clean)
                said = output.stdout + output.stderr
            ran = (await session.exec(Command(argv=("/bin/ls", MARK)))).exit_code == 0
        finally:
            await session.close()
        if ran:
            return "ran code"
        return "read a secret" if SECRET in said else ""


def sandbox_engine(sessions: Sessions) -> SandboxEngine:
    built_in = BuiltInEngine(
        journal=MemoryJournal(clock=FakeClock(), bus=LocalBus()),
        web=FakeWeb({}),
        session=sessions.open_for,
        isolation=sessions.isolation,
        permits=lambda _request, _url: True,
        version="1",
    )
    others = dict.fromkeys(
        ("shell", "exec"), lambda request, update: built_in.run(request, update=update)
    )
    return SandboxEngine(sessions, others=others)


def policies_of(policy: Policy) -> Policies:
    return Policies(lambda _: policy, PARSE, lambda _: Level.WRITE)


async def prepare(session: Session, attack: Attack) -> None:
    if attack.setup:
        await session.exec(Command(attack.setup))
    await session.exec(Command(argv=("/bin/rm", "-f", MARK)))


@pytest.fixture
async def door(request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    where = getattr(request, "param", "bwrap")
    async with AsyncExitStack() as stack:
        backend = "docker" if where == "docker" else "bwrap"
        sandbox = await stack.enter_async_context(sandbox_of(backend, request))
        sessions = Sessions(sandbox, clock=SystemClock())
        stack.push_async_callback(sessions.close)
        await sessions.start()
        assert sessions.can_be_clean
        target: Engine | None = None
        if where == "runner":
            target = await stack.enter_async_context(behind_http(SandboxEngine(sessions)))
        yield Door(sessions, target)


KINDS = list(dict.fromkeys(attack.kind for attack in ATTACKS))
SHORT = {"bwrap": 12, "docker": 3, "runner": 6}  # of each kind in `make test`
IN_CONTAINERS = {"code by configuration", "state of the session", "secrets in files"}
BATTERIES = [
    *((kind, where) for kind in KINDS for where in ("bwrap", "runner")),
    *((kind, "docker") for kind in KINDS if kind in IN_CONTAINERS),
]


@pytest.mark.timeout(1200)
@pytest.mark.requirement("000/commands/clean")
@pytest.mark.parametrize(("kind", "door"), BATTERIES, indirect=["door"])
async def test_no_command_gets_past(
    door: Door,
    kind: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    where = request.node.callspec.params["door"]
    battery = [attack for attack in ATTACKS if attack.kind == kind]
    step = max(1, len(battery) // SHORT[where])
    tried = chosen(battery, battery[::step])
    past = {attack.name: way for attack in tried if (way := await door.gets_past(attack))}
    record_property("rounds", len(tried))
    record_property("class", [f"{kind} ({where})", len(tried), len(tried) - len(past)])
    assert past == {}


# A command of each kind that gets past where nothing holds it: else the judge is broken.
SEEN = {
    "fsmonitor git status",
    "fsmonitor-program git status",
    "filter-clean git status",
    "filter-process git status",
    "textconv git diff",
    "diff-driver git diff",
    "external-diff git diff",
    "home git status",
    "environment git status",
    "embedded bare repository git status",
    "spelt g''it status",
    "path ls",
    "path-relative ls",
    "test -v 'a[$(touch /tmp/PWNED)]'",
    "printf -v 'a[$(touch /tmp/PWNED)]' x",
    "-c 'core.fsmonitor=touch /tmp/PWNED;:'",
    "viewer git help status",
    "viewer git log --help",
    "viewer git st",
    "cat .env",
    "grep -r '' .",
    "git show",
}


@pytest.mark.timeout(180)
async def test_the_judge_sees_what_gets_past_where_nothing_holds_it(door: Door) -> None:
    known = [attack for attack in ATTACKS if attack.name in SEEN]
    past = {each.name for each in known if await door.gets_past(each, approved=True)}
    assert past == SEEN


def test_each_attack_has_a_name_of_its_own() -> None:
    assert len(ATTACKS) == len({(attack.kind, attack.name) for attack in ATTACKS})
