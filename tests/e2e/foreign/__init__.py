"""Foreign peers against our own ends: one file per seed, and `toolgate.testkit` as the peers.

The testkit is written from the seeds alone and may not import our models.
"""

import contextlib
from collections.abc import AsyncIterator, Collection
from typing import TypeVar

import aiohttp

from toolgate.testkit.checks import Kit

P = TypeVar("P")


@contextlib.asynccontextmanager
async def a_client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


async def holds(kit: Kit[P], peer: P, *, but: Collection[str] = ()) -> None:
    """Every check holds; those of `but` are skipped."""
    found = await kit.run(peer, lambda _done, _total: None)
    failed = {one.name: one.detail for one in found if one.result == "no"}
    assert not failed, failed
    skipped = {one.name for one in found if one.result == "skipped"}
    assert skipped == set(but), skipped
