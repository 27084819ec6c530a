"""`toolgate doctor`: what works here, and how to get what does not."""

import asyncio
import errno
import importlib.util
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.text import Text

from toolgate import settings as table
from toolgate.browser.chromium import find_chromium
from toolgate.cli.operator import GATEWAY_HEALTH, answers
from toolgate.cli.options import EXIT_FAILED, host_in_url, with_settings
from toolgate.cli.terminal import print_table, table_of
from toolgate.core.errors import ToolgateError, Unavailable
from toolgate.policy.file import default_policy_text, load_policy
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.sandbox.bwrap import MISSING
from toolgate.sandbox.choice import BWRAP, DOCKER, DOCKER_URL, make_sandbox
from toolgate.settings import Settings

INSTALL: Final = "as root on Debian: apt-get install --no-install-recommends"
UNSERVED: Final = "no Docker engine serves"  # so says sandbox_docker, which is costly to import
REASON: Final = "it is installed, and says itself for what reason it does not work"
OLDEST_PYTHON: Final = (3, 11)
OTHER_HOME: Final = "set TOOLGATE_HOME, or --home, to a folder of your own"
LEAST_DISK_BYTES: Final = 512 * 1024 * 1024  # ours: a busy day of journal and artifacts
EXTRAS: Final = {  # a package of it, what it is for, and the setting that makes it necessary
    "browser": ("playwright", "browser tasks that fill in forms or log in", ""),
    "llm": ("pydantic_ai", "the agent `assistant`", "model"),
}
KEPT_POLICY: Final = "policy.yaml"  # in a home: what was put in force in the console
PORTS: Final = {  # and what is in the health of who listens there
    "WS_PORT": ("ws_port", {"status", "connections"}),
    "HTTP_PORT": ("http_port", {"status", "connections"}),
    "ORCHESTRATOR_PORT": ("orchestrator_port", {"status", "runs"}),
    "GATEWAY_PORT": ("gateway_port", GATEWAY_HEALTH),
    "RUNNER_PORT": ("runner_port", {"ok", "service", "backend"}),
}


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    detail: str
    hint: str = ""
    needed: bool = True  # without it Toolgate does not do its work


async def check_backend(name: str, *, docker_url: str = DOCKER_URL) -> Finding:
    """Open a sandbox and try it; nothing is left behind."""
    sandbox = make_sandbox(name, docker_url=docker_url)
    try:
        await sandbox.check()
    except Unavailable as unavailable:
        detail, hint = str(unavailable), hint_for(name, str(unavailable))
        return Finding(f"sandbox {name}", ok=False, detail=detail, hint=hint, needed=False)
    finally:
        await sandbox.close()
    return Finding(f"sandbox {name}", ok=True, detail="isolates", needed=False)


def hint_for(backend: str, said: str) -> str:
    """The way to get a backend that does not work, by what is missing and its own error."""
    if backend == DOCKER:
        if shutil.which("dockerd") is None and shutil.which("docker") is None:
            return f"{INSTALL} docker.io"
        if UNSERVED in said:
            return (
                "it is installed: start it (systemctl start docker), or name another: --docker-url"
            )
        return REASON
    if shutil.which("bwrap") is None or said.startswith(MISSING):
        return f"{INSTALL} bubblewrap util-linux"
    if "cgroup" in said:
        return "it is installed: it needs root or a delegated cgroup, with memory, pids and cpu"
    return REASON


def check_python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info[:2] >= OLDEST_PYTHON
    return Finding("python", ok, found, "" if ok else "install Python 3.11 or newer")


def check_chromium(settings: Settings) -> Finding:
    try:
        found = find_chromium(settings.chromium)
    except ToolgateError as missing:
        hint = "as root on Debian: apt-get install chromium-headless-shell, or set CHROMIUM"
        return Finding("chromium", ok=False, detail=str(missing), hint=hint, needed=False)
    return Finding("chromium", ok=True, detail=found, needed=False)


