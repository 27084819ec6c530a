"""From a document (what YAML or JSON says) to a policy, or to the list of all that is wrong with it.

Strict: what is not understood is refused, never skipped.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from toolgate.core.enums import Level
from toolgate.core.globs import one_of
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy import conditions
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
MAX_RULES: Final = 10_000
MAX_PATTERNS: Final = 100_000  # in one list, groups unfolded
MAX_TEXT: Final = 2000  # one pattern or reason

_DOCUMENT_KEYS: Final = (
    "version",
    "name",
    "default",
    "description",
    "groups",
    "rules",
    "egress",
    "allowlist",
    "tests",
)
_RULE_KEYS: Final = ("id", "allow", "ask", "deny", "match", "for", "when", "reason", "tests")
_MATCH_KEYS: Final = ("command", "cwd", "path", "url", "arguments", "level", "client")
_URL_KEYS: Final = ("scheme", "host", "port", "method", "public")
_FOR_KEYS: Final = Caller.__struct_fields__
_TEST_KEYS: Final = ("call", "args", "as", "level", "client", "expect", "rule")
_EGRESS_KEYS: Final = ("id", "hosts", "ports", "for", "reason", "tests")
_EGRESS_FOR: Final = ("tenant", "workspace", "session")  # what is known of a sandbox
EGRESS_PORTS: Final = (80, 443)
_ALLOWLIST_KEYS: Final = ("tools", "http_fetch_hosts")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOOL: Final = re.compile(r"[A-Za-z0-9._:/*-]{1,200}")
_GROUP: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_WORD_ENDS: Final = r"(?=[\s\[\"]|\Z)"  # "insert" is a text without an operator, not `in`
_COMPARISON: Final = re.compile(
    rf"\s*((?:{'|'.join(op for op in conditions.OPERATORS if not op[0].isalpha())})(?![=<>])"
    rf"|(?:{'|'.join(op for op in conditions.OPERATORS if op[0].isalpha())}){_WORD_ENDS})"
    r"\s*(.*?)\s*",
    re.DOTALL,
)


def compile_policy(document: Mapping[str, JsonValue], *, name: str) -> Policy:
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

    def compile(self, document: Mapping[str, JsonValue]) -> Policy:
        if not isinstance(document, Mapping):
            raise InvalidPolicy(self._name, ["the document is not a mapping"])
        self._keys("", document, _DOCUMENT_KEYS)
        if type(document.get("version")) is not int or document["version"] != FORMAT:
            self._problem("version", f"must be {FORMAT}")
        if document.get("default", "deny") != "deny":
            self._problem("default", "the only legal value is deny")
        for key in ("name", "description"):
            if key in document:
                self._text(key, document[key])
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

    def _read_groups(self, groups: JsonValue) -> None:
        for name, members in self._mapping("groups", groups).items():
            if not _GROUP.fullmatch(name):
                self._problem(f"groups.{name}", "a group's name is lower case, digits and _")
            elif not isinstance(members, list):
                self._problem(f"groups.{name}", "must be a list")
            else:
                self._groups[name] = [
                    self._text(f"groups.{name}[{index}]", member)
                    for index, member in enumerate(members)
                ]
                if any(member.startswith("$") for member in self._groups[name]):
                    self._problem(f"groups.{name}", "a group cannot hold another group")

    def _read_rules(self, rules: JsonValue) -> list["_Draft"]:
        if not isinstance(rules, list):
            self._problem("rules", "must be a list")
            return []
        if len(rules) > MAX_RULES:
            self._problem("rules", f"more than {MAX_RULES}")
            return []
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

    def _read_rule(self, index: int, rule: JsonValue) -> "_Draft":
        where = f"rules[{index}]"
        given = self._mapping(where, rule)
        rule_id = given.get("id", "")
        if not isinstance(rule_id, str) or not _ID.fullmatch(rule_id):
            self._problem(f"{where}.id", "must be letters, digits, `.`, `_`, `-`, at most 64")
            rule_id = f"#{index}"
        elif rule_id in self._reserved:
            self._problem(f"{where}.id", f"{rule_id} is a name of Toolgate's own")
        where = f"{where} ({rule_id})"
        self._keys(where, given, _RULE_KEYS)
        effects = [effect for effect in Effect if effect.value in given]
        if len(effects) != 1:
            self._problem(where, "needs exactly one of allow, ask, deny")
        effect = effects[0] if effects else Effect.DENY
        draft = _Draft(
            id=rule_id,
            effect=effect,
            tools=self._tools(f"{where}.{effect}", given.get(effect.value, [])),
            reason=self._text(f"{where}.reason", given.get("reason", ""))
            if given.get("reason")
            else "",
        )
        if not draft.reason:
            self._problem(where, "needs a reason: people will read it")
        self._read_match(where, given, draft)
        self._read_for(where, given.get("for", {}), draft)
        self._read_when(where, given.get("when", {}), draft)
        if effect is Effect.ALLOW and "match" not in given and not given.get("when"):
            self._problem(where, "this allow matches everything; say `match: any` if you mean it")
        draft.tests = self._read_tests(f"{where}.tests", given.get("tests", []), of=draft)
        return draft

    def _read_egress(self, grants: JsonValue, taken: set[str]) -> list["_Draft"]:
        """Each grant is an allow of `sandbox.egress`, at these hosts and on few ports."""
        if not isinstance(grants, list):
            self._problem("egress", "must be a list")
            return []
        drafts: list[_Draft] = []
        for index, grant in enumerate(grants):
            where = f"egress[{index}]"
            given = self._mapping(where, grant)
            self._keys(where, given, _EGRESS_KEYS)
            grant_id = given.get("id", "")
            if not isinstance(grant_id, str) or not _ID.fullmatch(grant_id):
                self._problem(f"{where}.id", "must be letters, digits, `.`, `_`, `-`, at most 64")
            elif grant_id in taken or grant_id in self._reserved:
                self._problem(f"{where}.id", f"the id {grant_id} is taken")
            taken.add(str(grant_id))
            reason = self._text(f"{where}.reason", given.get("reason", ""))
            draft = _Draft(str(grant_id), Effect.ALLOW, (EGRESS,), reason)
            hosts = self._hosts(f"{where}.hosts", given.get("hosts", []))
            ports = self._ports(f"{where}.ports", given.get("ports", list(EGRESS_PORTS)))
            self._add_url(draft, hosts=hosts, ports=ports)
            whose = self._mapping(f"{where}.for", given.get("for", {}))
            self._keys(f"{where}.for", whose, _EGRESS_FOR)
            self._read_for(where, whose, draft)
            draft.tests = self._read_tests(f"{where}.tests", given.get("tests", []), of=draft)
            drafts.append(draft)
        return drafts

    def _ports(self, where: str, value: JsonValue) -> list[int]:
        each = value if isinstance(value, list) else [value]
        ports = [port for port in each if type(port) is int and 0 < port < 65_536]
        if len(ports) != len(each):
            self._problem(where, "must be numbers of ports")
        return ports

    def _read_allowlist(self, document: Mapping[str, JsonValue]) -> list["_Draft"]:
        """The compact form is two rules with the texts of the executor contract."""
        if "allowlist" not in document:
            return []
        given = self._mapping("allowlist", document["allowlist"])
        self._keys("allowlist", given, _ALLOWLIST_KEYS)
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

    def _read_match(self, where: str, rule: Mapping[str, JsonValue], draft: "_Draft") -> None:
        match = rule.get("match", "any")
        if match == "any":
            return
        if match == "otherwise":
            draft.otherwise = True
            draft.form["otherwise"] = True
            if draft.effect is not Effect.ASK:
                self._problem(f"{where}.match", "only an ask can be for what no allow matches")
            return
        where = f"{where}.match"
        given = self._mapping(where, match)
        self._keys(where, given, _MATCH_KEYS)
        if not given:
            self._problem(where, "is empty; say `match: any` if you mean every call")
        if "level" in given:
            levels = self._choices(f"{where}.level", given["level"], list(Level))
            draft.form["level"] = sorted(levels)
            draft.add(f"level {_list(levels)}", conditions.tool_level_is(levels), standing=True)
        if "client" in given:
            wanted = self._flag(f"{where}.client", given["client"])
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

    def _read_url(self, where: str, value: JsonValue, draft: "_Draft") -> None:
        given = self._mapping(where, value)
        self._keys(where, given, _URL_KEYS)
        if not given:
            self._problem(where, "is empty; say `match: any` if you mean every call")
        public = given.get("public")
        if "public" in given and not isinstance(public, bool):
            self._problem(f"{where}.public", "must be true or false")
        self._add_url(
            draft,
            schemes=None
            if "scheme" not in given
            else self._lower(f"{where}.scheme", given["scheme"]),
            hosts=None if "host" not in given else self._hosts(f"{where}.host", given["host"]),
            methods=None
            if "method" not in given
            else self._lower(f"{where}.method", given["method"]),
            ports=None if "port" not in given else self._ports(f"{where}.port", given["port"]),
            public=public if isinstance(public, bool) else None,
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

    def _read_arguments(self, where: str, value: JsonValue, draft: "_Draft") -> None:
        given = self._mapping(where, value)
        if not given:
            self._problem(where, "is empty; say `match: any` if you mean every call")
        for name, wanted in given.items():
            path = self._argument_path(f"{where}.{name}", name)
            each = wanted if isinstance(wanted, list) else [wanted]
            scalars: list[conditions.Scalar] = [
                one for one in each if isinstance(one, str | int | float | bool)
            ]
            if len(scalars) != len(each):
                self._problem(f"{where}.{name}", "must be text, numbers, true or false")
            scalars = self._unfold_scalars(f"{where}.{name}", scalars)
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

    def _read_for(self, where: str, value: JsonValue, draft: "_Draft") -> None:
        given = self._mapping(f"{where}.for", value)
        self._keys(f"{where}.for", given, _FOR_KEYS)
        for key, wanted in given.items():
            if key not in _FOR_KEYS:
                continue
            if key == "level":
                texts = self._choices(f"{where}.for.level", wanted, list(Level))
            else:
                each = wanted if isinstance(wanted, list) else [wanted]
                nobody = [""] if "" in each else []  # a caller that has none
                texts = self._texts(f"{where}.for.{key}", [one for one in each if one != ""])
                texts += nobody
            draft.form[f"for.{key}"] = sorted(texts)
            draft.add(f"for {key} {_list(texts)}", conditions.caller_is(key, texts), standing=True)

    def _read_when(self, where: str, value: JsonValue, draft: "_Draft") -> None:
        given = self._mapping(f"{where}.when", value)
        for name, wanted in given.items():
            spot = f"{where}.when.{name}"
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
        self, where: str, value: JsonValue, *, of: "_Draft | None" = None
    ) -> list[PolicyTest]:
        if not isinstance(value, list):
            self._problem(where, "must be a list")
            return []
        return [self._read_test(f"{where}[{index}]", test, of) for index, test in enumerate(value)]

    def _read_test(self, where: str, value: JsonValue, of: "_Draft | None") -> PolicyTest:
        given = self._mapping(where, value)
        self._keys(where, given, _TEST_KEYS)
        tool = given.get("call", of.tools[0] if of and of.tools else None)
        if not isinstance(tool, str) or not tool or "*" in tool:
            self._problem(f"{where}.call", "must name a tool")
            tool = ""
        caller = self._mapping(f"{where}.as", given.get("as", {}))
        self._keys(f"{where}.as", caller, _FOR_KEYS)
        texts = {
            key: self._text(f"{where}.as.{key}", text)
            for key, text in caller.items()
            if key in _FOR_KEYS and key != "level"
        }
        expect = given.get("expect", of.effect.value if of else None)
        if expect not in list(Effect):
            self._problem(f"{where}.expect", "must be allow, ask or deny")
            expect = Effect.DENY
        effect = Effect(str(expect))
        implied = of.id if of and of.effect is effect else ""
        return PolicyTest(
            where=where,
            call=ToolRequest(
                request_id="test",
                tool=tool,
                args=self._mapping(f"{where}.args", given.get("args", {})),
                caller=Caller(
                    **texts, level=self._level(f"{where}.as.level", caller.get("level", "read"))
                ),
                on_client=self._flag(f"{where}.client", given.get("client", False)),
            ),
            level=self._level(f"{where}.level", given.get("level", "read")),
            expect=effect,
            rule_id=self._text(f"{where}.rule", given["rule"]) if "rule" in given else implied,
        )

    def _check_test_rules(self, tests: Iterable[PolicyTest], drafts: Sequence["_Draft"]) -> None:
        known = {draft.id for draft in drafts} | RESERVED_IDS
        for test in tests:
            if test.rule_id and test.rule_id not in known:
                self._problem(f"{test.where}.rule", f"there is no rule {test.rule_id}")

    def _problem(self, where: str, what: str) -> None:
        self._problems.append(f"{where}: {what}" if where else what)

    def _keys(self, where: str, given: Mapping[str, JsonValue], known: Sequence[str]) -> None:
        for key in given:
            if key not in known:
                spot = f"{where}.{key}" if where else str(key)
                self._problem(spot, f"unknown key (known: {', '.join(known)})")

    def _mapping(self, where: str, value: JsonValue) -> dict[str, JsonValue]:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return dict(value)
        self._problem(where, "must be a mapping with names as keys")
        return {}

    def _text(self, where: str, value: JsonValue) -> str:
        if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.strip():
            return value
        self._problem(where, f"must be text of 1 to {MAX_TEXT} characters")
        return "?"

    def _texts(self, where: str, value: JsonValue) -> list[str]:
        """One text or a list of them, with `$group` unfolded; an empty list matches nothing."""
        each = value if isinstance(value, list) else [value]
        texts: list[str] = []
        for one in each:
            text = self._text(where, one)
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

    def _tools(self, where: str, value: JsonValue) -> tuple[str, ...]:
        tools = self._texts(where, value)
        for tool in tools:
            if not _TOOL.fullmatch(tool):
                self._problem(where, f"{tool!r} is not a tool's name")
        return tuple(dict.fromkeys(tools))

    def _hosts(self, where: str, value: JsonValue) -> list[str]:
        hosts: list[str] = []
        for text in self._texts(where, value):
            try:
                hosts.append(canonical_host_pattern(text))
            except BadUrl as bad:
                self._problem(where, f"{text!r}: {bad}")
        return hosts

    def _lower(self, where: str, value: JsonValue) -> list[str]:
        return [text.lower() for text in self._texts(where, value)]

    def _choices(self, where: str, value: JsonValue, known: Sequence[str]) -> list[str]:
        texts = self._texts(where, value)
        for text in texts:
            if text not in known:
                self._problem(where, f"must be one of {', '.join(known)}")
        return texts

    def _flag(self, where: str, value: JsonValue) -> bool:
        if not isinstance(value, bool):
            self._problem(where, "must be true or false")
        return value is True

    def _level(self, where: str, value: JsonValue) -> Level:
        if value in list(Level):
            return Level(str(value))
        self._problem(where, f"must be one of {', '.join(Level)}")
        return Level.READ

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


def _version(drafts: Sequence[_Draft]) -> str:
    """The same rules have the same version, however the file is laid out."""
    form = json.dumps(
        [draft.canonical() for draft in drafts], sort_keys=True, separators=(",", ":")
    )
    return "sha256:" + hashlib.sha256(form.encode()).hexdigest()


def _list(values: Sequence[object]) -> str:
    shown = ", ".join(str(value) for value in values[:5])
    return f"[{shown}, … {len(values)} in all]" if len(values) > 5 else f"[{shown}]"
