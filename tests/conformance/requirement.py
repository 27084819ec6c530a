"""What one line of the conformance manifest says. Only data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One thing that a contract asks for, and where it says so.

    Tests name it with `@pytest.mark.requirement(id)`. As long as none does, `issue` is the
    number of the issue that will bring it; once one does, `issue` is left out. `divergence` says
    where we do otherwise than the seed, and why; `superseded_by` names the requirement that took
    the place of one whose id is kept.
    """

    id: str
    source: str
    behaviour: str
    issue: int | None = None
    divergence: str = ""
    superseded_by: str = ""

    @property
    def contract(self) -> str:
        return self.id.split("/")[0]

    @property
    def area(self) -> str:
        return self.id.split("/")[1]
