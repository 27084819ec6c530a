"""A policy in its compiled form, and what it decides.

Built by `compile.py`, read by `decide.py`; nothing here reads a file or knows YAML.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

from toolgate.core.enums import Level
from toolgate.core.errors import Invalid
from toolgate.core.globs import Glob
from toolgate.core.tools import ToolRequest
from toolgate.policy.inputs import COMMAND_TOOLS, Facts
from toolgate.policy.shell import Argv, Command

EGRESS: Final = "sandbox.egress"  # a connection out of a sandbox, to the policy a tool as others
HTTP_FETCH: Final = "http.fetch"  # an allow list names its hosts (executor contract)
ACTIVE_POLICY: Final = "policy.default"  # the ref of the policy in force (executor contract)
BROWSER: Final = "browser."
RUN_TEMPLATE: Final = "browser.run_task_template"
_NO_TEMPLATES: Final = frozenset(  # the other browser tools of the browser contract
    BROWSER + name
    for name in (
        "list_task_templates",
        "get_task_run",
        "list_task_runs",
        "cancel_task_run",
        "get_artifact",
        "get_runtime_profile",
    )
)

DEFAULT_DENY: Final = "default_deny"
EVALUATION_ERROR: Final = "evaluation_error"
LIMIT_REACHED: Final = "limit_reached"
POLICY_NOT_FOUND: Final = "policy_not_found"
HOSTNAME_CHECK: Final = "http_fetch_hostname_check"
URL_VALIDATION: Final = "http_fetch_url_validation"
ALLOWLIST_MATCH: Final = "tool_allowlist_match"
DEFAULT_ALLOW: Final = "default_allow"
REQUEST_ID_CONFLICT: Final = "request_id_conflict"
SIGNING_ASKS: Final = "What signs needs a person"  # the reason (gateway contract)
RESERVED_IDS: Final = frozenset(
    {
        DEFAULT_DENY,
        EVALUATION_ERROR,
        LIMIT_REACHED,
        POLICY_NOT_FOUND,
        HOSTNAME_CHECK,
        URL_VALIDATION,
        ALLOWLIST_MATCH,
        DEFAULT_ALLOW,
        REQUEST_ID_CONFLICT,
    }
)


class InvalidPolicy(Invalid):
    """A document that is no policy, with everything that is wrong with it."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        super().__init__(f"policy {name}: " + "; ".join(problems))
        self.problems = tuple(problems)


MAX_REMEMBERED: Final = 4096  # tools and hosts come from callers


