"""Listeners: a port has one of them, and one that does not listen says so."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from toolgate.bootstrap.installation import bind
from toolgate.core.errors import Misconfigured
from toolgate.http import asgi


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


@contextlib.asynccontextmanager
async def listening(
    app: asgi.App,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a listener with this app, on which nothing has been said."""
    bound = asgi.bind("127.0.0.1", 0, setting="PORT")
    listener = asgi.Listener(app, bound)
    await listener.start()
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*bound.getsockname()[:2])
            try:
                yield reader, writer
            finally:
                writer.close()
    finally:
        await listener.stop()


async def length_of_the_body(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Answers how long the body was; of half a body, nothing."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    answer = str(size).encode()
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.mark.parametrize("endless", [b"x-more: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
@pytest.mark.parametrize(
    "before", [b"", b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nok"]
)
async def test_a_head_without_end_is_refused_and_does_not_fill_the_memory(
    before: bytes, endless: bytes
) -> None:
    async with listening(length_of_the_body) as (reader, writer):
        writer.write(before + b"GET / HTTP/1.1\r\nhost: h\r\nx-first: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 10 * asgi.HEAD_LIMIT and not reader.at_eof():
                writer.write(endless)
                await writer.drain()
                await asyncio.sleep(0)
                sent += len(endless)
            answers = await reader.read()
            assert answers.endswith(b"connection: close\r\n\r\n")
            assert b"HTTP/1.1 431 " in answers
        assert sent < 10 * asgi.HEAD_LIMIT


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_head_has_at_most_the_documented_bytes_however_it_comes(pieces: int) -> None:
    start, end = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-more: ", b"\r\n\r\n"
    for size, status in (
        (asgi.HEAD_LIMIT, b"200"),
        (asgi.HEAD_LIMIT + 1, b"431"),
        (3 * asgi.HEAD_LIMIT, b"431"),
    ):
        head = start + b"a" * (size - len(start) - len(end)) + end
        step = len(head) // pieces + 1
        async with listening(length_of_the_body) as (reader, writer):
            for at in range(0, len(head), step):
                writer.write(head[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status), (size, pieces)


@pytest.mark.parametrize("size", [asgi.HEAD_LIMIT + 1, 5 * asgi.HEAD_LIMIT])
async def test_a_large_body_is_no_large_head(size: int) -> None:
    """Also where the next request comes with it."""
    body = b"b" * size
    post = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with listening(length_of_the_body) as (reader, writer):
        writer.write((post + body) * 3 + b"GET / HTTP/1.1\r\nhost: ")
        await writer.drain()
        writer.write(b"h\r\nconnection: close\r\n\r\n")
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 200 ") == 4
    assert answers.count(b"\r\n\r\n%d" % len(body)) == 3


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: h\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nhalf",
        b"GET / HTTP/1.1\r\nhost: h\r\n\r\nGET / HTTP/1.1\r\nho",
    ],
)
async def test_who_sends_half_a_request_and_no_more_is_hung_up_on(
    half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.2)
    async with listening(length_of_the_body) as (reader, writer):
        writer.write(half)
        await reader.read()  # to the end


async def test_a_head_that_drips_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.3)
    async with listening(length_of_the_body) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("offer", "large"),
    [
        (b"connection: close\r\n", b"b" * 500_000),  # more than is read ahead of the app
        (b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n", b""),
    ],
)
async def test_who_waits_for_a_slow_answer_is_not_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, offer: bytes, large: bytes
) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.4)

    async def slow(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await asyncio.sleep(0.9)  # longer than a whole request may take to come
        await length_of_the_body(scope, receive, send)

    async with listening(slow) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: h\r\n" + offer)
        writer.write(b"content-length: %d\r\n\r\n" % len(large) + large)
        answered = await reader.readuntil(b"\r\n\r\n" + str(len(large)).encode())
        assert answered.startswith(b"HTTP/1.1 200 ")


async def test_a_client_is_not_hung_up_on_while_the_server_itself_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.2)
    async with listening(length_of_the_body) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\na")
        await asyncio.sleep(0.1)
        time.sleep(0.3)  # the loop serves nobody
        await asyncio.sleep(0.05)
        writer.write(b"b")
        assert (await reader.readuntil(b"\r\n\r\n2")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot")
async def test_who_asks_and_never_reads_the_answer_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "UNREAD_MS", 300)

    async def says_much(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        body = b"x" * 5_000_000  # more than the system keeps for a reader
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    bound = asgi.bind("127.0.0.1", 0, setting="PORT")
    listener = asgi.Listener(says_much, bound)
    await listener.start()
    connections = listener._server.server_state.connections
    try:
        with socket.create_connection(bound.getsockname()[:2]) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            async with asyncio.timeout(10):
                while not connections:
                    await asyncio.sleep(0.01)
                while connections:
                    await asyncio.sleep(0.01)
    finally:
        await listener.stop()


async def fails(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    raise ZeroDivisionError("unforeseen")


async def test_what_an_app_did_not_foresee_is_answered_with_500_and_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(fails) as (reader, writer):
        writer.write(b"GET /some/path?token=secret HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"500" in await reader.readline()
    (line,) = [one for one in caplog.records if one.name == asgi.__name__]
    assert line.getMessage() == "request_failed method=GET path=/some/path"
    assert "ZeroDivisionError: unforeseen" in caplog.text


async def test_who_goes_away_in_the_middle_of_a_body_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def reads(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        began.set()
        try:
            await asgi.read_body(Request(scope, receive))
        finally:
            ended.set()

    began, ended = asyncio.Event(), asyncio.Event()
    async with listening(reads) as (_, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        await began.wait()
        writer.close()
        await ended.wait()
    assert not [one for one in caplog.records if one.name == asgi.__name__]


async def test_a_stream_that_owes_something_ends_when_it_has_given_it_and_others_at_once() -> None:
    streams, due = asgi.Streams(), {"/busy"}

    async def stream(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        path = scope["path"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun\n", "more_body": True})
        await asked[path].wait()
        await send({"type": "http.response.body", "body": b"given\n", "more_body": True})
        due.discard(path)

    async def until_gone(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await receive()  # the request
        giving = asyncio.ensure_future(stream(scope, receive, send))
        assert await receive() == {"type": "http.disconnect"}
        giving.cancel()

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await streams.serve(until_gone, scope, receive, send, owes=lambda: scope["path"] in due)

    asked = {"/busy": asyncio.Event(), "/idle": asyncio.Event()}
    bound = asgi.bind("127.0.0.1", 0, setting="PORT")
    listener = asgi.Listener(app, bound)
    await listener.start()
    base = "http://{}:{}".format(*bound.getsockname())
    async with aiohttp.ClientSession() as http, asyncio.timeout(20):
        busy, idle = [await http.get(base + path) for path in asked]
        for one in (busy, idle):
            assert await one.content.readline() == b"begun\n"
        streams.end()
        assert await idle.read() == b""
        late = await http.get(f"{base}/idle")  # over a connection that was there
        assert await late.read() in {b"", b"begun\n"}
        asked["/busy"].set()
        assert await busy.read() == b"given\n"
    await listener.stop()


async def test_a_request_that_is_cut_off_at_the_end_may_still_write_down_that_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes after the listeners is closed next: the sandboxes, the journal."""
    monkeypatch.setattr(asgi, "DRAIN_S", 0)
    begun, written = asyncio.Event(), []

    async def endless(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            written.append("interrupted")
            raise

    async with listening(endless) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await begun.wait()
    assert written == ["interrupted"]
