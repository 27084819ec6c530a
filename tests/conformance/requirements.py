"""The conformance manifest: every requirement of the five contracts, in one tuple.

The data is in one module per contract beside this one; `docs/conformance.md` is drawn from it.
"""

from typing import Final

from tests.conformance import browser, executor, gateway, ingress, runner
from tests.conformance.requirement import Requirement

__all__ = ["CONTRACTS", "REQUIREMENTS", "Requirement"]

CONTRACTS: Final = {
    "000": "Runner",
    "001": "Ingress and orchestrator",
    "002": "Gateway",
    "003": "Executor",
    "004": "Browser tasks",
}

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    *runner.REQUIREMENTS,
    *ingress.REQUIREMENTS,
    *gateway.REQUIREMENTS,
    *executor.REQUIREMENTS,
    *browser.REQUIREMENTS,
)
