"""The policy as the gate and the engines use it: by `policy_ref`, with the tool's own level."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from toolgate.core.enums import Level
from toolgate.core.tools import Caller, Tool, ToolRequest
from toolgate.core.urls import Url, parse_url
from toolgate.policy.decide import FindPolicy, decide_by_ref, may_pass
from toolgate.policy.inputs import COMMAND_ARGUMENTS, EvaluationError, Facts
from toolgate.policy.model import ACTIVE_POLICY, Decision, Effect
from toolgate.policy.programs import RUNS_FILES
from toolgate.policy.shell import Command, ParseShell, TooComplex, base_name

MAX_FILES: Final = 256  # words of one command that may name files
_GIVEN: Final = re.compile(r"<[ \t]*([^\s;&|<>()'\"]+)")  # to a command's standard input

LevelOf = Callable[[ToolRequest], Level]


def _no_row() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Policies:
    find: FindPolicy
    parse_shell: ParseShell
    level_of: LevelOf
    read_row_version: Callable[[], int] = _no_row  # 0: the policy in force is not in the journal

    @property
    def row_version(self) -> int:
        """The version of the journal's row of the policy in force (`policy_on_record`).

        Read it before the first await after `decide`, then it belongs to that decision's policy.
        """
        return self.read_row_version()

    @property
    def version(self) -> str:
        """The version of the policy in force."""
        policy = self.find(ACTIVE_POLICY)
        return "" if policy is None else policy.version

    def has_rule(self, digest: str) -> bool:
        """True if a rule of the policy in force has this digest."""
        policy = self.find(ACTIVE_POLICY)
        rules = () if policy is None else policy.rules
        return any(
            digest in (rule.decision.rule_digest, rule.signing.rule_digest) for rule in rules
        )

    def decide(
        self, request: ToolRequest, *, level: Level | None = None, can_be_clean: bool = True
    ) -> Decision:
        """Never raises: what cannot be decided is denied. `level` is the tool's, where known."""
        if level is None:
            level = self.level_of(request)
        return decide_by_ref(
            self.find,
            request,
            level=level,
            parse_shell=self.parse_shell,
            can_be_clean=can_be_clean,
        )

    def permits_hop(self, request: ToolRequest, url: Url) -> bool:
        """Check that a redirect may be followed: decide as if the call had that URL.

        Where the policy asks, the person has approved the origin of the first URL and no other.
        """
        hop = self.decide(request._replace(args={**request.args, "url": str(url)}))
        if hop.effect is Effect.ASK:
            return parse_url(str(request.args["url"])).origin == url.origin
        return hop.effect is Effect.ALLOW

    def files_run(self, request: ToolRequest) -> list[str]:
        """The words of a command that may name files that it runs; empty where it runs none.

        `sh s.sh`, `./s.sh`, `cat s.sh | sh`, `make -f x.mk`. A file that no word names (a Makefile,
        an imported module) is not among them.
        """
        facts = Facts(request, level=Level.WRITE, parse_shell=self.parse_shell)
        try:
            commands = facts.commands
        except (EvaluationError, TooComplex):
            return []
        words = [word for command in commands for word in command if isinstance(word, str)]
        if not any(map(_runs_files, commands)):
            return []
        texts = (request.args.get(name) for name in COMMAND_ARGUMENTS)
        given = [word for text in texts if isinstance(text, str) for word in _GIVEN.findall(text)]
        values = [word.rpartition("=")[2] for word in words if word[:1] == "-"]
        named = (word for word in (*words, *values, *given) if word and word[0] != "-")
        return list(dict.fromkeys(named))[:MAX_FILES]

    def goes_by_path(self, request: ToolRequest) -> bool:
        """True if a rule that names this tool depends on the spelling of a path."""
        policy = self.find(request.policy_ref)
        return policy is None or policy.candidates(request.tool).by_path

    def goes_by_cwd(self, request: ToolRequest) -> bool:
        """The same of the directory that a command is to run in."""
        policy = self.find(request.policy_ref)
        return policy is None or policy.candidates(request.tool).by_cwd

    def may_pass(self, tool: Tool, caller: Caller) -> bool:
        """True if some call of this tool by this caller could be allowed or asked about."""
        policy = self.find(ACTIVE_POLICY)
        return policy is not None and may_pass(policy, tool.name, caller=caller, level=tool.level)


def _runs_files(command: Command) -> bool:
    program = command[0]
    return isinstance(program, str) and ("/" in program or base_name(program) in RUNS_FILES)
