"""What the ingress contract (seed 001) asks for, of ingress and orchestrator. Only data."""

from typing import Final

from tests.conformance.requirement import Requirement

REQUIREMENTS: Final[tuple[Requirement, ...]] = ()
