"""The conditions of a rule, as functions of the facts of a call.

Each answers NO, YES or MAYBE. MAYBE is for what cannot be told (a URL that can be read in two ways,
a word that only the shell knows): it never serves an allow, and always a deny or an ask.
"""

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Final, cast

from toolgate.core.globs import one_of
from toolgate.core.tools import JsonValue
from toolgate.policy.inputs import EvaluationError, Facts, Hidden, argument_at
from toolgate.policy.model import MAYBE, NO, YES, Answer, Check, CommandRule
from toolgate.policy.paths import PathPattern
from toolgate.policy.shell import Argv, Command, CommandPattern, base_name
from toolgate.policy.urls import HostSet, PolicyUrl, is_public

Scalar = None | bool | int | float | str


def caller_is(attribute: str, patterns: Sequence[str]) -> Check:
    """`for`: who asks, as the server knows them."""
    get = attrgetter(attribute)
    matches = one_of(patterns)
    return lambda facts: YES if matches(get(facts.call.caller)) else NO


def tool_level_is(levels: Collection[str]) -> Check:
    wanted = frozenset(levels)
    return lambda facts: YES if facts.level in wanted else NO


def runs_on_client(wanted: bool) -> Check:
    """`client`: a device of the caller's session runs the tool."""
    return lambda facts: YES if facts.call.on_client is wanted else NO


def tool_is_not(tool: str) -> Check:
    return lambda facts: NO if facts.call.tool == tool else YES


def path_matches(patterns: Sequence[PathPattern]) -> Check:
    return lambda facts: _all_paths(facts.paths, patterns)


def cwd_matches(patterns: Sequence[PathPattern]) -> Check:
    return lambda facts: _all_paths([facts.cwd], patterns)


def _all_paths(paths: Sequence[tuple[str, ...] | None], patterns: Sequence[PathPattern]) -> Answer:
    """YES where every path is one of these, MAYBE where any is or cannot be told, NO otherwise."""
    hits = sum(
        path is not None and any(pattern.matches(path) for pattern in patterns) for path in paths
    )
    if not patterns or not paths:
        return NO
    if hits == len(paths):
        return YES
    unsure = any(
        path is None or any(pattern.may_match(path) for pattern in patterns) for path in paths
    )
    return MAYBE if unsure else NO


def url_matches(
    *,
    schemes: Collection[str] | None,
    hosts: HostSet | None,
    ports: Collection[int] | None,
    methods: Collection[str] | None,
    public: bool | None,
) -> Check:
    """`match.url`: what is left out does not matter. User info never serves an allow."""

    wanted = (schemes, hosts and hosts.patterns, ports, methods)
    if any(each is not None and not each for each in wanted):
        return lambda _: NO

    def one(url: PolicyUrl | None) -> Answer:
        if url is None:
            return MAYBE
        fits = (
            (schemes is None or url.scheme in schemes)
            and (hosts is None or url.host in hosts)
            and (ports is None or url.port in ports)
            and (public is None or is_public(url.host) is public)
        )
        if not fits:
            return NO
        return MAYBE if url.has_user else YES

    def check(facts: Facts) -> Answer:
        if methods is not None:
            method = facts.args.get("method") or "GET"
            if not isinstance(method, str):
                raise EvaluationError("the method is not text")
            if method.upper() not in methods:
                return NO
        urls = facts.urls
        if len(urls) == 1:
            return one(urls[0])
        answers = {one(url) for url in urls}
        if answers == {YES}:
            return YES
        return MAYBE if answers - {NO} else NO

    return check


def argument_matches(path: Sequence[str], wanted: Sequence[Scalar]) -> Check:
    """`match.arguments`: a text by its patterns, a number or truth value by equality."""
    texts = one_of([each for each in wanted if isinstance(each, str)])
    others = [each for each in wanted if not isinstance(each, str)]
    kinds = {_kind(each) for each in wanted}

    def check(facts: Facts) -> Answer:
        try:
            value = argument_at(facts.args, path)
        except Hidden:
            return MAYBE if wanted else NO
        if value is None:
            return NO
        if isinstance(value, str):
            if texts(value):
                return YES
            return MAYBE if others else NO  # a tool may read "1" as 1
        if isinstance(value, list | dict):
            return MAYBE if wanted else NO
        if any(_same(value, each) for each in others):
            return YES
        return MAYBE if kinds - {_kind(value)} else NO  # as it may read 1 as true

    return check


