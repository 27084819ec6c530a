"""Start a home and kill it at a sync or a change of a name; then start it and let it be.

    marking_process.py HOME STATE WHAT FIRST STRIDE

does so for step FIRST, FIRST + STRIDE, ... until one ends by itself. WHAT is `start` or `accept`. Each
line that it prints is the epoch of the start after a kill, or the error that it was refused with.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.evidence.test_marks import accepted, grown
from toolgate.core.errors import ToolgateError


def kill_at(step: int) -> None:
    passed = 0

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any, **more: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return first

    for name in ("fsync", "rename", "replace", "mkdir"):
        setattr(os, name, stepping(getattr(os, name)))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except ToolgateError as refused:
            say(f"{type(refused).__name__} {refused}")
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main() -> None:
    home, state, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    step, stride = int(sys.argv[4]), int(sys.argv[5])

    def killed() -> None:
        kill_at(step)
        asyncio.run(accepted(home, state) if what == "accept" else grown(home, state, 2))

    def begun() -> None:
        say(asyncio.run(grown(home, state, 1)))

    while True:
        ended = in_child(killed)
        if step or not ended:
            in_child(begun)
        if not ended:
            return
        step += stride


if __name__ == "__main__":
    main()
