"""What is pinned is pinned by hash, and installs from whichever registry a machine has."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-bench.lock", "tests/node/package-lock.json")
HOST = re.compile(r"\b[a-z+]+://|\bwww\.", re.IGNORECASE)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host(lock: str) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    assert [line.strip() for line in lines if HOST.search(line)] == []


def test_every_npm_package_is_pinned_by_hash() -> None:
    packages = json.loads((ROOT / "tests/node/package-lock.json").read_text())["packages"]
    unpinned = [name for name, told in packages.items() if name and "integrity" not in told]
    assert packages
    assert unpinned == []
