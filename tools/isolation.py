"""Attack every sandbox of this machine and write what came of it to docs/security/isolation.md.

Needs root, bubblewrap and Docker's programs. About two minutes.
"""

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hostile.battery import Row, outer_limit, run_battery  # noqa: E402
from tests.hostile.places import Place, PlainPlace, SandboxPlace  # noqa: E402
from tests.support import docker_engine  # noqa: E402
from toolgate.sandbox import cgroups  # noqa: E402
from toolgate.sandbox.bwrap import BwrapSandbox  # noqa: E402
from toolgate.sandbox.docker import DockerSandbox  # noqa: E402
from toolgate.sandbox.sandbox import Sandbox, SessionKey  # noqa: E402

PAGE: Final = ROOT / "docs" / "security" / "isolation.md"
KEY: Final = SessionKey("hostile", "battery", "session")

HEAD: Final = """\
# What the sandboxes keep in

Drawn by `tools/isolation.py`, which runs the attacks of `tests/hostile/cases.py` against each sandbox
of a machine and, beside them, against a plain subprocess: another user, rlimits, a deadline, killpg.

The judge is the host: it looks for processes that survive, memory and processor time that are used,
files that appear, listeners that are reached, and a canary that only the host knows. After each
attack an ordinary command must work in the same session. Around everything is one more limit of
processes, so that an attack that gets out of a plain subprocess does not take the machine with it.

A dot is an attack that was kept in. The same attacks run in the tests: for the sandboxes nothing may
get out, and for the plain subprocess the judges must see what does.
"""

TAIL: Final = """
## What was not run for real

The table is from the one machine above. Not run on a kernel of its own, and so proven on paper only:

- **cgroup v2 with limits.** Paths, delegation, the names and values of the limits, and that a group without
  one of them is refused, are tested on a directory laid out as the kernel does it; the kill of a whole group by
  one write is tested on a real v2 tree, which has no controllers on a machine that uses v1.
- **aarch64.** The system-call filter is assembled for both machines and both programs are run, call by call, by
  an interpreter in the tests; no aarch64 kernel has loaded it.
- **gVisor** (`--runtime runsc`): it is passed to the engine as any runtime; no runsc was there to try.
- **Without root**: bubblewrap then runs as the user who started it, in a cgroup that was delegated; the attacks
  were run as root, where each session has a uid of its own.
- **An image of one's own** (`--image`): the containers here have this machine's /usr, read-only.

The runner tries its sandbox when it starts and does not start where the isolation is not there: on such machines too.
"""


async def attack_sandbox(make: str, url: str) -> list[Row]:
    async with outer_limit() as (_, name):
        sandbox: Sandbox
        if make == "bwrap":
            sandbox = BwrapSandbox(groups=cgroups.find("inner", below=name))
        else:
            sandbox = DockerSandbox(url=url, cgroup_parent=f"/{name}")
        rows = await _attack(SandboxPlace(sandbox, KEY))
        await sandbox.close()
    docker_engine.remove_cgroup(name)
    return rows


async def attack_plain() -> list[Row]:
    async with outer_limit() as (group, _):
        return await _attack(PlainPlace(group))


async def _attack(place: Place) -> list[Row]:
    try:
        return await run_battery(place)
    finally:
        await place.close()


def _version(*command: str) -> str:
    told = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed
    return told.stdout.strip()


def draw(columns: dict[str, list[Row]]) -> str:
    """The page, from the rows of each place."""
    names = list(columns)
    count = len(columns[names[0]])
    lines = [HEAD, f"- kernel {platform.release()} on {platform.machine()}, cgroup v{_groups()}"]
    lines += [f"- {_version('bwrap', '--version')}", f"- {_version('dockerd', '--version')}", ""]
    lines += [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    totals = [f"{sum(bool(row.escaped) for row in rows)} of {count}" for rows in columns.values()]
    lines.append("| **escapes** | " + " | ".join(f"**{total}**" for total in totals) + " |")
    broken = [f"{sum(bool(row.control) for row in rows)} of {count}" for rows in columns.values()]
    lines.append("| controls that failed | " + " | ".join(broken) + " |")
    for together in zip(*columns.values(), strict=True):
        told = [row.escaped or "." for row in together]
        lines.append(f"| {together[0].case.replace('-', ' ')} | " + " | ".join(told) + " |")
    return "\n".join(lines) + "\n" + TAIL


def _groups() -> int:
    found = cgroups.find(f"toolgate-{os.getpid()}")
    found.close()
    return found.version


def main() -> int:
    os.environ["TOOLGATE_HOSTILE_SECRET"] = "of the runner"  # noqa: S105, TID251 - what an attack looks for
    with docker_engine.private_engine() as engine:
        columns = {
            "bwrap": asyncio.run(attack_sandbox("bwrap", "")),
            "docker": asyncio.run(attack_sandbox("docker", engine.url)),
        }
    columns["plain subprocess"] = asyncio.run(attack_plain())
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(draw(columns))
    for name, rows in columns.items():
        print(f"{name}: escapes: {sum(bool(row.escaped) for row in rows)} of {len(rows)}")
    return 0 if not any(row.escaped for name in ("bwrap", "docker") for row in columns[name]) else 1


if __name__ == "__main__":
    sys.exit(main())
