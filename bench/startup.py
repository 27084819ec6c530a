"""What it costs to ask for help, to start, and to wait."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.measure import Result, table

PROGRAM: Final = str(Path(sys.executable).with_name("toolgate"))
ROUNDS: Final = 9
IDLE_S: Final = 2.0
PORTS: Final = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT")


def help_cpu() -> float:
    """Seconds of CPU of one `toolgate --help`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PROGRAM, "--help"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def up(home: Path) -> tuple[float, float]:
    """Seconds until `toolgate up` is ready, and its resident MB after a while of nothing."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [PROGRAM, "up"],
        env={**os.environ, **dict.fromkeys(PORTS, "0"), "TOOLGATE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["ready"]
    ready = time.perf_counter() - started
    time.sleep(IDLE_S)
    status = Path(f"/proc/{process.pid}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    process.terminate()
    process.wait()
    return ready, resident


def main() -> list[str]:
    cpu = statistics.median(help_cpu() for _ in range(ROUNDS))
    with tempfile.TemporaryDirectory() as home:
        starts = [up(Path(home) / str(n)) for n in range(ROUNDS)]
    ready = statistics.median(seconds for seconds, _ in starts)
    resident = statistics.median(megabytes for _, megabytes in starts)
    return table(
        "startup",
        [
            Result("toolgate --help: CPU", f"{cpu:.3f} s", "<= 0.3 s", cpu <= 0.3),
            Result("toolgate up: ready", f"{ready:.2f} s", "<= 1.5 s", ready <= 1.5),
            Result("toolgate up: idle RSS", f"{resident:.0f} MB", "<= 90 MB", resident <= 90),
        ],
    )


if __name__ == "__main__":
    print("\n".join(main()))
