"""Draw docs/conformance.md from the manifest and the tests' marks.

--check   fail if the page is stale
--open    list what no test proves yet
--settle  drop `issue=` from requirements that now have a test, then draw the page
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conformance.marks import Mark, find_marks
from tests.conformance.requirements import CONTRACTS, REQUIREMENTS, Requirement

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "conformance.md"
DATA = ROOT / "tests" / "conformance"
ISSUE_ALONE = re.compile(r"\s*issue=\d+,\s*")

Proofs = dict[str, list[str]]


def proofs_by_requirement(marks: Iterable[Mark]) -> Proofs:
    """The tests that carry each requirement's mark, each named once."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for mark in marks:
        if mark.test is not None:
            found[mark.requirement].add(mark.test)
    return {name: sorted(tests) for name, tests in found.items()}


def page(requirements: Sequence[Requirement], proofs: Proofs) -> str:
    """The whole of docs/conformance.md."""
    lines = [
        "# Conformance",
        "",
        "What the five contracts ask for, and the tests that prove it. Drawn by `make docs` from",
        "`tests/conformance/` and the tests' `requirement` marks; do not edit. The contracts themselves are in",
        "[contracts](contracts/): the seeds, and the specs that settle what the seeds leave open.",
        "",
        *_totals(requirements, proofs),
        "",
        "## Index",
        "",
        *_index(requirements, proofs),
    ]
    for contract, areas in _by_contract_and_area(requirements).items():
        lines += ["", f"## {contract} {CONTRACTS[contract]}"]
        for area, members in areas.items():
            lines += [
                "",
                f"### {contract}/{area}",
                "",
                "| id | source | behaviour | tests |",
                "|---|---|---|---|",
            ]
            lines += [_row(member, proofs) for member in members]
    return "\n".join([*lines, ""])


def _totals(requirements: Sequence[Requirement], proofs: Proofs) -> list[str]:
    rows = ["| contract | requirements | proven | open |", "|---|---|---|---|"]
    for contract, name in CONTRACTS.items():
        rows.append(
            _total(
                f"{contract} {name}", [r for r in requirements if r.contract == contract], proofs
            )
        )
    return [*rows, _total("all", requirements, proofs)]


def _total(name: str, members: Sequence[Requirement], proofs: Proofs) -> str:
    proven = sum(member.id in proofs for member in members)
    return f"| {name} | {len(members)} | {proven} | {len(members) - proven} |"


def _index(requirements: Sequence[Requirement], proofs: Proofs) -> list[str]:
    lines = []
    for contract, areas in _by_contract_and_area(requirements).items():
        links = [
            f"[{area}](#{contract}{area}) {sum(member.id in proofs for member in members)}/{len(members)}"
            for area, members in areas.items()
        ]
        lines.append(f"- **{contract} {CONTRACTS[contract]}** (proven/all): {', '.join(links)}")
    return lines


def _by_contract_and_area(
    requirements: Iterable[Requirement],
) -> dict[str, dict[str, list[Requirement]]]:
    grouped: dict[str, dict[str, list[Requirement]]] = {}
    for requirement in requirements:
        areas = grouped.setdefault(requirement.contract, {})
        areas.setdefault(requirement.area, []).append(requirement)
    return grouped


def _row(requirement: Requirement, proofs: Proofs) -> str:
    tests = "<br>".join(f"`{test}`" for test in proofs.get(requirement.id, []))
    cells = [
        f"`{requirement.id}`",
        requirement.source,
        " ".join(
            (
                requirement.behaviour,
                *([f"*Divergence:* {requirement.divergence}"] if requirement.divergence else []),
                *(
                    [f"*Superseded by* `{requirement.superseded_by}`"]
                    if requirement.superseded_by
                    else []
                ),
            )
        ),
        tests or f"open, issue {requirement.issue}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def settle(source: str, proven: Collection[str]) -> str:
    """The data module's text without `issue=` on the requirements that are proven.

    Only lines that hold nothing but the keyword are taken out.
    """
    lines = source.splitlines(keepends=True)
    gone = {number for name, number in _issue_lines(source) if name in proven}
    for number in sorted(gone):
        if not ISSUE_ALONE.fullmatch(lines[number - 1]):
            raise SystemExit(
                f"line {number}: put `issue=` on a line of its own (run `make format`)"
            )
    return "".join(line for number, line in enumerate(lines, start=1) if number not in gone)


def _issue_lines(source: str) -> Iterator[tuple[str, int]]:
    """Each open requirement's id, and the line on which its issue stands."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call):
            members = {word.arg: word.value for word in call.keywords}
            name, issue = members.get("id"), members.get("issue")
            if isinstance(name, ast.Constant) and isinstance(issue, ast.Constant):
                yield str(name.value), issue.lineno


def settle_files(proven: Collection[str]) -> list[str]:
    """Settle every data module; the names of those that changed."""
    changed = []
    for path in sorted(DATA.glob("*.py")):
        before = path.read_text(encoding="utf-8")
        after = settle(before, proven)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path.name)
    return changed


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--settle", action="store_true")
    chosen = parser.parse_args(arguments)
    proofs = proofs_by_requirement(find_marks(ROOT / "tests", root=ROOT))
    drawn = page(REQUIREMENTS, proofs)
    if chosen.open:
        for requirement in REQUIREMENTS:
            if requirement.id not in proofs:
                print(f"{requirement.id}  (issue {requirement.issue})  {requirement.behaviour}")
        return
    if chosen.check:
        if not OUT.exists() or OUT.read_text(encoding="utf-8") != drawn:
            sys.exit("docs/conformance.md is stale: run `make docs`")
        return
    if chosen.settle:
        for name in settle_files(proofs):
            print(f"settled {name}")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
