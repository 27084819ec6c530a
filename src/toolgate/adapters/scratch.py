"""Folders in the system's temporary directory that a process has for as long as it lives."""

import os
import shutil
import tempfile
from pathlib import Path


def make_scratch(kind: str) -> Path:
    """A folder of this process's; those of its kind whose process was killed go first."""
    prefix = f"toolgate-{kind}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        process = folder.name.removeprefix(prefix).partition("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
