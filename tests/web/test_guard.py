"""The guarded client against real listeners: what must not be reached is never even connected to."""

import asyncio
import gzip
import socket
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Never

import pytest

from tests.tasks.runtimes import until
from tests.web.inside import Inside, Liar
from tests.web.ssrf_payloads import payloads
from toolgate.core.addresses import Host, parse_host
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.urls import Url
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.web.guard import Guard, GuardedWeb, WebLimits, connect
from toolgate.web.web import Blocked, WebRequest

FAST = WebLimits(total_s=5, body_bytes=1000, redirects=3)


@pytest.fixture
async def open_web(inside: Inside, liar: Liar) -> AsyncIterator[GuardedWeb]:
    """A client to which the inside's own address, and nothing else, has been opened."""
    opened = frozenset({f"127.0.0.1:{inside.port}"})
    async with GuardedWeb(Guard(resolve=liar, allow_private=opened), limits=FAST) as web:
        yield web


async def attempt(web: GuardedWeb, url: str) -> str:
    try:
        answer = await web.fetch(WebRequest(url))
    except (Invalid, Blocked, Unavailable) as refused:
        return type(refused).__name__
    return f"answered {answer.status}"


async def test_no_payload_makes_contact_with_the_inside(
    inside: Inside, liar: Liar, record_property: Callable[[str, object], None]
) -> None:
    tried = payloads(inside.port)
    assert len(tried) >= 120
    async with GuardedWeb(Guard(resolve=liar), limits=FAST) as web:
        outcomes = {url: await attempt(web, url) for url in tried}
    answered = [url for url, outcome in outcomes.items() if outcome.startswith("answered")]
    past = max(len(answered), len(inside.contacts))
    record_property("class", ["addresses of the inside", len(tried), len(tried) - past])
    assert inside.contacts == []
    assert answered == []


async def test_the_listener_that_counts_is_really_there(
    inside: Inside, open_web: GuardedWeb
) -> None:
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert (answer.status, answer.body) == (200, b"inside")
    assert len(inside.contacts) == 1


async def test_what_the_operator_opened_is_that_host_and_port_only(
    inside: Inside, open_web: GuardedWeb
) -> None:
    for disguise in (
        "127.1",
        "localhost",
        "[::1]",
        "127.0.0.2",
        "2130706433",
        "[::ffff:127.0.0.1]",
    ):
        with pytest.raises(Blocked):
            await open_web.fetch(WebRequest(f"http://{disguise}:{inside.port}/"))
    with pytest.raises(Blocked):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port + 1}/"))
    assert inside.contacts == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/",
        "//127.0.0.2:{port}/", "http://0x7f.2:{port}/", "http://loopback.example.com:{port}/",
        "http://user@127.0.0.1:{port}/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/",
    ],
)  # fmt: skip
@pytest.mark.requirement("002/system/fetch-redirects")
async def test_a_redirect_to_the_inside_is_not_followed(
    inside: Inside, open_web: GuardedWeb, status: int, location: str
) -> None:
    target = location.format(port=inside.port)
    inside.answer = (
        f"HTTP/1.1 {status} Moved\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
    ).encode()
    with pytest.raises((Blocked, Invalid)):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert len(inside.contacts) == 1


async def test_redirects_end_at_their_limit(inside: Inside, open_web: GuardedWeb) -> None:
    inside.answer = b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(Blocked):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert len(inside.heads) == FAST.redirects + 1


@pytest.mark.requirement("002/system/fetch-pinned")
async def test_a_name_that_changes_its_address_after_the_check_is_never_asked_twice(
    inside: Inside,
) -> None:
    """The answer that was checked is the one that is used: here, one that refuses to connect."""
    answers = iter([["192.0.2.10"], ["127.0.0.1"], ["127.0.0.1"]])
    asked: list[str] = []

    async def rebinding(name: str, _port: int) -> Sequence[str]:
        asked.append(name)
        return next(answers)

    async with GuardedWeb(Guard(resolve=rebinding), limits=FAST) as web:
        for _ in range(3):
            with pytest.raises(Blocked):
                await web.fetch(WebRequest(f"http://rebind.example.com:{inside.port}/"))
    assert len(asked) == 3
    assert inside.contacts == []


def test_a_socket_is_refused_for_a_peer_that_nobody_checked() -> None:
    """Were the resolver's answer replaced on its way, the socket would still not be made."""
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))
    with pytest.raises(Blocked):
        Guard().socket_for(info)


async def test_a_raw_connection_meets_the_same_guard(inside: Inside, liar: Liar) -> None:
    guard = Guard(resolve=liar, allow_private=frozenset({f"127.0.0.1:{inside.port}"}))
    for text in ("127.0.0.2", "loopback.example.com", "[::1]", "0x7f.1", "rebind.example.com"):
        with pytest.raises(Blocked):
            await connect(guard, parse_host(text), inside.port)
    assert inside.contacts == []
    sock = await connect(guard, parse_host("127.0.0.1"), inside.port)
    assert sock.getpeername() == ("127.0.0.1", inside.port)
    sock.close()


