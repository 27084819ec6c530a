"""What holds for the whole of a test run."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest

TOLD_LINES = 8  # of an error, from its end

_failed: list[str] = []
_broken: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: while one waits for a page or a deadline, another works."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Thousands of collected tests are here to stay: a collection of garbage need not look at them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(f"{report.nodeid} ({report.when})\n{_end_of(report.longreprtext)}")


def pytest_internalerror(excrepr: object) -> None:
    _broken.append(_end_of(str(excrepr)))


@pytest.hookimpl(wrapper=True)
def pytest_unconfigure(config: pytest.Config) -> Iterator[None]:
    """Where pytest itself breaks it prints no summary: then say at the end what had gone wrong."""
    yield
    if _broken and not hasattr(config, "workerinput"):
        told = ["Failed before pytest broke:", *_failed, "Broke with:", _broken[0]]
        sys.stderr.write("\n".join(["", *told, ""]))


def _end_of(text: str) -> str:
    return "\n".join(text.splitlines()[-TOLD_LINES:])
