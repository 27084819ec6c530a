"""What every test may ask for, and which of them must not run side by side."""

from typing import Final

import pytest

# Sandboxes and their engine belong to the whole machine, and these tests look at all of it.
ENGINES: Final = (
    "tests/adapters/sandbox/",
    "tests/cli/test_runner_command.py",
    "tests/e2e/test_egress.py",
    "tests/e2e/test_files_through_artifacts.py",
    "tests/e2e/test_runner_check.py",
    "tests/e2e/test_runner_docs.py",
    "tests/execution/test_egress_by_policy.py",
    "tests/execution/test_tools_in_a_sandbox.py",
    "tests/execution/test_transfers.py",
    "tests/hostile/",
    "tests/surfaces/runner/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all tests of a file, and one all those that use an engine."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        group = "engines" if file.startswith(ENGINES) else file
        item.add_marker(pytest.mark.xdist_group(group))