async def test_a_host_that_was_not_granted_is_not_looked_up(inside: Inside, liar: Liar) -> None:
    async with GuardedWeb(Guard(resolve=liar), limits=FAST) as web:
        with pytest.raises(Blocked):
            await web.fetch(WebRequest("http://elsewhere.example.com/"), granted=lambda *_: False)
    assert liar.asked == []


async def test_each_hop_is_granted_anew(inside: Inside, open_web: GuardedWeb) -> None:
    inside.answer = b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n"
    seen: list[str] = []

    def granted(url: Url, _method: str) -> bool:
        seen.append(url.target)
        return url.target == "/first"

    with pytest.raises(Blocked):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/first"), granted=granted)
    assert seen == ["/first", "/next"]
    assert len(inside.heads) == 1


async def test_credentials_do_not_follow_a_redirect_to_another_origin(
    inside: Inside, liar: Liar
) -> None:
    opened = frozenset({f"127.0.0.1:{inside.port}", f"127.0.0.2:{inside.port}"})
    inside.answer = (
        f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:{inside.port}/\r\n"
        "Content-Length: 0\r\nSet-Cookie: a=b\r\n\r\n"
    ).encode()
    headers = {"Authorization": "Bearer s3cret", "X-Api-Key": "s3cret", "Accept": "text/x"}
    async with GuardedWeb(Guard(resolve=liar, allow_private=opened), limits=FAST) as web:
        with pytest.raises(Blocked):
            await web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/", headers=headers))
    assert b"s3cret" in inside.heads[0]
    assert b"s3cret" not in b"".join(inside.heads[1:])
    assert b"text/x" in inside.heads[1]
    assert b"ookie" not in b"".join(inside.heads)


async def test_a_post_that_is_sent_elsewhere_becomes_a_get(
    inside: Inside, open_web: GuardedWeb
) -> None:
    inside.answer = b"HTTP/1.1 303 See Other\r\nLocation: /done\r\nContent-Length: 0\r\n\r\n"
    methods: list[str] = []

    def granted(_url: Url, method: str) -> bool:
        methods.append(method)
        return True

    with pytest.raises(Blocked):
        await open_web.fetch(
            WebRequest(f"http://127.0.0.1:{inside.port}/", method="POST", body=b"x=1"),
            granted=granted,
        )
    assert [head.split(b" ")[0] for head in inside.heads[:2]] == [b"POST", b"GET"]
    assert methods[:2] == ["POST", "GET"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "other"}, {"Transfer-Encoding": "chunked"}, {"Content-Length": "5"},
        {"Proxy-Authorization": "x"}, {"Connection": "upgrade"}, {"X-A": "b\r\nHost: other"},
        {"X-A": "b\nc"}, {"X A": "b"}, {"": "b"}, {"X-A": "b\x00"},
    ],
)  # fmt: skip
async def test_headers_that_could_speak_for_another_request_are_refused(
    open_web: GuardedWeb, inside: Inside, headers: dict[str, str]
) -> None:
    with pytest.raises(Invalid):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/", headers=headers))
    assert inside.contacts == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "CONNECT", "TRACE", "GET / HTTP/1.1\r\n"])
async def test_other_methods_are_refused(open_web: GuardedWeb, inside: Inside, method: str) -> None:
    with pytest.raises(Invalid):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/", method=method))
    assert inside.contacts == []


def answer_with(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_a_compressed_answer_is_decoded_and_a_bomb_is_cut_at_the_limit(
    inside: Inside, open_web: GuardedWeb, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    inside.answer = answer_with(pack(b"small"), f"Content-Encoding: {encoding}")
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert (answer.body, answer.truncated) == (b"small", False)

    inside.answer = answer_with(pack(bytes(20_000_000)), f"Content-Encoding: {encoding}")
    tracemalloc.start()
    try:
        answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(answer.body), answer.truncated) == (FAST.body_bytes, True)
    assert peak < 2_000_000


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"first, ") + gzip.compress(b"second")),
        ("gzip", gzip.compress(b"first, second") + bytes(16)),
        ("deflate", raw_deflate(b"first, second")),
    ],
    ids=["gzip in members", "padded gzip", "deflate without its header"],
)
async def test_a_compressed_answer_is_decoded_whole_however_it_was_packed(
    inside: Inside, open_web: GuardedWeb, encoding: str, body: bytes
) -> None:
    inside.answer = answer_with(body, f"Content-Encoding: {encoding}")
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert (answer.body, answer.truncated) == (b"first, second", False)


async def test_a_bomb_in_the_second_member_is_cut_at_the_limit(
    inside: Inside, open_web: GuardedWeb
) -> None:
    body = gzip.compress(b"small") + gzip.compress(bytes(200_000))
    inside.answer = answer_with(body, "Content-Encoding: gzip")
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert (len(answer.body), answer.truncated) == (FAST.body_bytes, True)