class Effect(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Answer(IntEnum):
    """The result of a condition. Only YES serves an allow; YES and MAYBE both serve deny and ask."""

    NO = 0
    YES = 1
    MAYBE = 2


NO: Final = Answer.NO
YES: Final = Answer.YES
MAYBE: Final = Answer.MAYBE

Check = Callable[[Facts], Answer]


class Decision(NamedTuple):
    effect: Effect
    rule_id: str
    reason: str
    policy_version: str
    policy_ref: str
    detail: str = ""  # the part of the call that decided, or why no rule allowed it
    rule_digest: str = ""  # of the rule that decided
    clean: bool = False  # rules about commands allow it: nothing may redefine what its words mean


def digest_of(meaning: object) -> str:
    """The first 128 bits of the SHA-256 of a rule's meaning, given as JSON values."""
    form = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(form.encode()).hexdigest()[:32]


def fixed_digest(rule_id: str, effect: Effect) -> str:
    """The digest of a rule that no policy file spells: its id and effect are all of it."""
    return digest_of({"id": rule_id, "effect": effect.value})


DENIAL_DIGESTS: Final = {rule_id: fixed_digest(rule_id, Effect.DENY) for rule_id in RESERVED_IDS}


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing a rule asks for; `says` is how the file spells it."""

    says: str
    check: Check
    standing: bool = False  # it does not depend on the arguments


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    position: int  # in the file; the first that matches gives its name to the decision
    id: str
    effect: Effect
    tools: tuple[str, ...]
    reason: str
    checks: tuple[Check, ...]  # the conditions' functions, flat for speed; commands excepted
    conditions: tuple[Condition, ...]
    standing: tuple[Check, ...]  # those of them that ask only who calls, and the tool's level
    commands: "CommandRule | None"
    host_keys: tuple[str, ...] | None  # None: not about hosts, or about nearly all of them
    decision: Decision
    signing: Decision  # instead of `decision`, where the tool's level is sign
    otherwise: bool = False  # an ask for what no allow matches
    per_tool: bool = False  # the reason names the tool
    env_names: frozenset[str] = frozenset()  # the variables it speaks of
    by_path: bool = False  # it goes by how a path is spelt
    by_cwd: bool = False  # and by how the directory is that a command runs in


@dataclass(frozen=True, slots=True)
class CommandRule:
    """The command patterns of one rule, found by the program they name."""

    patterns: tuple[str, ...]
    covers: Callable[[Argv], bool]  # all words known: for an allow
    may_cover: Callable[[Command], bool]  # for a deny or an ask


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """A call with the decision that the file promises for it."""

    where: str
    call: ToolRequest
    level: Level
    expect: Effect
    rule_id: str  # empty: any


@dataclass(frozen=True, slots=True)
class EffectRules:
    """The rules of one effect that can concern one tool."""

    plain: tuple[Rule, ...]
    by_host: Mapping[str, tuple[Rule, ...]]
    hosted: tuple[Rule, ...]  # all of `by_host`, for URLs that cannot be told

    remembered: dict[str, tuple[Rule, ...]] = field(default_factory=dict)

    def about(self, host: str) -> tuple[Rule, ...]:
        """The rules about a host, with those about none, in order; one lookup per label."""
        known = self.remembered.get(host)
        if known is None:
            found = {*self.plain, *self.by_host.get(host, ()), *self.by_host.get("*", ())}
            dot = host.find(".")
            while dot >= 0:
                found.update(self.by_host.get("*" + host[dot:], ()))
                dot = host.find(".", dot + 1)
            known = in_order(found)
            if len(self.remembered) >= MAX_REMEMBERED:
                self.remembered.clear()
            self.remembered[host] = known
        return known


_position = attrgetter("position")


def in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=_position))


@dataclass(frozen=True, slots=True)
class Candidates:
    deny: EffectRules
    ask: EffectRules
    allow: EffectRules
    otherwise: EffectRules  # the asks that speak where no allow does
    by_path: bool  # whether any of them goes by how a path is spelt
    by_cwd: bool  # and by how the directory is that a command runs in


class Policy:
    """Compiled rules, found by the tool's name."""

    __slots__ = ("_by_tool", "_globs", "_remembered", "name", "rules", "tests", "version")

    def __init__(
        self, *, name: str, version: str, rules: Sequence[Rule], tests: Sequence[PolicyTest]
    ) -> None:
        self.name = name
        self.version = version
        self.rules = tuple(rules)
        self.tests = tuple(tests)
        self._by_tool: dict[str, list[Rule]] = {}
        self._globs: list[tuple[Glob, Rule]] = []
        self._remembered: dict[str, Candidates] = {}
        for rule in self.rules:
            for tool in rule.tools:
                if "*" in tool:
                    self._globs.append((Glob(tool), rule))
                else:
                    self._by_tool.setdefault(tool, []).append(rule)

    def candidates(self, tool: str) -> Candidates:
        """The rules that name this tool; worked out once per tool.

        A rule that names `browser.run_task_template` also names every template. A deny or an ask
        that names one of the command tools names them all; an allow names only those it lists.
        """
        found = self._remembered.get(tool)
        if found is None:
            is_template = tool.startswith(BROWSER) and tool not in _NO_TEMPLATES
            rules = self._naming({tool, RUN_TEMPLATE} if is_template else {tool})
            if tool in COMMAND_TOOLS:
                rules |= {
                    rule for rule in self._naming(COMMAND_TOOLS) if rule.effect is not Effect.ALLOW
                }
            ordered = in_order(rules)
            found = Candidates(
                deny=_effect_rules(rule for rule in ordered if rule.effect is Effect.DENY),
                ask=_effect_rules(
                    rule for rule in ordered if rule.effect is Effect.ASK and not rule.otherwise
                ),
                allow=_effect_rules(rule for rule in ordered if rule.effect is Effect.ALLOW),
                otherwise=_effect_rules(rule for rule in ordered if rule.otherwise),
                by_path=any(rule.by_path for rule in ordered),
                by_cwd=any(rule.by_cwd for rule in ordered),
            )
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[tool] = found
        return found

    def _naming(self, tools: Set[str]) -> set[Rule]:
        """The rules that name one of these tools."""
        found = {rule for tool in tools for rule in self._by_tool.get(tool, ())}
        return found | {rule for glob, rule in self._globs if any(map(glob.matches, tools))}


def rules_name(call: ToolRequest) -> str:
    """The tool's name to find rules by: a template's own, whichever tool is called to run it."""
    if call.tool != RUN_TEMPLATE:
        return call.tool
    template = call.args.get("templateId")
    name = f"{BROWSER}{template}"
    return name if isinstance(template, str) and name not in _NO_TEMPLATES else call.tool


def _effect_rules(rules: Iterable[Rule]) -> EffectRules:
    plain: list[Rule] = []
    hosted: list[Rule] = []
    by_host: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.host_keys is None:
            plain.append(rule)
        else:
            hosted.append(rule)
            for key in rule.host_keys:
                by_host.setdefault(key, []).append(rule)
    return EffectRules(
        tuple(plain), {key: tuple(value) for key, value in by_host.items()}, tuple(hosted)
    )
