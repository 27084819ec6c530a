"""A sandbox of each kind, and one open session of it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.engines import EVERY, ISOLATING, sandbox_of
from toolgate.sandbox.sandbox import Sandbox, Session, SessionKey, SessionSpec

KEY = SessionKey("t_default", "w_default", "s_1")


@pytest.fixture(params=EVERY)
async def session(request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    async with sandbox_of(request.param, request) as sandbox:
        yield await sandbox.open(SessionSpec(KEY))


@pytest.fixture(params=ISOLATING)
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    async with sandbox_of(request.param, request) as sandbox:
        yield sandbox