@pytest.mark.parametrize(
    "body", [b"not gzip at all", gzip.compress(b"x" * 100, mtime=0)[:20] + b"\xff" * 9]
)
async def test_a_damaged_answer_is_unavailable(
    inside: Inside, open_web: GuardedWeb, body: bytes
) -> None:
    inside.answer = answer_with(body, "Content-Encoding: gzip")
    with pytest.raises(Unavailable):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
)
@pytest.mark.parametrize("ended_by", ["length", "close"])
async def test_a_compressed_answer_that_ends_too_early_is_said_to_be_cut(
    inside: Inside,
    open_web: GuardedWeb,
    encoding: str,
    pack: Callable[[bytes], bytes],
    ended_by: str,
) -> None:
    text = b"all that was to be said, " * 3 + b"and its end"
    body = pack(text)[:-12]
    inside.answer = answer_with(body, f"Content-Encoding: {encoding}")
    if ended_by == "close":
        inside.answer = inside.answer.replace(b"Content-Length", b"X-Length")
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert text.startswith(answer.body)
    assert answer.truncated


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_empty_answer_that_calls_itself_compressed_is_whole(
    inside: Inside, open_web: GuardedWeb, encoding: str
) -> None:
    inside.answer = answer_with(b"", f"Content-Encoding: {encoding}")
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert (answer.body, answer.truncated) == (b"", False)


@pytest.mark.parametrize("headers", [("Content-Encoding: gzip",), ()])
async def test_an_answer_shorter_than_it_said_is_unavailable(
    inside: Inside, open_web: GuardedWeb, headers: tuple[str, ...]
) -> None:
    inside.answer = answer_with(gzip.compress(b"text"), *headers)[:-1]
    with pytest.raises(Unavailable):
        await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))


@pytest.mark.parametrize(
    ("size", "cut"), [(999, False), (1000, False), (1001, True), (70_000, True)]
)
@pytest.mark.requirement("002/system/fetch-cap")
async def test_a_body_is_cut_at_the_limit(
    inside: Inside, open_web: GuardedWeb, size: int, cut: bool
) -> None:
    inside.answer = answer_with(b"a" * size)
    answer = await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    assert (len(answer.body), answer.truncated) == (min(size, 1000), cut)


@pytest.mark.requirement("002/system/fetch-timeout")
async def test_an_answer_that_never_ends_is_given_up_in_time(inside: Inside, liar: Liar) -> None:
    inside.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
    hang = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(inside.answer)
        await hang.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    guard = Guard(resolve=liar, allow_private=frozenset({f"127.0.0.1:{port}"}))
    async with GuardedWeb(guard, limits=WebLimits(total_s=0.2)) as web:
        with pytest.raises(Unavailable):
            await web.fetch(WebRequest(f"http://127.0.0.1:{port}/"))
    hang.set()
    server.close()
    await server.wait_closed()


async def test_proxies_named_in_the_environment_are_ignored(
    inside: Inside, open_web: GuardedWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{inside.port}")
    await open_web.fetch(WebRequest(f"http://127.0.0.1:{inside.port}/"))
    with pytest.raises((Blocked, Unavailable)):
        await open_web.fetch(WebRequest("http://nowhere.example.com/"))
    assert len(inside.heads) == 1


async def test_an_opened_name_is_reached_at_whatever_address_it_has(
    inside: Inside, liar: Liar
) -> None:
    opened = frozenset({f"loopback.example.com:{inside.port}"})
    async with GuardedWeb(Guard(resolve=liar, allow_private=opened), limits=FAST) as web:
        answer = await web.fetch(WebRequest(f"http://loopback.example.com:{inside.port}/"))
        assert answer.body == b"inside"
        with pytest.raises(Blocked):
            await web.fetch(WebRequest(f"http://private.example.com:{inside.port}/"))
    assert len(inside.contacts) == 1


async def test_a_disguised_address_is_refused_even_where_it_is_public() -> None:
    for text in ("134744072", "0x08080808", "8.8.2056", "8.8.8.8."):
        with pytest.raises(Blocked):
            await Guard().addresses(parse_host(text), 80)
    found = await Guard().addresses(parse_host("8.8.8.8"), 80)
    assert [str(address) for address in found] == ["8.8.8.8"]


async def test_a_name_without_an_address_is_unavailable() -> None:
    async def nothing(_name: str, _port: int) -> Sequence[str]:
        return []

    with pytest.raises(Unavailable):
        await Guard(resolve=nothing).addresses(Host("empty.example.com"), 80)


async def test_names_that_nobody_answers_for_hold_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    over = threading.Event()

    def silent(name: str, *_: object, **__: object) -> Never:
        asked.append(name)
        over.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    names = [Host(f"slow-{number}.example.com") for number in range(100)]
    waiting = [asyncio.ensure_future(Guard().addresses(name, 80)) for name in names]
    try:
        async with asyncio.timeout(10):
            await until(lambda: bool(asked))
            blobs = DiskBlobs(tmp_path)
            assert await blobs.get(await blobs.put(b"kept")) == b"kept"
    finally:
        over.set()
        await asyncio.gather(*waiting, return_exceptions=True)
