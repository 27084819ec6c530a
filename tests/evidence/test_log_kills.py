"""kill -9 at any moment: what was acknowledged is in the log, and the log verifies."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from toolgate.evidence.check import ClosedHome, LogReport, check_log
from toolgate.evidence.signer import Ed25519Signer

ROOT = Path(__file__).parents[2]


def check(home: Path) -> LogReport:
    with ClosedHome(home) as closed:
        return check_log(
            closed.log.root,
            key=Ed25519Signer.in_home(home, name="test/log").key,
            read_artifact=closed.artifact,
            journal=closed.filed(),
        )


def record_until_killed(home: Path, *, count: int) -> int:
    """Kill the process when it has acknowledged so many records; return the highest index."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.evidence.recording_process", home],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(count)]
    process.kill()
    acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    process.wait()
    process.stdout.close()
    return max(acknowledged)


@pytest.mark.soak("kills", rounds=24, short=4)  # each checks the whole log again
def test_a_killed_log_verifies_as_it_is_and_goes_on_from_there(tmp_path: Path, rounds: int) -> None:
    sizes = []
    for count in itertools.islice(itertools.cycle((1, 90, 300, 150)), rounds):
        highest = record_until_killed(tmp_path, count=count)
        report = check(tmp_path)
        assert report.problems == []
        with ClosedHome(tmp_path) as closed:
            assert sum(1 for _ in closed.records()) > highest
        sizes.append(report.size)
    assert sizes == sorted(sizes)
    assert sizes[-1] > 300
