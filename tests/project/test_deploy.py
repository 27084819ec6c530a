"""What ships to run it elsewhere: no container engine is needed to see that it fits the program."""

import configparser
import ctypes
import ctypes.util
import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiodocker
import pytest
import yaml

from tests.support import docker_engine
from tests.support.engines import need
from toolgate import settings
from toolgate.bootstrap import runs
from toolgate.cli.main import COMMANDS
from toolgate.http import asgi
from toolgate.sandbox.agent import OPENAT2
from toolgate.sandbox.docker import _load_host_image, host_image_name
from toolgate.sandbox.seccomp import MACHINES, REFUSED
from toolgate.surfaces.ingress.server import STOP_S

ROOT = Path(__file__).parents[2]
SANDBOX = "deploy/compose.sandbox.yaml"


def services() -> dict[str, dict[str, object]]:
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", sorted(services()))
def test_every_service_starts_a_command_with_settings_that_there_are(name: str) -> None:
    service = services()[name]
    assert service.get("command", "up") in COMMANDS
    known = {entry.name for entry in settings.table()}
    environment = service["environment"]
    assert isinstance(environment, dict)
    assert environment.keys() <= known


def test_compose_has_the_seeds_shape() -> None:
    ingress = services()["ingress"]
    environment = ingress["environment"]
    assert isinstance(environment, dict)
    assert environment["ORCHESTRATOR_URL"] == "http://orchestrator:8081"
    assert ingress["depends_on"] == ["orchestrator"]
    ports = ingress["ports"]
    assert isinstance(ports, list)
    assert [port.rpartition(":")[2] for port in ports] == ["8090", "8091"]


def test_what_opens_the_container_up_is_asked_for_by_name() -> None:
    opened = yaml.safe_load((ROOT / SANDBOX).read_text())["services"]
    assert opened.keys() <= services().keys()
    for service in services().values():
        assert not service.keys() & {"privileged", "cap_add", "user"}


def test_the_marks_are_in_a_volume_of_their_own() -> None:
    """Whoever restores the data must not restore the mark with it; two homes share no marks."""
    volumes = {name: service["volumes"] for name, service in services().items()}
    marks = [
        volume.partition(":")[0]
        for mounted in volumes.values()
        if isinstance(mounted, list)
        for volume in mounted
        if volume.endswith(":/state")
    ]
    assert len(set(marks)) == len(services())
    assert "STATE_DIR=/state" in (ROOT / "Dockerfile").read_text()
    directories = unit_service()["StateDirectory"].split()
    given = dict(pair.split("=", 1) for pair in unit_service()["Environment"].split())
    assert [given["TOOLGATE_HOME"], given["STATE_DIR"]] == [
        f"/var/lib/{one}" for one in directories
    ]


def test_no_port_is_published_beyond_this_machine() -> None:
    for service in services().values():
        ports = service.get("ports", [])
        assert isinstance(ports, list)
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_does_not_run_as_root_and_sets_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text()
    made = re.search(r"useradd .*--uid (\d+)", text)
    user = re.search(r"^USER (\d+)$", text, re.MULTILINE)
    assert made is not None
    assert user is not None
    assert made[1] == user[1] != "0"
    line = re.search(r"^ENV (.*)$", text, re.MULTILINE)
    assert line is not None
    names = {pair.partition("=")[0] for pair in line[1].split()}
    assert names <= {entry.name for entry in settings.table()}


PROFILE = ROOT / "deploy" / "seccomp.json"
# Chromium and bubblewrap make their sandboxes with these; our own filter refuses them inside.
MAKE_SANDBOXES = {
    "chroot", "mount", "mount_setattr", "move_mount", "open_tree", "pivot_root", "sethostname",
    "setns", "umount2", "unshare",
}  # fmt: skip


def test_no_service_runs_without_a_seccomp_profile() -> None:
    for file in ("compose.yaml", SANDBOX):
        opened = yaml.safe_load((ROOT / file).read_text())["services"]
        for service in opened.values():
            for option in service.get("security_opt", []):
                name, _, value = option.partition("=")
                assert name != "seccomp" or (ROOT / value).samefile(PROFILE), (file, option)
    assert any("security_opt" in service for service in services().values())


