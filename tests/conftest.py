"""What holds for the whole of a test run."""

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import selection
from tests.support.engines import engine
from tests.support.file_times import FileTimes
from tests.support.soak import PARTS, SummaryWriter, part_of, rounds_of, soaking

__all__ = ["engine"]  # one Docker engine for all tests of a worker

TOLD_LINES = 8  # of an error, from its end
ROOT = Path(__file__).parents[1]

# Continuous integration as root has every part that `make test` installs: there a skip is a failure.
NOTHING_MISSING = bool(os.environ.get("CI")) and os.getuid() == 0

# A slow machine is no failure. A soak draws other examples each time, and prints how to repeat one.
SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "test", max_examples=40, derandomize=True, deadline=None, suppress_health_check=SLOW
)
settings.register_profile(
    "soak", max_examples=400, deadline=None, suppress_health_check=SLOW, print_blob=True
)
settings.load_profile("soak" if soaking() else "test")

# No test writes into the user's own state directory, nor does a process that a test starts.
_state = tempfile.TemporaryDirectory(prefix="toolgate-state-")
os.environ["XDG_STATE_HOME"] = _state.name

_failed: list[str] = []
_broken: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("toolgate")
    group.addoption(
        "--fast", action="store_true", help="only files that need no system package and are short"
    )
    group.addoption("--soak", choices=PARTS, help="only the tests of one part of the soak")
    group.addoption("--soak-summary", type=Path, help="a file for the numbers of the soak, as JSON")
    group.addoption("--file-times", action="store_true", help="print the seconds of every file")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.soak_summary:
        config.pluginmanager.register(SummaryWriter(config.option.soak_summary))
    if config.option.file_times:
        config.pluginmanager.register(FileTimes())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.option.fast or not collection_path.is_relative_to(ROOT):
        return None
    return None if selection.is_fast(collection_path.relative_to(ROOT).as_posix()) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files come first, so that no worker starts one when the others have nothing left."""
    if config.option.soak:
        belongs = {item: part_of(item) == config.option.soak for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not belongs[item]])
        items[:] = [item for item in items if belongs[item]]
    items.sort(key=lambda item: selection.order(item.nodeid.partition("::")[0]))


@pytest.fixture(autouse=True)
def log_level() -> None:
    """Every test starts at the default level: a Toolgate in this process sets the root logger's."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def rounds(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> int:
    """The number of times a test marked `soak(part, rounds=…)` repeats itself in this run."""
    number = rounds_of(request.node)
    record_property("rounds", number)
    return number


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: while one waits for a page or a deadline, another works."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Thousands of collected tests are here to stay: a collection of garbage need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected = hasattr(report, "wasxfail")
    if NOTHING_MISSING and report.skipped and not expected:
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {report.longreprtext}"
    return report


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
