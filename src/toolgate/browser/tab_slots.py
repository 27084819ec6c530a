"""Turns for tabs: a bound on pages that load at once, shared evenly between runs."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TabSlots:
    """Hands out slots round robin by run, so that a large batch cannot starve a small one."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, run_id: str) -> AsyncIterator[None]:
        await self._take(run_id)
        try:
            yield
        finally:
            self._give()

    async def _take(self, run_id: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()  # the turn came in the same moment: pass it on
            raise

    def _give(self) -> None:
        while self._waiting:
            run_id, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[run_id] = turns  # to the end of the line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
