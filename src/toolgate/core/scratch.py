"""Folders in the system's temporary directory that a process has for as long as it lives."""

import os
import shutil
import tempfile
from pathlib import Path


def make_scratch(kind: str) -> Path:
    """A folder of this process's; those of its kind whose process was killed go first."""
    prefix = f"toolgate-{kind}-"
    begun = _begun(str(os.getpid()))
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*") if begun else ():
        process, *rest = folder.name.removeprefix(prefix).split("-")
        if not process.isdigit():
            continue
        living = _begun(process)
        if not living or (len(rest) > 1 and rest[0] != living):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-{begun}-"))


def _begun(process: str) -> str:
    """When it began, in the kernel's count; empty where there is none.

    In a container each process that is started anew has the number of the one before.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return ""
    return stat.rpartition(b")")[2].split()[19].decode()
