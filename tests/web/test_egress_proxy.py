"""The proxy against real sockets: the same guard, for whoever brings their own HTTP."""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.inside import Inside, Liar
from tests.web.ssrf_payloads import HOSTS, URLS
from toolgate.web.egress_proxy import Client, EgressDecision, EgressProxy, ProxyLimits
from toolgate.web.guard import Guard

LIMITS = ProxyLimits(connections=8, head_s=2, connect_s=2, idle_s=2, bytes_each_way=100_000)


@pytest.fixture
def decisions() -> list[EgressDecision]:
    return []


@pytest.fixture
async def port(inside: Inside, liar: Liar, decisions: list[EgressDecision]) -> AsyncIterator[int]:
    guard = Guard(resolve=liar, allow_private=frozenset({f"127.0.0.1:{inside.port}"}))
    async with EgressProxy(guard, decided=decisions.append, limits=LIMITS) as proxy:
        yield await proxy.listen_tcp()


async def exchange(port: int, sent: bytes, *, then: bytes = b"") -> bytes:
    """Send, and read until the proxy hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        if then:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(then)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_a_plain_request_is_passed_on_in_origin_form(
    port: int, inside: Inside, decisions: list[EgressDecision]
) -> None:
    answer = await exchange(
        port,
        f"GET http://127.0.0.1:{inside.port}/a?b=c HTTP/1.1\r\nHost: lie.example.com\r\n"
        "Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\nX-Own: 1\r\n\r\n".encode(),
    )
    assert answer.endswith(b"inside")
    head = inside.heads[0].decode()
    assert head.startswith("GET /a?b=c HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{inside.port}\r\n" in head
    assert "X-Own: 1" in head
    assert "Proxy-" not in head
    assert "lie.example.com" not in head
    assert [(d.allowed, d.host, d.port) for d in decisions] == [(True, "127.0.0.1", inside.port)]


async def test_a_tunnel_carries_bytes_both_ways(port: int, inside: Inside) -> None:
    answer = await exchange(
        port,
        f"CONNECT 127.0.0.1:{inside.port} HTTP/1.1\r\n\r\n".encode(),
        then=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    assert answer.endswith(b"inside")
    assert inside.heads == [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]


async def test_no_payload_makes_contact_through_the_proxy(
    inside: Inside, liar: Liar, decisions: list[EgressDecision]
) -> None:
    async with EgressProxy(Guard(resolve=liar), decided=decisions.append, limits=LIMITS) as proxy:
        port = await proxy.listen_tcp()
        hosts = [host.encode() for host in HOSTS]
        for host in hosts:
            connect = b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (host, inside.port)
            assert status(await exchange(port, connect)) in {400, 403, 502}, host
            plain = b"GET http://%s:%d/ HTTP/1.1\r\n\r\n" % (host, inside.port)
            assert status(await exchange(port, plain)) in {400, 403, 502}, host
        for url in URLS:
            target = url.format(port=inside.port).encode()
            answer = await exchange(port, b"GET %s HTTP/1.1\r\n\r\n" % target)
            assert status(answer) in {400, 403, 502}, url
    assert inside.contacts == []
    assert not any(decision.allowed and not decision.reason for decision in decisions)


async def test_a_refusal_says_why_and_is_told(
    port: int, inside: Inside, decisions: list[EgressDecision]
) -> None:
    answer = await exchange(port, f"CONNECT 127.0.0.2:{inside.port} HTTP/1.1\r\n\r\n".encode())
    assert status(answer) == 403
    assert b"127.0.0.2" in answer.partition(b"\r\n\r\n")[2]
    assert [(d.allowed, d.method, bool(d.reason)) for d in decisions] == [(False, "CONNECT", True)]


async def test_a_name_that_moves_inside_between_two_tunnels_is_refused(
    port: int, inside: Inside
) -> None:
    for _ in range(3):
        sent = f"CONNECT rebind.example.com:{inside.port} HTTP/1.1\r\n\r\n".encode()
        assert status(await exchange(port, sent)) == 403
    assert inside.contacts == []


async def test_a_second_request_does_not_ride_on_the_first(port: int, inside: Inside) -> None:
    first = f"GET http://127.0.0.1:{inside.port}/one HTTP/1.1\r\n\r\n".encode()
    second = b"GET http://127.0.0.2/two HTTP/1.1\r\nHost: 127.0.0.2\r\n\r\n"
    await exchange(port, first + second)
    assert len(inside.heads) == 1
    assert b"two" not in b"".join(inside.heads)


async def test_a_body_is_passed_on_by_its_length_and_no_further(port: int) -> None:
    received = bytearray()
    done = asyncio.Event()

    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        wanted = b"hello" if b"ontent-Length" in received else b"5\r\nhello\r\n0\r\n\r\n"
        received.extend(await reader.readexactly(len(wanted)))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()
        done.set()

    server = await asyncio.start_server(sink, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[1]
    guard = Guard(allow_private=frozenset({f"127.0.0.1:{target}"}))
    async with EgressProxy(guard, limits=LIMITS) as proxy:
        own = await proxy.listen_tcp()
        head = f"POST http://127.0.0.1:{target}/ HTTP/1.1\r\n"
        for framing, body in (
            ("Content-Length: 5", b"hello"),
            ("Transfer-Encoding: chunked", b"5;x=y\r\nhello\r\n0\r\n\r\n"),
        ):
            received.clear()
            done.clear()
            sent = f"{head}{framing}\r\n\r\n".encode() + body + b"GET /smuggled HTTP/1.1\r\n\r\n"
            assert status(await exchange(own, sent)) == 204
            await asyncio.wait_for(done.wait(), 5)
            assert b"hello" in received
            assert b"smuggled" not in received
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: -1", b"Content-Length: 5, 5", b"X Y: z", b" folded: z", b"X-A\x00: z",
        b"Transfer-Encoding: gzip", b"X-A: b\nHost: c", b"no colon",
    ],
)  # fmt: skip
async def test_a_head_that_two_readers_could_read_in_two_ways_is_refused(
    port: int, inside: Inside, head: bytes
) -> None:
    sent = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\n%s\r\n\r\nhello" % (inside.port, head)
    assert status(await exchange(port, sent)) in {400, 501}
    assert inside.contacts == []


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n", b"hello\r\n\r\n",
        b"CONNECT 127.0.0.1:99999 HTTP/1.1\r\n\r\n", b"GET https://example.com/ HTTP/1.1\r\n\r\n",
        b"CONNECT http://127.0.0.1:80 HTTP/1.1\r\n\r\n", b"\x05\x01\x00\r\n\r\n", b"\r\n\r\n",
    ],
)  # fmt: skip
async def test_what_is_not_a_proxy_request_is_refused(port: int, sent: bytes) -> None:
    assert status(await exchange(port, sent)) in {400, 403}


async def test_a_head_that_is_too_large_is_refused(port: int) -> None:
    sent = b"GET http://example.com/ HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000
    assert status(await exchange(port, sent)) in {0, 431}


async def test_a_head_of_blanks_holds_nobody_up(port: int) -> None:
    blanks = b"GET http://example.org/ HTTP/1.1\r\nX:" + b" " * 2_000 + b"\0\r\n\r\n"
    assert status(await exchange(port, blanks)) == 400


async def test_a_token_says_who_is_asking_and_what_they_may_reach(
    inside: Inside, decisions: list[EgressDecision]
) -> None:
    guard = Guard(allow_private=frozenset({f"127.0.0.1:{inside.port}"}))
    clients = {
        "t0ken": Client("run_1", lambda host, _port: host == "127.0.0.1"),
        "other": Client("run_2", lambda _host, _port: False),
    }
    async with EgressProxy(guard, clients=clients, decided=decisions.append) as proxy:
        port = await proxy.listen_tcp()

        async def ask(credential: str) -> int:
            return status(
                await exchange(
                    port,
                    f"GET http://127.0.0.1:{inside.port}/ HTTP/1.1\r\n{credential}\r\n".encode(),
                )
            )

        def basic(text: str) -> str:
            return f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}\r\n"

        assert await ask("") == 407
        assert await ask(basic("x:wrong")) == 407
        assert await ask("Proxy-Authorization: Basic ???\r\n") == 407
        assert inside.contacts == []
        assert await ask(basic("x:other")) == 403
        assert inside.contacts == []
        assert await ask(basic("x:t0ken")) == 200
        assert await ask("Proxy-Authorization: Bearer t0ken\r\n") == 200
    assert [d.client for d in decisions] == ["run_2", "run_1", "run_1"]


async def test_it_listens_on_a_unix_socket_too(inside: Inside, tmp_path: Path) -> None:
    path = tmp_path / "egress"
    guard = Guard(allow_private=frozenset({f"127.0.0.1:{inside.port}"}))
    async with EgressProxy(guard) as proxy:
        await proxy.listen_unix(path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"GET http://127.0.0.1:{inside.port}/ HTTP/1.1\r\n\r\n".encode())
        assert (await reader.read()).endswith(b"inside")
        writer.close()


async def test_more_connections_than_the_limit_are_turned_away(port: int, inside: Inside) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LIMITS.connections)]
    for _, writer in held:  # each is in the proxy's hands once it has answered something
        writer.write(f"CONNECT 127.0.0.1:{inside.port} HTTP/1.1\r\n\r\n".encode())
    for reader, _ in held:
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert status(await exchange(port, b"GET http://a.example.com/ HTTP/1.1\r\n\r\n")) in {0, 503}
    for _, writer in held:
        writer.close()


async def test_silence_and_floods_end_a_tunnel(inside: Inside) -> None:
    guard = Guard(allow_private=frozenset({f"127.0.0.1:{inside.port}"}))
    limits = ProxyLimits(idle_s=0.2, bytes_each_way=10_000)
    sent = f"CONNECT 127.0.0.1:{inside.port} HTTP/1.1\r\n\r\n".encode()
    async with EgressProxy(guard, limits=limits) as proxy:
        port = await proxy.listen_tcp()
        assert status(await exchange(port, sent)) == 200  # and then the proxy hangs up
        inside.answer = b"x" * 50_000
        flood = await exchange(port, sent, then=b"GET / HTTP/1.1\r\n\r\n")
        assert len(flood) <= limits.bytes_each_way


async def test_a_body_that_says_it_is_too_large_goes_nowhere(port: int, inside: Inside) -> None:
    head = f"POST http://127.0.0.1:{inside.port}/ HTTP/1.1\r\nContent-Length: "
    most = LIMITS.bytes_each_way
    answer = await exchange(port, f"{head}{most}\r\n\r\n".encode() + b"x" * most)
    assert status(answer) == 200
    assert status(await exchange(port, f"{head}{most + 1}\r\n\r\n".encode())) == 413
    assert len(inside.heads) == 1


async def test_a_body_that_takes_its_time_is_no_silence() -> None:
    async def after_the_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"last")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(after_the_body, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[1]
    guard = Guard(allow_private=frozenset({f"127.0.0.1:{target}"}))
    idle_s = 0.7
    async with EgressProxy(guard, limits=ProxyLimits(idle_s=idle_s)) as proxy:
        own = await proxy.listen_tcp()
        for framing, frame in (
            ("Content-Length: 404", b"%s"),
            ("Transfer-Encoding: chunked", b"4\r\n%s\r\n"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            head = f"POST http://127.0.0.1:{target}/ HTTP/1.1\r\n{framing}\r\n\r\n"
            writer.write(head.encode())
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + 1.2 * idle_s:
                writer.write(frame % b"more")
                await asyncio.sleep(idle_s / 20)
            writer.write(frame % b"last")
            async with asyncio.timeout(5):
                assert status(await reader.read()) == 204
            writer.close()
    server.close()
    await server.wait_closed()


async def test_a_page_of_its_own_is_answered_here_and_nothing_is_looked_up(
    inside: Inside, liar: Liar, decisions: list[EgressDecision]
) -> None:
    pages = {"http://own.example/": "<h1>ours</h1>"}
    guard = Guard(resolve=liar)
    async with EgressProxy(guard, decided=decisions.append, limits=LIMITS, pages=pages) as proxy:
        port = await proxy.listen_tcp()
        answer = await exchange(port, b"GET http://own.example/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(answer) == 200
        assert answer.endswith(b"<h1>ours</h1>")
        assert decisions == []
        other = await exchange(port, b"POST http://own.example/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(other) != 200


class Deaf:
    """A server that takes connections and never reads from them."""

    async def __aenter__(self) -> int:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        port: int = self._listener.getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()


@pytest.mark.parametrize("method", ["CONNECT", "POST"])
async def test_a_server_that_never_reads_takes_no_place_for_good(
    method: str, inside: Inside, liar: Liar
) -> None:
    one = ProxyLimits(connections=1, head_s=2, connect_s=2, idle_s=0.2)
    async with Deaf() as deaf:
        opened = frozenset({f"127.0.0.1:{deaf}", f"127.0.0.1:{inside.port}"})
        guard = Guard(resolve=liar, allow_private=opened)
        async with EgressProxy(guard, limits=one) as proxy:
            port = await proxy.listen_tcp()
            where = f"127.0.0.1:{deaf}" if method == "CONNECT" else f"http://127.0.0.1:{deaf}/"
            length = "" if method == "CONNECT" else "Content-Length: 50000000\r\n"
            head = f"{method} {where} HTTP/1.1\r\n{length}\r\n".encode()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + bytes(50_000_000))
            sent = f"GET http://127.0.0.1:{inside.port}/ HTTP/1.1\r\n\r\n".encode()
            async with asyncio.timeout(5):
                while status(await exchange(port, sent)) != 200:
                    await asyncio.sleep(0.01)
            writer.transport.abort()


async def test_the_proxy_closes_also_under_a_server_that_never_reads(liar: Liar) -> None:
    async with Deaf() as deaf:
        guard = Guard(resolve=liar, allow_private=frozenset({f"127.0.0.1:{deaf}"}))
        proxy = EgressProxy(guard, limits=ProxyLimits(idle_s=60))
        reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.listen_tcp())
        writer.write(f"CONNECT 127.0.0.1:{deaf} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(bytes(50_000_000))
        left = writer.transport.get_write_buffer_size
        before = -1
        async with asyncio.timeout(10):
            while before != left():  # until nothing moves any more
                before = left()
                await asyncio.sleep(0.1)
            await proxy.close()
        writer.transport.abort()
