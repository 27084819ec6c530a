"""From a document (what YAML or JSON says) to a policy, or to the list of all that is wrong with it.

Strict: what is not understood is refused, never skipped.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from toolgate.core.enums import Level
from toolgate.core.globs import one_of
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy import conditions
from toolgate.policy.document import shape_problems
from toolgate.policy.inputs import CWD_ARGUMENT, PATH_ARGUMENTS
from toolgate.policy.model import (
    ALLOWLIST_MATCH,
    DEFAULT_ALLOW,
    EGRESS,
    HTTP_FETCH,
    RESERVED_IDS,
    SIGNING_ASKS,
    Check,
    CommandRule,
    Condition,
    Decision,
    Effect,
    InvalidPolicy,
    Policy,
    PolicyTest,
    Rule,
    digest_of,
    fixed_digest,
)
from toolgate.policy.paths import BadPath, PathPattern
from toolgate.policy.shell import SUBCOMMANDS, WRAPPERS, CommandPattern, base_name, tidied
from toolgate.policy.urls import BadUrl, HostSet, canonical_host_pattern

FORMAT: Final = 1
MAX_PATTERNS: Final = 100_000  # in one list, groups unfolded

EGRESS_PORTS: Final = [80, 443]
_TOOL: Final = re.compile(r"[A-Za-z0-9._:/*-]{1,200}")
_WORD_ENDS: Final = r"(?=[\s\[\"]|\Z)"  # "insert" is a text without an operator, not `in`
_COMPARISON: Final = re.compile(
    rf"\s*((?:{'|'.join(op for op in conditions.OPERATORS if not op[0].isalpha())})(?![=<>])"
    rf"|(?:{'|'.join(op for op in conditions.OPERATORS if op[0].isalpha())}){_WORD_ENDS})"
    r"\s*(.*?)\s*",
    re.DOTALL,
)


def compile_policy(document: Mapping[str, Any], *, name: str) -> Policy:
    """The policy of a document; raises InvalidPolicy with every problem and its place."""
    return _Compiler(name).compile(document)


def default_allow_policy(*, name: str) -> Policy:
    """Allows everything. For tests of drivers; whoever registers it opens the gate."""
    rule: JsonValue = {
        "id": DEFAULT_ALLOW,
        "allow": "*",
        "match": "any",
        "reason": "Default allow policy",
    }
    return _Compiler(name, reserved=frozenset()).compile({"version": FORMAT, "rules": [rule]})


class _Compiler:
    """One reading of one document; problems are collected, not raised one by one."""

    def __init__(self, name: str, *, reserved: frozenset[str] = RESERVED_IDS) -> None:
        self._name = name
        self._reserved = reserved
        self._problems: list[str] = []
        self._groups: dict[str, list[str]] = {}

    def compile(self, document: Mapping[str, Any]) -> Policy:
        if problems := shape_problems(document):
            raise InvalidPolicy(self._name, problems)
        self._read_groups(document.get("groups", {}))
        rules = self._read_rules(document.get("rules", []))
        egress = self._read_egress(document.get("egress", []), {rule.id for rule in rules})
        drafts = [*rules, *egress, *self._read_allowlist(document)]
        tests = self._read_tests("tests", document.get("tests", []))
        tests.extend(test for draft in drafts for test in draft.tests)
        self._check_test_rules(tests, drafts)
        if self._problems:
            raise InvalidPolicy(self._name, self._problems)
        version = _version(drafts)
        return Policy(
            name=self._name,
            version=version,
            rules=[
                draft.rule(position, name=self._name, version=version)
                for position, draft in enumerate(drafts)
            ],
            tests=tests,
        )

    def _read_groups(self, groups: Mapping[str, list[str]]) -> None:
        self._groups = dict(groups)
        for name, members in groups.items():
            if any(member.startswith("$") for member in members):
                self._problem(f"groups.{name}", "a group cannot hold another group")

    def _read_rules(self, rules: Sequence[Mapping[str, Any]]) -> list["_Draft"]:
        drafts = [self._read_rule(index, rule) for index, rule in enumerate(rules)]
        seen: dict[str, int] = {}
        for index, draft in enumerate(drafts):
            if draft.id in seen:
                self._problem(
                    f"rules[{index}]",
                    f"the id {draft.id} is already that of rules[{seen[draft.id]}]",
                )
            seen.setdefault(draft.id, index)
        return drafts

    def _read_rule(self, index: int, given: Mapping[str, Any]) -> "_Draft":
        rule_id: str = given["id"]
        if rule_id in self._reserved:
            self._problem(f"rules[{index}].id", f"{rule_id} is a name of Toolgate's own")
        where = f"rules[{index}] ({rule_id})"
        effects = [effect for effect in Effect if effect.value in given]
        if len(effects) != 1:
            self._problem(where, "needs exactly one of allow, ask, deny")
        effect = effects[0] if effects else Effect.DENY
        draft = _Draft(
            id=rule_id,
            effect=effect,
            tools=self._tools(f"{where}.{effect}", given.get(effect.value, [])),
            reason=given["reason"],
        )
        self._read_match(f"{where}.match", given.get("match", "any"), draft)
        self._read_for(f"{where}.for", given.get("for", {}), draft)
        self._read_when(f"{where}.when", given.get("when", {}), draft)
        if effect is Effect.ALLOW and "match" not in given and not given.get("when"):
            self._problem(where, "this allow matches everything; say `match: any` if you mean it")
        draft.tests = self._read_tests(f"{where}.tests", given.get("tests", []), of=draft)
        return draft

    def _read_egress(self, grants: Sequence[Mapping[str, Any]], taken: set[str]) -> list["_Draft"]:
        """Each grant is an allow of `sandbox.egress`, at these hosts and on few ports."""
        drafts: list[_Draft] = []
        for index, given in enumerate(grants):
            where = f"egress[{index}]"
            if given["id"] in taken or given["id"] in self._reserved:
                self._problem(f"{where}.id", f"the id {given['id']} is taken")
            taken.add(given["id"])
            draft = _Draft(given["id"], Effect.ALLOW, (EGRESS,), given["reason"])
            hosts = self._hosts(f"{where}.hosts", given["hosts"])
            self._add_url(draft, hosts=hosts, ports=_listed(given.get("ports", EGRESS_PORTS)))
            self._read_for(f"{where}.for", given.get("for", {}), draft)
            draft.tests = self._read_tests(f"{where}.tests", given.get("tests", []), of=draft)
            drafts.append(draft)
        return drafts

    def _read_allowlist(self, document: Mapping[str, Any]) -> list["_Draft"]:
        """The compact form is two rules with the texts of the executor contract."""
        if "allowlist" not in document:
            return []
        given = document["allowlist"]
        tools = self._tools("allowlist.tools", given.get("tools", []))
        hosts = self._hosts("allowlist.http_fetch_hosts", given.get("http_fetch_hosts", []))
        plain = tuple(tool for tool in tools if tool != HTTP_FETCH)
        text = "Tool {tool} is in allowlist"
        others = _Draft(ALLOWLIST_MATCH, Effect.ALLOW, plain, text, per_tool=True)
        drafts = [others]
        if one_of(tools)(HTTP_FETCH):
            others.add(f"not {HTTP_FETCH}", conditions.tool_is_not(HTTP_FETCH), standing=True)
            fetch = _Draft(ALLOWLIST_MATCH, Effect.ALLOW, (HTTP_FETCH,), text, per_tool=True)
            self._add_url(fetch, hosts=hosts, schemes=("http", "https"))
            drafts.append(fetch)
        return drafts

    def _read_match(self, where: str, given: Any, draft: "_Draft") -> None:
        if given == "any":
            return
        if given == "otherwise":
            draft.otherwise = True
            draft.form["otherwise"] = True
            if draft.effect is not Effect.ASK:
                self._problem(where, "only an ask can be for what no allow matches")
            return
        if "level" in given:
            levels = self._levels(f"{where}.level", given["level"])
            draft.form["level"] = sorted(levels)
            draft.add(f"level {_list(levels)}", conditions.tool_level_is(levels), standing=True)
        if "client" in given:
            wanted = given["client"]
            draft.form["client"] = wanted
            draft.add(
                f"client {json.dumps(wanted)}", conditions.runs_on_client(wanted), standing=True
            )
        if "url" in given:
            self._read_url(f"{where}.url", given["url"], draft)
        for key, make in (("path", conditions.path_matches), ("cwd", conditions.cwd_matches)):
            if key in given:
                self._read_paths(f"{where}.{key}", key, given[key], make, draft)
        if "arguments" in given:
            self._read_arguments(f"{where}.arguments", given["arguments"], draft)
        if "command" in given:
            self._read_commands(f"{where}.command", given["command"], draft)

    def _read_url(self, where: str, given: Mapping[str, Any], draft: "_Draft") -> None:
        texts = {
            key: [text.lower() for text in self._texts(f"{where}.{key}", given[key])]
            for key in ("scheme", "method")
            if key in given
        }
        self._add_url(
            draft,
            schemes=texts.get("scheme"),
            hosts=self._hosts(f"{where}.host", given["host"]) if "host" in given else None,
            methods=texts.get("method"),
            ports=_listed(given["port"]) if "port" in given else None,
            public=given.get("public"),
        )

    def _add_url(
        self,
        draft: "_Draft",
        *,
        schemes: Sequence[str] | None = None,
        hosts: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        ports: Sequence[int] | None = None,
        public: bool | None = None,
    ) -> None:
        form = {
            "scheme": schemes and sorted(schemes),
            "host": hosts and sorted(hosts),
            "method": methods and sorted(methods),
            "port": ports and sorted(ports),
            "public": public,
        }
        draft.form["url"] = {key: value for key, value in form.items() if value is not None}
        if hosts is not None:
            draft.host_keys = tuple(dict.fromkeys(hosts))
        draft.add(
            "url " + json.dumps(draft.form["url"])[:200],
            conditions.url_matches(
                schemes=None if schemes is None else frozenset(schemes),
                hosts=None if hosts is None else HostSet(hosts),
                ports=None if ports is None else frozenset(ports),
                methods=None if methods is None else frozenset(each.upper() for each in methods),
                public=public,
            ),
        )

    def _read_paths(
        self,
        where: str,
        key: str,
        value: JsonValue,
        make: Callable[[Sequence[PathPattern]], Check],
        draft: "_Draft",
    ) -> None:
        texts = self._texts(where, value)
        draft.form[key] = sorted(texts)
        patterns: list[PathPattern] = []
        for text in texts:
            try:
                patterns.append(PathPattern(text))
            except BadPath as bad:
                self._problem(where, f"{text!r}: {bad}")
        draft.goes_by(key)
        draft.add(f"{key} {_list(texts)}", make(patterns))

    def _read_arguments(self, where: str, given: Mapping[str, Any], draft: "_Draft") -> None:
        for name, wanted in given.items():
            path = self._argument_path(f"{where}.{name}", name)
            scalars = self._unfold_scalars(f"{where}.{name}", _listed(wanted))
            if path[0] == "env":
                draft.env_names.update(path[1:2])
            draft.goes_by(path[0])
            draft.form[f"arguments.{name}"] = sorted(scalars, key=repr)
            draft.add(f"{name} {_list(scalars)}", conditions.argument_matches(path, scalars))

    def _read_commands(self, where: str, value: JsonValue, draft: "_Draft") -> None:
        patterns: list[CommandPattern] = []
        texts: list[str] = []
        for text in self._texts(where, value):
            try:
                words = shlex.split(text)
            except ValueError as bad:
                self._problem(where, f"{text!r}: {bad}")
                continue
            if not words or not words[0]:
                self._problem(where, f"{text!r} names no program")
                continue
            if draft.effect is Effect.ALLOW:
                self._check_allowed_command(where, text, words)
            texts.append(" ".join(words))
            patterns.append(CommandPattern(words))
            if tidy := tidied(tuple(words)):
                patterns.append(CommandPattern(tidy))
        draft.form["command"] = sorted(texts)
        draft.commands = conditions.command_rule(patterns)

    def _check_allowed_command(self, where: str, text: str, words: Sequence[str]) -> None:
        if "*" in words[0] or words[0] == "?":
            self._problem(
                where,
                f"{text!r}: an allow must name its program (`ls*` is also lsof; write `ls *`)",
            )
        elif base_name(words[0]) in SUBCOMMANDS and "/" in words[0]:
            self._problem(
                where, f"{text!r}: an allow must name {base_name(words[0])} without a path"
            )
        elif base_name(words[0]) in WRAPPERS and any("*" in word or word == "?" for word in words):
            self._problem(
                where,
                f"{text!r}: {words[0]} runs what its arguments say, so an allow must give them all",
            )

    def _read_for(self, where: str, given: Mapping[str, Any], draft: "_Draft") -> None:
        for key, wanted in given.items():
            spot = f"{where}.{key}"
            texts = self._texts(spot, wanted) if key != "level" else self._levels(spot, wanted)
            draft.form[f"for.{key}"] = sorted(texts)
            draft.add(f"for {key} {_list(texts)}", conditions.caller_is(key, texts), standing=True)

    def _read_when(self, where: str, given: Mapping[str, Any], draft: "_Draft") -> None:
        for name, wanted in given.items():
            spot = f"{where}.{name}"
            if not name.startswith("args."):
                self._problem(spot, "must be an argument: args.<name>")
                continue
            path = self._argument_path(spot, name.removeprefix("args."))
            draft.goes_by(path[0])
            # An empty list would leave no condition, and the rule would match every call.
            for one in wanted if isinstance(wanted, list) and wanted else [wanted]:
                for op, operand in self._comparisons(spot, one):
                    says = f"{name} {op} {json.dumps(operand)}"
                    draft.form[f"when {says}"] = True
                    draft.add(says, conditions.comparison(path, op, operand))

    def _comparisons(self, where: str, value: JsonValue) -> list[tuple[str, JsonValue]]:
        """`"> 100"`, or a mapping `{in: [EUR, USD]}`; several must all hold."""
        pairs: list[tuple[str, JsonValue]] = []
        if isinstance(value, str):
            found = _COMPARISON.fullmatch(value)
            if found:
                pairs = [(found[1], self._operand(found[1], found[2]))]
        elif isinstance(value, Mapping):
            pairs = list(value.items())
        if not pairs or any(op not in conditions.OPERATORS for op, _ in pairs):
            known = ", ".join(conditions.OPERATORS)
            self._problem(where, f"must be an operator ({known}) and a value")
            return []
        for op, operand in pairs:
            self._check_operand(where, op, operand)
        return [(op, self._unfold_operand(where, op, operand)) for op, operand in pairs]

    def _unfold_operand(self, where: str, op: str, operand: JsonValue) -> JsonValue:
        if op not in {"in", "not in"} or not isinstance(operand, list):
            return operand
        unfolded: list[JsonValue] = []
        for one in operand:
            is_group = isinstance(one, str) and one.startswith("$")
            unfolded.extend(self._unfold(where, str(one)) if is_group else [one])
        return unfolded

    def _operand(self, op: str, text: str) -> JsonValue:
        if op == "exists" and not text:
            return True
        try:
            value: JsonValue = json.loads(text)
        except ValueError:
            value = [part.strip() for part in text.split(",")] if op in {"in", "not in"} else text
        return value

    def _check_operand(self, where: str, op: str, operand: JsonValue) -> None:
        number = isinstance(operand, int | float) and not isinstance(operand, bool)
        if op in {">", "<", ">=", "<="} and not number:
            self._problem(where, f"{op} compares numbers")
        elif op in {"in", "not in"} and not isinstance(operand, list):
            self._problem(where, f"{op} needs a list")
        elif op == "exists" and not isinstance(operand, bool):
            self._problem(where, "exists is true or false")
        elif op in {"==", "!=", "contains"} and (
            operand is None or operand == "" or isinstance(operand, list | dict)
        ):
            self._problem(where, f"{op} needs a text, a number, true or false")

    def _read_tests(
        self, where: str, value: Sequence[Mapping[str, Any]], *, of: "_Draft | None" = None
    ) -> list[PolicyTest]:
        return [self._read_test(f"{where}[{index}]", test, of) for index, test in enumerate(value)]

    def _read_test(self, where: str, given: Mapping[str, Any], of: "_Draft | None") -> PolicyTest:
        tool = given.get("call", of.tools[0] if of and of.tools else "")
        if not tool or "*" in tool:
            self._problem(f"{where}.call", "must name a tool")
        expect = given.get("expect", of.effect if of else None)
        if expect is None:
            self._problem(f"{where}.expect", "must be allow, ask or deny")
        effect = Effect(expect or Effect.DENY)
        caller = given.get("as", {})
        return PolicyTest(
            where=where,
            call=ToolRequest(
                request_id="test",
                tool=tool,
                args=given.get("args", {}),
                caller=Caller(**{**caller, "level": Level(caller.get("level", Level.READ))}),
                on_client=given.get("client", False),
            ),
            level=Level(given.get("level", Level.READ)),
            expect=effect,
            rule_id=given.get("rule", of.id if of and of.effect is effect else ""),
        )

    def _check_test_rules(self, tests: Iterable[PolicyTest], drafts: Sequence["_Draft"]) -> None:
        known = {draft.id for draft in drafts} | RESERVED_IDS
        for test in tests:
            if test.rule_id and test.rule_id not in known:
                self._problem(f"{test.where}.rule", f"there is no rule {test.rule_id}")

    def _problem(self, where: str, what: str) -> None:
        self._problems.append(f"{where}: {what}" if where else what)

    def _texts(self, where: str, value: Any) -> list[str]:
        """One text or a list of them, with `$group` unfolded; an empty list matches nothing."""
        texts: list[str] = []
        for text in _listed(value):
            texts.extend(self._unfold(where, text) if text.startswith("$") else [text])
        if len(texts) > MAX_PATTERNS:
            self._problem(where, f"more than {MAX_PATTERNS} patterns")
            return []
        return texts

    def _unfold(self, where: str, text: str) -> list[str]:
        members = self._groups.get(text[1:])
        if members is None:
            self._problem(where, f"there is no group {text}")
            return []
        return members

    def _unfold_scalars(
        self, where: str, scalars: Sequence[conditions.Scalar]
    ) -> list[conditions.Scalar]:
        unfolded: list[conditions.Scalar] = []
        for one in scalars:
            if isinstance(one, str) and one.startswith("$"):
                unfolded.extend(self._unfold(where, one))
            else:
                unfolded.append(one)
        return unfolded

    def _tools(self, where: str, value: Any) -> tuple[str, ...]:
        tools = self._texts(where, value)
        for tool in tools:
            if not _TOOL.fullmatch(tool):
                self._problem(where, f"{tool!r} is not a tool's name")
        return tuple(dict.fromkeys(tools))

    def _hosts(self, where: str, value: Any) -> list[str]:
        hosts: list[str] = []
        for text in self._texts(where, value):
            try:
                hosts.append(canonical_host_pattern(text))
            except BadUrl as bad:
                self._problem(where, f"{text!r}: {bad}")
        return hosts

    def _levels(self, where: str, value: Any) -> list[str]:
        texts = self._texts(where, value)
        if not all(text in list(Level) for text in texts):
            self._problem(where, f"must be one of {', '.join(Level)}")
        return texts

    def _argument_path(self, where: str, name: str) -> list[str]:
        path = name.split(".")
        if not all(path):
            self._problem(where, "must be the name of an argument, with dots for members")
        return path


class _Draft:
    """A rule before the version of its policy is known."""

    def __init__(
        self,
        id: str,
        effect: Effect,
        tools: tuple[str, ...],
        reason: str,
        *,
        per_tool: bool = False,
    ) -> None:
        self.id = id
        self.effect = effect
        self.tools = tools
        self.reason = reason
        self.per_tool = per_tool
        self.conditions: list[Condition] = []
        self.commands: CommandRule | None = None
        self.host_keys: tuple[str, ...] | None = None
        self.env_names: set[str] = set()
        self.by_path = False
        self.by_cwd = False
        self.otherwise = False
        self.tests: list[PolicyTest] = []
        self.form: dict[str, object] = {}

    def add(self, says: str, check: Check, *, standing: bool = False) -> None:
        self.conditions.append(Condition(says, check, standing))

    def goes_by(self, argument: str) -> None:
        self.by_path |= argument in PATH_ARGUMENTS
        self.by_cwd |= argument == CWD_ARGUMENT

    def canonical(self) -> dict[str, object]:
        return {
            "id": self.id,
            "effect": self.effect.value,
            "tools": sorted(self.tools),
            "reason": self.reason,
            **self.form,
        }

    def digest(self) -> str:
        """The digest of the rule's meaning alone: other rules, comments, tests and layout do not change it.

        An allow list is one fixed rule: to list another tool does not change what it says of this.
        """
        return fixed_digest(self.id, self.effect) if self.per_tool else digest_of(self.canonical())

    def rule(self, position: int, *, name: str, version: str) -> Rule:
        decision = Decision(
            self.effect,
            self.id,
            self.reason,
            version,
            name,
            rule_digest=self.digest(),
            clean=self.effect is Effect.ALLOW and self.commands is not None,
        )
        signing = decision._replace(
            effect=Effect.ASK,
            clean=False,
            reason=SIGNING_ASKS,
            rule_digest=digest_of({"signing": decision.rule_digest}),
        )
        return Rule(
            position=position,
            id=self.id,
            effect=self.effect,
            tools=self.tools,
            reason=self.reason,
            checks=tuple(condition.check for condition in self.conditions),
            conditions=tuple(self.conditions),
            standing=tuple(each.check for each in self.conditions if each.standing),
            commands=self.commands,
            host_keys=self.host_keys,
            decision=decision,
            signing=signing,
            otherwise=self.otherwise,
            per_tool=self.per_tool,
            env_names=frozenset(self.env_names),
            by_path=self.by_path,
            by_cwd=self.by_cwd,
        )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _version(drafts: Sequence[_Draft]) -> str:
    """The same rules have the same version, however the file is laid out."""
    form = json.dumps(
        [draft.canonical() for draft in drafts], sort_keys=True, separators=(",", ":")
    )
    return "sha256:" + hashlib.sha256(form.encode()).hexdigest()


def _list(values: Sequence[object]) -> str:
    shown = ", ".join(str(value) for value in values[:5])
    return f"[{shown}, … {len(values)} in all]" if len(values) > 5 else f"[{shown}]"