_ORDERED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
OPERATORS: Final = (">=", "<=", "==", "!=", ">", "<", "not in", "in", "contains", "exists")


def comparison(path: Sequence[str], op: str, operand: JsonValue) -> Check:
    """`when`: one comparison. An argument that is absent satisfies nothing (`!=` and `not in`: perhaps).

    Kinds that cannot be compared are an error, and an error denies.
    """
    name = ".".join(path)

    def check(facts: Facts) -> Answer:
        try:
            value = argument_at(facts.args, path)
        except Hidden:
            return MAYBE
        if op == "exists":
            return YES if (value is not None) is operand else NO
        if value is None:
            return MAYBE if op in {"!=", "not in"} else NO
        return YES if _compare(name, value, op, operand) else NO

    return check


def _compare(name: str, value: JsonValue, op: str, operand: JsonValue) -> bool:
    if op in _ORDERED:
        left, right = _number(name, value), _number(name, operand)
        return _ORDERED[op](left, right)
    if op in {"==", "!="}:
        return _equal(name, value, operand) is (op == "==")
    if op == "contains":
        if isinstance(value, str) and isinstance(operand, str):
            return operand in value
        if isinstance(value, list):
            return any(_same(each, operand) for each in value)
        raise EvaluationError(f"args.{name} holds nothing to look for {operand!r} in")
    if not isinstance(operand, list):
        raise EvaluationError(f"args.{name} is compared with no list")
    alike = [each for each in operand if _kind(each) == _kind(value)] or operand
    return any(_equal(name, value, each) for each in alike) is (op == "in")


def _number(name: str, value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(f"args.{name} is not a number")
    if isinstance(value, float) and math.isnan(value):  # neither more nor less than anything
        raise EvaluationError(f"args.{name} is not a number")
    return value


def _equal(name: str, value: JsonValue, operand: JsonValue) -> bool:
    if _kind(value) != _kind(operand):
        raise EvaluationError(f"args.{name} cannot be compared with {operand!r}")
    return value == operand


def _same(value: JsonValue, other: JsonValue) -> bool:
    """Equal, and of one kind: 7 is 7.0, but 1 is not true."""
    return _kind(value) == _kind(other) and value == other


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def command_rule(patterns: Sequence[CommandPattern]) -> CommandRule:
    """Patterns found by their program, so that a long list costs no more than its own program's."""
    whole = frozenset(pattern.argv for pattern in patterns if pattern.argv is not None)
    by_program: dict[str, list[CommandPattern]] = {}
    anywhere: list[CommandPattern] = []
    for pattern in patterns:
        if pattern.program:
            by_program.setdefault(pattern.program, []).append(pattern)
        else:
            anywhere.append(pattern)
    open_ended = {
        program: [pattern for pattern in found if pattern.argv is None]
        for program, found in by_program.items()
    }

    def covers(command: Argv) -> bool:
        # An allow names its program, so `anywhere` is empty for one.
        return command in whole or any(
            pattern.matches(command) for pattern in open_ended.get(command[0], ())
        )

    def may_cover(command: Command) -> bool:
        first = command[0]
        if not isinstance(first, str):
            return bool(patterns)
        names = (first, base_name(first)) if "/" in first else (first,)
        if not anywhere and by_program.keys().isdisjoint(names):
            return False
        if _ONLY_TEXT.issuperset(map(type, command)):
            if any((name, *command[1:]) in whole for name in names):
                return True
            text, found = "\0".join(cast("Argv", command)), open_ended
        else:
            text, found = "", by_program
        for group in (anywhere, *[found.get(name, ()) for name in names]):
            for pattern in group:
                if (not text or pattern.needle in text) and pattern.may_match(command):
                    return True
        return False

    return CommandRule(tuple(pattern.text for pattern in patterns), covers, may_cover)


_ONLY_TEXT: Final = frozenset({str})
