"""Listeners: a port has one of them, and one that does not listen says so."""

import asyncio
import socket

import aiohttp
import pytest
from starlette.applications import Starlette

from toolgate import asgi
from toolgate.bootstrap.installation import bind
from toolgate.domain.errors import Misconfigured


def test_of_two_that_start_at_the_same_time_one_is_told_that_the_port_is_in_use() -> None:
    with bind("127.0.0.1", clients=(0, "WS_PORT"))["clients"] as first:
        port = first.getsockname()[1]
        with pytest.raises(Misconfigured, match=f"127.0.0.1:{port} is in use; .* set WS_PORT"):
            bind("127.0.0.1", clients=(port, "WS_PORT"))


@pytest.mark.parametrize("host", ["192.0.2.1", "no..name"])
def test_an_address_that_this_machine_does_not_have_is_told_by_its_own_setting(host: str) -> None:
    with pytest.raises(Misconfigured, match="set HOST to an address of this machine") as refused:
        asgi.bind(host, 8090, setting="WS_PORT")
    assert "WS_PORT" not in str(refused.value)  # no other port would help


async def test_a_listener_that_cannot_listen_does_not_pass_for_one_that_does() -> None:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0 if one is first else first.getsockname()[1]))
        first.listen()
        with pytest.raises(OSError, match="in use"):
            await asyncio.wait_for(asgi.Listener(Starlette(), second).start(), 5)


async def test_a_listener_keeps_a_connection_for_longer_than_those_who_call_us_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a call is sent just as the connection closes, and nobody knows what became of it."""
    async with aiohttp.TCPConnector() as connector:
        kept = connector._keepalive_timeout
        assert isinstance(kept, float)
        assert kept < asgi.KEEP_ALIVE_S
    monkeypatch.setattr(asgi, "KEEP_ALIVE_S", 0.1)
    bound = asgi.bind("127.0.0.1", 0, setting="RUNNER_PORT")
    listener = asgi.Listener(Starlette(), bound)
    await listener.start()
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"404" in await asyncio.wait_for(reader.read(), 3)  # and then it ends
    writer.close()
    await listener.stop()
