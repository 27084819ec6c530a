"""What is pinned is pinned by hash, and installs from whichever registry a machine has."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = (
    "requirements.lock",
    "requirements-run.lock",
    "requirements-image.lock",
    "requirements-bench.lock",
    "tests/node/package-lock.json",
)
HOST = re.compile(r"\b[a-z+]+://|\bwww\.", re.IGNORECASE)
PINNED = re.compile(r"^(\S+)==.*\n(?:    --hash=.*\n)+", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    """Each package of a lock, with its version and hashes as they stand there."""
    text = (ROOT / lock).read_text()
    found = {match[1]: match[0] for match in PINNED.finditer(text)}
    assert "".join(found.values()) == text
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host(lock: str) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    assert [line.strip() for line in lines if HOST.search(line)] == []


def test_every_npm_package_is_pinned_by_hash() -> None:
    packages = json.loads((ROOT / "tests/node/package-lock.json").read_text())["packages"]
    unpinned = [name for name, told in packages.items() if name and "integrity" not in told]
    assert packages
    assert unpinned == []


@pytest.mark.parametrize("recipe", ["Makefile", "Dockerfile"])
def test_a_lock_is_installed_as_it_stands(recipe: str) -> None:
    # Left to resolve, pip takes the newest release of a package that another one asks for with an
    # extra, finds no hash for it and stops: each new release of such a package would break setup.
    lines = (ROOT / recipe).read_text().splitlines()
    installs = [line for line in lines if " install " in line and "--require-hashes" in line]
    assert installs
    assert [line for line in installs if "--no-deps" not in line] == []


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ]", each)[0] for each in requirements}


def test_the_image_and_make_run_have_what_was_tested_and_none_of_what_tests_it() -> None:
    tested = pins("requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for lock, has in {"image": ("llm", "browser"), "run": ("browser",)}.items():
        installed = pins(f"requirements-{lock}.lock")
        assert installed.items() <= tested.items()
        assert names(project["dependencies"]) <= installed.keys()
        for extra in ("llm", "browser", "dev"):
            assert (names(extras[extra]) <= installed.keys()) == (extra in has), (lock, extra)
        assert not names(extras["dev"]) & installed.keys()
