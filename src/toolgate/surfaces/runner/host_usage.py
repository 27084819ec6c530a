"""How busy this machine is, in percent."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    cpu_percent: float
    memory_percent: float
    disk_percent: float


def machine_usage(folder: Path) -> Usage:
    """`folder` says which disk; the processor's figure is the last minute's load."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    disk = shutil.disk_usage(folder)
    return Usage(
        cpu_percent=_percent(load),
        memory_percent=_percent(_memory_in_use()),
        disk_percent=_percent(disk.used / disk.total if disk.total else 0.0),
    )


def _memory_in_use() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
    }
    return 1 - sizes.get("MemAvailable", 0) / max(1, sizes.get("MemTotal", 1))


def _percent(share: float) -> float:
    return round(min(max(share, 0.0), 1.0) * 100, 1)
