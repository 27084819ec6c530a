"""`--file-times`: the CPU and wall seconds of every test file, the longest first."""

import os
from collections import defaultdict
from collections.abc import Generator

import pytest


def _cpu_s() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class FileTimes:
    def __init__(self) -> None:
        self.before = _cpu_s()
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.wall: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = _cpu_s()
        report.user_properties.append((f"{report.when}_cpu_s", now - self.before))
        self.before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.wall[file] += report.duration
        for name, value in report.user_properties:
            if name == f"{report.when}_cpu_s" and isinstance(value, float):
                self.cpu[file] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds per file")
        terminalreporter.write_line(f"{'CPU':>8} {'wall':>8}")
        for file in sorted(self.wall, key=self.wall.__getitem__, reverse=True):
            terminalreporter.write_line(f"{self.cpu[file]:8.1f} {self.wall[file]:8.1f} {file}")
        total = f"{sum(self.cpu.values()):8.1f} {sum(self.wall.values()):8.1f} in all"
        terminalreporter.write_line(total)
