"""`toolgate policy`: try a policy before it counts.

Exit codes: 0 it is well, 1 it is not (or calls would be decided otherwise), 2 wrong usage.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import click
from rich.console import Console
from rich.text import Text

from toolgate import settings
from toolgate.cli.terminal import one_line, plain, print_table, table_of, through
from toolgate.core.enums import Level, TrustLevel
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.evidence.check import ClosedHome
from toolgate.policy.compile import compile_policy
from toolgate.policy.decide import decide
from toolgate.policy.document import schema_text
from toolgate.policy.explain import SPELLED, explain
from toolgate.policy.file import default_policy_text, parse_document
from toolgate.policy.history import recorded_calls
from toolgate.policy.lint import TestResult, run_tests, warnings
from toolgate.policy.model import ACTIVE_POLICY, Effect, InvalidPolicy, Policy
from toolgate.policy.refusal_texts import decision_text
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.policy.simulate import Change, RecordedCall, simulate
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.engine import tools_of
from toolgate.tools.engines import web_search
from toolgate.tools.engines.builtin.registry import BUILT_IN
from toolgate.tools.targets.tools import TOOLS as TARGET_TOOLS

KEPT_POLICY: Final = "policy.yaml"  # in a home: what was put in force in the console
STYLES: Final = {Effect.ALLOW: "green", Effect.ASK: "yellow", Effect.DENY: "red"}
CALLER_FIELDS: Final = frozenset(Caller.__struct_fields__)

_path = click.Path(exists=True, dir_okay=False, path_type=Path)
_file = click.argument("file", required=False, type=_path)
_levels = click.Choice([level.value for level in Level])
_effects = click.Choice([effect.value for effect in Effect])
_json = click.option("--json", "as_json", is_flag=True, help="Answer with JSON.")


@click.group()
def command() -> None:
    """Show, check, test, explain and simulate policies.

    FILE is a policy in YAML. Without it: the one in force here, which is POLICY_FILE, else the one
    that the console has put in force, else the one that ships with Toolgate.
    """


@command.command()
@_file
@_json
def show(file: Path | None, *, as_json: bool) -> None:
    """Print the policy as it is written, to start one of your own from."""
    path = file or _in_force()
    text = _text(path, as_json=as_json)
    if as_json:
        _print_json({"policy": _named(path), "text": text})
    else:
        click.echo(text, nl=False)


@command.command()
def schema() -> None:
    """Print the JSON Schema of a policy file, for editors."""
    click.echo(schema_text(), nl=False)


@command.command()
@_file
@_json
def check(file: Path | None, *, as_json: bool) -> None:
    """Check that FILE is well formed and its own tests pass; warn of allows that run other programs."""
    path = file or _in_force()
    policy = _read(path, as_json=as_json)
    failed = [str(result) for result in _results(policy) if not result.passed]
    if failed:
        _refuse(failed, as_json=as_json)
    counts = {"rules": len(policy.rules), "tests": len(policy.tests)}
    name = _named(path)
    warned = warnings(policy)
    if as_json:
        found = {"ok": True, "policy": name, "version": policy.version, **counts}
        _print_json({**found, "warnings": warned})
        return
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(
        Text("ok", "green"),
        f" {counts['rules']} rules, {counts['tests']} tests pass: {plain(name)}",
        soft_wrap=True,
    )
    console.print(f"version {policy.version}", soft_wrap=True)
    for warning in warned:
        console.print(Text("warning", "yellow"), plain(warning), soft_wrap=True)


@command.command("test")
@_file
@_json
def run_embedded(file: Path | None, *, as_json: bool) -> None:
    """Run the tests that FILE carries."""
    results = _results(_read(file or _in_force(), as_json=as_json))
    failed = sum(not result.passed for result in results)
    if as_json:
        rows = [_result_row(result) for result in results]
        passed = len(rows) - failed
        _print_json({"ok": not failed, "passed": passed, "failed": failed, "tests": rows})
    else:
        table = table_of("", "test", "tool", "expected", "got", "by")
        for result in results:
            table.add_row(
                Text("pass", "green") if result.passed else Text("FAIL", "bold red"),
                Text(plain(result.test.where)),
                Text(plain(result.test.call.tool)),
                _styled(result.test.expect),
                _styled(result.decision.effect),
                Text(plain(result.decision.rule_id)),
            )
        print_table(table)
        click.echo(f"{len(results) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


@command.command("explain")
@_file
@click.option("--tool", required=True, help="The tool that is called.")
@click.option("--args", "arguments", default="{}", help="Its arguments, as a JSON object.")
@click.option("--as", "who", multiple=True, metavar="NAME=VALUE", help="Who calls: role=dev, ...")
@click.option("--level", type=_levels, help="The tool's. [its own; write where it is unknown]")
@click.option("--expect", type=_effects, help="Exit 1 unless this is decided.")
@_json
def explain_call(
    file: Path | None,
    *,
    tool: str,
    arguments: str,
    who: tuple[str, ...],
    level: str | None,
    expect: str | None,
    as_json: bool,
) -> None:
    """Say what FILE decides of one call, and why each of its rules does or does not match."""
    policy = _read(file or _in_force(), as_json=as_json)
    call = ToolRequest("explain", tool, _arguments(arguments), caller=_caller(who))
    own = Level(level) if level else _level_of(tool)
    explanation = explain(policy, call, level=own, parse_shell=TreeSitterShellParser())
    decision = explanation.decision
    if as_json:
        _print_json(
            {
                **decision._asdict(),
                "text": decision_text(tool, decision),
                "rules": [asdict(each) for each in explanation.traces],
            }
        )
    else:
        console = Console(highlight=False)
        console.print(
            _styled(decision.effect), Text(plain(decision_text(tool, decision))), soft_wrap=True
        )
        if decision.detail:
            console.print(Text(plain(f"  {decision.detail[:SPELLED]}")), soft_wrap=True)
        table = table_of("", "rule", "effect", "because")
        for trace in explanation.traces:
            mark = Text("yes", "bold") if trace.matched else Text("no", "dim")
            table.add_row(
                mark, Text(plain(trace.rule_id)), _styled(trace.effect), Text(plain(trace.why))
            )
        if explanation.traces:
            print_table(table)
        else:
            click.echo(f"No rule names {plain(tool)}.")
    sys.exit(0 if expect in {None, decision.effect} else 1)


@command.command("simulate")
@click.argument("candidate", type=_path)
@click.option("--calls", type=click.File("r", encoding="utf-8"), help="JSON lines, or - for stdin.")
@click.option("--home", type=click.Path(path_type=Path), help="Whose calls. [TOOLGATE_HOME]")
@click.option("--against", type=_path, help="Compare with this policy, not with what is recorded.")
@_json
def simulate_calls(
    candidate: Path,
    *,
    calls: IO[str] | None,
    home: Path | None,
    against: Path | None,
    as_json: bool,
) -> None:
    """Decide the calls of the past again, by CANDIDATE, and show what would change.

    They are taken from the evidence under --home, where secrets have been removed, or from --calls:
    each line an object with tool, args, level, caller, and what was decided then (effect, rule_id).
    Exits 1 where any call would be decided otherwise.
    """
    policy = _read(candidate, as_json=as_json)
    base = None if against is None else _read(against, as_json=as_json)
    found = _from_home(home) if calls is None else _from_lines(calls)
    recorded = list(through(found, "Reading past calls"))
    if base is not None:
        recorded = [_decided_again(each, base) for each in recorded]
    again = through(recorded, "Deciding them again", total=len(recorded))
    changes = list(simulate(again, policy, parse_shell=TreeSitterShellParser()))
    if as_json:
        rows = [_change_row(change) for change in changes]
        _print_json({"calls": len(recorded), "changed": len(rows), "changes": rows})
    else:
        table = table_of("tool", "arguments", "was", "by", "would be", "by")
        for change in changes:
            call = change.recorded.call
            table.add_row(
                Text(one_line(call.tool)),
                Text(plain(json.dumps(call.args, ensure_ascii=False)[:120])),
                _styled(change.recorded.effect),
                Text(plain(change.recorded.rule_id)),
                _styled(change.decision.effect),
                Text(plain(change.decision.rule_id)),
            )
        if changes:
            print_table(table)
        loosened = sum(change.loosens for change in changes)
        click.echo(f"{len(recorded)} calls, {len(changes)} changed, {loosened} of them loosened")
    sys.exit(1 if changes else 0)


def _in_force() -> Path | None:
    """The policy that a Toolgate with these settings decides by; None: the one that ships."""
    given = settings.load()
    kept = given.home / KEPT_POLICY
    return Path(given.policy_file) if given.policy_file else kept if kept.exists() else None


def _named(path: Path | None) -> str:
    return "the policy that ships" if path is None else str(path)


def _read(file: Path | None, *, as_json: bool) -> Policy:
    text = _text(file, as_json=as_json)
    try:
        return compile_policy(parse_document(text, name=ACTIVE_POLICY), name=ACTIVE_POLICY)
    except InvalidPolicy as bad:
        _refuse(bad.problems, as_json=as_json)


def _text(file: Path | None, *, as_json: bool) -> str:
    try:
        return default_policy_text() if file is None else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as bad:
        _refuse([str(bad)], as_json=as_json)


def _refuse(problems: Sequence[str], *, as_json: bool) -> NoReturn:
    if as_json:
        _print_json({"ok": False, "problems": list(problems)})
    else:
        console = Console(stderr=True, highlight=False)
        for problem in problems:
            console.print(
                Text("refused ", "bold red"), Text(plain(problem)), sep="", soft_wrap=True
            )
    sys.exit(1)


def _results(policy: Policy) -> list[TestResult]:
    return run_tests(policy, parse_shell=TreeSitterShellParser())


def _result_row(result: TestResult) -> dict[str, object]:
    test = result.test
    asked = {"where": test.where, "tool": test.call.tool, "expect": test.expect}
    return {**asked, "passed": result.passed, **result.decision._asdict()}


def _change_row(change: Change) -> dict[str, object]:
    recorded = change.recorded
    return {
        "tool": recorded.call.tool,
        "args": recorded.call.args,
        "was": {"effect": recorded.effect, "rule_id": recorded.rule_id},
        "would_be": change.decision._asdict(),
        "text": decision_text(recorded.call.tool, change.decision),
        "loosens": change.loosens,
    }


def _from_home(home: Path | None) -> Iterator[RecordedCall]:
    with ClosedHome(home if home is not None else settings.load().home) as closed:
        yield from recorded_calls(closed)


def _from_lines(calls: IO[str]) -> Iterator[RecordedCall]:
    for number, line in enumerate(_text_lines(calls), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            who = [f"{key}={value}" for key, value in given.get("caller", {}).items()]
            tool, rule_id = given["tool"], given.get("rule_id", "")
            if not isinstance(tool, str) or not isinstance(rule_id, str):
                raise TypeError("tool and rule_id are texts")
            yield RecordedCall(
                ToolRequest(f"line-{number}", tool, dict(given.get("args", {})), _caller(who)),
                Level(given["level"]) if "level" in given else _level_of(tool),
                Effect(given["effect"]),
                rule_id,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as bad:
            raise click.UsageError(f"--calls line {number} is not a recorded call: {bad}") from bad


def _level_of(tool: str) -> Level:
    """The level of a tool; `write` if nobody has described it, as at the gate."""
    return _levels_of_ours().get(tool, Level.WRITE)


@cache
def _levels_of_ours() -> dict[str, Level]:
    built_in = (each.tool for each in BUILT_IN.values())
    in_browser = tools_of(load_templates(), TrustLevel.REMOTE)
    here = (*built_in, *in_browser, *TARGET_TOOLS, web_search.TOOL)
    return {tool.name: tool.level for tool in here}


def _text_lines(file: IO[str]) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as bad:
        raise click.UsageError(f"--calls holds no text: {bad}") from bad


def _decided_again(recorded: RecordedCall, base: Policy) -> RecordedCall:
    parse_shell = TreeSitterShellParser()
    then = decide(base, recorded.call, level=recorded.level, parse_shell=parse_shell)
    return RecordedCall(recorded.call, recorded.level, then.effect, then.rule_id)


def _arguments(text: str) -> dict[str, JsonValue]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise click.UsageError(f"--args is not JSON: {bad}") from bad
    if not isinstance(value, dict):
        raise click.UsageError("--args is not a JSON object")
    return value


def _caller(who: Sequence[str]) -> Caller:
    given: dict[str, Any] = {}
    for each in who:
        name, equals, value = each.partition("=")
        if not equals or name not in CALLER_FIELDS:
            raise click.UsageError(f"{each!r}: give one of {', '.join(sorted(CALLER_FIELDS))}")
        given[name] = value
    try:
        return Caller(**{**given, "level": Level(given.get("level", Level.READ))})
    except ValueError as bad:
        raise click.UsageError(str(bad)) from bad


def _styled(effect: Effect) -> Text:
    return Text(effect.value, STYLES[effect])


def _print_json(value: object) -> None:
    click.echo(json.dumps(value))
