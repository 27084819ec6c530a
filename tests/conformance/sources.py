"""Whether the place that a requirement cites is really in the contract's text.

A source is `seed 004 §4.4` (a numbered section), or `seed 001, hello` and `spec browser.md, cancel`
(a heading, list item, table row or paragraph that begins with these words).
"""

import re
from pathlib import Path

TEXTS = Path("docs/contracts")
CITATION = re.compile(
    r"(?:seed (?P<seed>\d{3})|spec (?P<spec>\w+\.md))(?: §(?P<section>[\d.]+)|, (?P<place>.+))"
)
LEADING = re.compile(r"^[#>|\-\s]*(?:\[ \] )?(?:\d+\. )?")
QUOTING = re.compile(r"[`*]")


def fault(source: str, *, root: Path) -> str | None:
    """What is wrong with the citation, or None."""
    cited = CITATION.fullmatch(source)
    if cited is None:
        return "is not of the form 'seed 004 §4.4', 'seed 001, words' or 'spec browser.md, words'"
    text = _text(cited["seed"], cited["spec"], root=root)
    if text is None:
        return "names no text below docs/contracts"
    if cited["section"]:
        found = re.search(rf"^#+ {re.escape(cited['section'])}[. ]", text, flags=re.MULTILINE)
        return None if found else "names no section of that text"
    lines = (QUOTING.sub("", LEADING.sub("", QUOTING.sub("", line))) for line in text.splitlines())
    return (
        None
        if any(line.startswith(cited["place"]) for line in lines)
        else "begins no line of that text"
    )


def _text(seed: str | None, spec: str | None, *, root: Path) -> str | None:
    found = (
        list((root / TEXTS / "seeds").glob(f"{seed}_*"))
        if seed
        else [root / TEXTS / "spec" / str(spec)]
    )
    return found[0].read_text(encoding="utf-8") if found and found[0].is_file() else None
