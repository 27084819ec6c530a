"""Names that last: a file is safe from a power cut only when its directory is synced too."""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
