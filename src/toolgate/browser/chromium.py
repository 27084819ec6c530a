"""Finding Chromium, the flags it is started with, what its processes weigh, and its end."""

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Final

from toolgate.browser.browser import NavigationTimedOut, PageCrashed, PageError
from toolgate.core.errors import Misconfigured

KNOWN: Final = (
    "chromium-headless-shell",  # a page costs a quarter of what it costs in full Chromium
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
INSTALL: Final = "apt-get install --no-install-recommends chromium-headless-shell"

FLAGS: Final = (
    "--disable-back-forward-cache",
    "--disable-features=SpareRendererForSitePerProcess,MediaRouter,OptimizationHints,Translate",
    "--disable-background-networking",  # nothing that no page asked for leaves the machine
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",  # UDP does not go through a proxy
    "--dns-prefetch-disable",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--js-flags=--max-old-space-size=512",
)

BLOCKED_MEDIA: Final = tuple(
    f"*.{ending}{tail}"
    for ending in (
        "png", "jpg", "jpeg", "gif", "webp", "avif", "ico", "bmp",
        "woff", "woff2", "ttf", "otf", "eot",
        "mp4", "webm", "ogv", "m4v", "mov", "mp3", "m4a", "ogg", "oga", "wav", "flac",
    )
    for tail in ("", "?*")
)  # fmt: skip


def find_chromium(setting: str = "") -> str:
    """The browser to run: the one that was set, else the first known one on this machine."""
    if setting:
        found = shutil.which(setting)
        if found is None:
            raise Misconfigured(f"CHROMIUM={setting} is not a program that can be run")
        return found
    for name in KNOWN:
        found = shutil.which(name)
        if found is not None:
            return found
    raise Misconfigured(
        f"no Chromium was found; install one ({INSTALL}) or set CHROMIUM to its path"
    )


def may_sandbox() -> bool:
    """Chromium refuses its own sandbox to root; everyone else gets it."""
    return os.geteuid() != 0


def process_tree(root: int) -> list[int]:
    """The ids of a process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(fields[1])
    found = [root] if root in parents else []
    for process in found:
        found.extend(child for child, parent in parents.items() if parent == process)
    return found


def find_marked(mark: str) -> int | None:
    """The browser that was started with this flag.

    The wrapper script around it has the flag too, and so has a child in the moment it is born.
    """
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                program = str((entry / "exe").readlink())
            except OSError:
                continue
            if mark.encode() in command and not any(arg.startswith(b"--type=") for arg in command):
                found[int(entry.name)] = (parent, program)
    eldest = {
        process: parent
        for process, (parent, program) in found.items()
        if parent not in found or found[parent][1] != program
    }
    return next((process for process in eldest if process not in eldest.values()), None)


def kill_marked(mark: str) -> None:
    """End a browser that answers nothing any more; what it started ends with it."""
    process = find_marked(mark)
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def is_suspect(failed: PageError) -> bool:
    """Whether the browser itself may be why: no site can be blamed for an unknown failure."""
    return isinstance(failed, NavigationTimedOut | PageCrashed) or type(failed) is PageError


def resident_bytes(processes: list[int]) -> int:
    """The memory of these processes, shared pages counted once for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/statm").read_text().split()
        except OSError:
            continue
        total += (int(fields[1]) - int(fields[2])) * page
    return total