def test_the_profile_refuses_what_the_sandboxs_filter_does_but_for_the_making_of_sandboxes() -> (
    None
):
    profile = json.loads(PROFILE.read_text())
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == (
        "SCMP_ACT_ERRNO",
        errno.ENOSYS,
    )
    allowed, refused = (
        {
            name
            for rule in profile["syscalls"]
            if rule["action"] == action and "args" not in rule
            for name in rule["names"]
        }
        for action in ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO")
    )
    assert refused == REFUSED.keys() - MAKE_SANDBOXES
    assert allowed >= MAKE_SANDBOXES
    assert not allowed & refused
    assert "personality" not in allowed
    library = ctypes.util.find_library("seccomp")
    if library is not None:
        resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
        machines = [each.audit_arch for each in MACHINES.values()]
        newer = {"cachestat", "fchmodat2", "map_shadow_stack"} | {
            f"futex_{name}" for name in ("wake", "wait", "requeue")
        }
        known = {n for n in allowed if any(resolve(m, n.encode()) >= 0 for m in machines)}
        assert allowed - known <= newer


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that another user can walk to, as no folder of pytest is."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("program", ["sandbox", "chromium", "refused"])
def test_chromium_and_the_sandbox_start_under_the_profile_and_what_it_refuses_is_refused(
    program: str, home: Path
) -> None:
    if ctypes.util.find_library("seccomp") is None:
        pytest.skip("libseccomp is not installed")
    asks = "import ctypes, os; l = ctypes.CDLL(None, use_errno=True); print([l.syscall({}), ctypes.get_errno()])"
    command = {
        "sandbox": [sys.executable, "-m", "tests.support.sandbox_under_filter"],
        "refused": [
            sys.executable,
            "-c",
            asks.format(REFUSED["keyctl"][MACHINES[platform.machine()].column]),
        ],
        "chromium": [],
    }[program]
    if program == "sandbox":
        need("bwrap")
    if program == "chromium":
        found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        if found is None:
            pytest.skip("Chromium is not installed")
        home.chmod(0o777)
        as_user = ["--reuid=10001", "--regid=10001", "--clear-groups", "--inh-caps=-all"]
        as_user += ["--bounding-set=-all", "--no-new-privs"]
        command = [*(["setpriv", *as_user] if os.geteuid() == 0 else []), found, "--headless"]
        command += [f"--user-data-dir={home}/p", "--dump-dom", "data:text/html,<p>fine</p>"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.under_seccomp", str(PROFILE), *command],
        cwd=ROOT,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = {"sandbox": "written", "chromium": "<p>fine</p>", "refused": f"[-1, {errno.EPERM}]"}
    assert expected[program] in done.stdout, done.stderr


async def test_a_container_with_the_profile_can_make_namespaces_and_one_without_it_cannot(
    engine: docker_engine.Engine,
) -> None:
    async with aiodocker.Docker(url=engine.url) as docker:
        await _load_host_image(docker)
        ended = []
        for options in ([f"seccomp={PROFILE.read_text()}"], []):
            host = {"Binds": ["/usr:/usr:ro"], "SecurityOpt": options, "NetworkMode": "none"}
            config: dict[str, Any] = {"Image": host_image_name(), "User": "10001"}
            config["HostConfig"] = host
            config["Cmd"] = ["/usr/bin/unshare", "--user", "--map-root-user", "/usr/bin/true"]
            container = await docker.containers.create(config)
            try:
                await container.start()
                ended.append((await container.wait(timeout=60))["StatusCode"])
            finally:
                await container.delete(force=True)
    assert ended[0] == 0
    assert ended[1] != 0


def unit_service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "toolgate.service")
    return unit["Service"]


def test_the_unit_starts_the_program_under_a_user_of_its_own() -> None:
    service = unit_service()
    assert service["ExecStart"].split()[1] in COMMANDS
    assert service["User"] == "toolgate"


def refused_by(service: configparser.SectionProxy) -> dict[int, int]:
    """The calls that systemd's filters for these settings refuse, and what is answered instead."""
    column = MACHINES[platform.machine()].column
    names = {
        "ProtectHostname": ("sethostname", "setdomainname"),
        "ProtectClock": ("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
        "ProtectKernelModules": ("init_module", "finit_module", "delete_module"),
        "ProtectKernelLogs": ("syslog",),
    }
    calls = [
        REFUSED[call][column]
        for setting, refused in names.items()
        for call in refused
        if service.getboolean(setting, False)
    ]
    found = {number: errno.EPERM for number in calls if number is not None}
    if service.getboolean("RestrictSUIDSGID", False):
        found[OPENAT2] = errno.ENOSYS  # a filter cannot look at its arguments
    return found


def test_the_sandbox_works_behind_the_filters_that_the_unit_asks_for() -> None:
    need("bwrap")
    calls = [f"{number}:{answer}" for number, answer in refused_by(unit_service()).items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.sandbox_under_filter", *calls],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("written", "")


def test_whoever_stops_it_waits_for_as_long_as_draining_may_take() -> None:
    """Docker kills after 10 s, unless told otherwise."""
    draining = asgi.DRAIN_S + asgi.ENDING_S + runs.DRAIN_S + STOP_S
    unit = (ROOT / "deploy" / "toolgate.service").read_text()
    given = [re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)]
    given += [
        re.fullmatch(r"(\d+)s", str(service.get("stop_grace_period", "10s")))
        for service in services().values()
    ]
    for seconds in given:
        assert seconds is not None
        assert int(seconds[1]) > draining


@pytest.mark.parametrize(
    "check",
    [
        ("hadolint", "Dockerfile"),
        ("docker-compose", "-f", "compose.yaml", "config", "--quiet"),
        ("docker-compose", "-f", "compose.yaml", "-f", SANDBOX, "config", "--quiet"),
        ("systemd-analyze", "verify", "deploy/toolgate.service"),
    ],
)
def test_the_tools_of_their_makers_find_nothing_wrong(check: tuple[str, ...]) -> None:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which(check[0], path=places)
    if program is None:
        pytest.skip(f"{check[0]} is not installed")
    given = {**os.environ, "API_KEY": "k", "INTERNAL_TOKEN": "t", "NO_COLOR": "1"}
    done = subprocess.run(
        [program, *check[1:]],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = (done.stdout + done.stderr).splitlines()
    # Where the program is not installed as the unit expects it, that alone is said of it.
    assert [line for line in found if "/usr/local/bin/toolgate is not executable" not in line] == []
