"""What the tests of the guard share."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.web.inside import Inside, Liar


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    six = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # one socket for both families
    six.bind(("::", 0))
    listener = Inside(six.getsockname()[1])
    server = await asyncio.start_server(listener.serve, sock=six)
    yield listener
    server.close()
    await server.wait_closed()


@pytest.fixture
def liar() -> Liar:
    return Liar()
