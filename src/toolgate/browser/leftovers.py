"""Files that a browser downloads for nobody.

Chromium tells of no download whose page, or frame, was left before its first byte came; it still
writes it, however large it is.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

CHECK_S: Final = 0.5
KEPT_S: Final = 60.0  # whoever asked for a file has read it, or given it up, long before
UNFINISHED: Final = ".crdownload"


async def end_strays(
    folder: Path,
    *,
    limit: int,
    is_alive: Callable[[], bool],
    cancel: Callable[[str], Awaitable[object]],
) -> None:
    """Cancel what grows beyond the limit, and remove what lies there long, while the browser lives.

    A download's file has its id for a name.
    """
    loop = asyncio.get_running_loop()
    since: dict[Path, float] = {}
    while is_alive():
        await asyncio.sleep(CHECK_S)
        sizes = await asyncio.to_thread(_sizes_in, folder)
        since = {file: since.get(file, loop.time()) for file in sizes}
        for file, size in sizes.items():
            too_large = file.suffix == UNFINISHED and size > limit
            if too_large or loop.time() - since[file] > KEPT_S:
                await cancel(file.stem)
                await asyncio.to_thread(file.unlink, missing_ok=True)


def _sizes_in(folder: Path) -> dict[Path, int]:
    found: dict[Path, int] = {}
    with contextlib.suppress(FileNotFoundError):  # it goes with the browser
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[file] = file.stat().st_size
    return found