def check_ports(settings: Settings) -> Iterator[Finding]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    for name, (field, health) in PORTS.items():
        port = getattr(settings, field)
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((settings.host, port))
            except OSError as refused:
                in_use = refused.errno == errno.EADDRINUSE
                if in_use and answers(f"http://{host_in_url(settings)}:{port}", health):
                    detail = f"{settings.host}:{port} is in use, by a Toolgate that runs"
                    yield Finding(name, ok=True, detail=detail, needed=False)
                    continue
                detail = f"{settings.host}:{port} " + ("is in use" if in_use else str(refused))
                hint = f"stop what holds it, or set {name} to another port"
                yield Finding(name, ok=False, detail=detail, hint=hint, needed=False)
                continue
        yield Finding(name, ok=True, detail=f"{settings.host}:{port} is free", needed=False)


def check_disk(settings: Settings) -> Finding:
    home = settings.home.absolute()
    try:
        there = next(path for path in (home, *home.parents) if path.exists())
        free = shutil.disk_usage(there).free
    except OSError as refused:
        return Finding("disk", ok=False, detail=f"{home}: {refused.strerror}", hint=OTHER_HOME)
    if not os.access(there, os.W_OK | os.X_OK):
        detail = f"this user may not write to {there}"
        return Finding("disk", ok=False, detail=detail, hint=OTHER_HOME)
    ok = free >= LEAST_DISK_BYTES
    hint = "" if ok else "make room, or set TOOLGATE_HOME to another disk"
    return Finding("disk", ok, f"{free // (1024 * 1024)} MB free at {there}", hint)


def check_policy(settings: Settings) -> Finding:
    kept = settings.home / KEPT_POLICY
    try:
        found = kept if kept.exists() else None
    except OSError as refused:
        detail = f"{kept}: {refused.strerror}"
        return Finding("policy", ok=False, detail=detail, hint=OTHER_HOME)
    path = Path(settings.policy_file) if settings.policy_file else found
    try:
        text = default_policy_text() if path is None else path.read_text("utf-8")
        policy = load_policy(text, parse_shell=TreeSitterShellParser())
    except (ToolgateError, OSError, UnicodeDecodeError) as wrong:
        hint = f"toolgate policy check {path} says what is wrong"
        return Finding("policy", ok=False, detail=str(wrong), hint=hint)
    where = "the shipped one" if path is None else str(path)
    detail = f"{where}: {len(policy.rules)} rules, {len(policy.tests)} tests pass"
    return Finding("policy", ok=True, detail=detail)


def check_extras(settings: Settings) -> Iterator[Finding]:
    for extra, (package, use, is_set) in EXTRAS.items():
        there = importlib.util.find_spec(package) is not None
        detail = use if there else f"{use}: not installed"
        hint = "" if there else f"pip install 'toolgate[{extra}]' (in a clone: make setup)"
        needed = bool(is_set and getattr(settings, is_set))
        yield Finding(f"extra {extra}", there, detail, hint, needed)


async def examine(settings: Settings, docker_url: str) -> list[Finding]:
    sandboxes = [await check_backend(name, docker_url=docker_url) for name in (BWRAP, DOCKER)]
    return [
        check_python(),
        *sandboxes,
        check_chromium(settings),
        *check_extras(settings),
        *check_ports(settings),
        check_disk(settings),
        check_policy(settings),
    ]


def works(findings: list[Finding]) -> bool:
    """Tell if Toolgate can work here: everything needed is ok, and at least one sandbox."""
    sandboxes = [finding.ok for finding in findings if finding.name.startswith("sandbox ")]
    return any(sandboxes) and all(finding.ok for finding in findings if finding.needed)


@click.command()
@click.option("--docker-url", default=DOCKER_URL, show_default=True, help="The Docker engine.")
@click.option("--json", "as_json", is_flag=True, help="Say it in JSON.")
@with_settings
def command(settings: table.Settings, *, docker_url: str, as_json: bool) -> None:
    """Try what this machine offers: Python, sandboxes, Chromium, extras, ports, disk, policy.

    Fails where something is missing that Toolgate cannot do without, or no sandbox works.
    """
    findings = asyncio.run(examine(settings, docker_url))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        shown = table_of("", "", "", header=False)
        for finding in findings:
            mark = (
                Text("ok", "green")
                if finding.ok
                else Text("no", "red" if finding.needed else "yellow")
            )
            detail = Text(finding.detail)
            if finding.hint:
                detail.append(f"\n{finding.hint}", "dim")
            shown.add_row(mark, Text(finding.name), detail)
        print_table(shown)
    if not works(findings):
        sys.exit(EXIT_FAILED)
