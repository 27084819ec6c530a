"""The guarded way to the web: what was checked is what is connected to.

A name is resolved once per connection, here; every address it has must be public; the peer of the
socket that is really opened is looked at again before it is connected. Redirects are hops like the first. Nothing is taken from the environment and nothing is kept
between requests but open connections.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import aiohttp
from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from toolgate.core.addresses import Address, Host, refusal, refused_name
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.urls import Url, join, parse_url
from toolgate.web.web import Blocked, Granted, WebRequest, WebResponse, any_host

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

METHODS: Final = frozenset({"GET", "HEAD", "POST"})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CHUNK: Final = 65536
GZIP_BITS: Final = 16 + zlib.MAX_WBITS
GZIP_MARK: Final = b"\x1f"  # of its two bytes, the one that may be all there is yet
LOOKUPS: Final = 32  # at once

# The connection is ours to manage; a caller who sets these could speak for another request.
FORBIDDEN_HEADERS: Final = frozenset(
    {
        "accept-encoding", "connection", "content-length", "cookie2", "expect", "host",
        "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "via",
    }
)  # fmt: skip
# What may follow a redirect to another origin; anything else could be a credential.
CARRIED_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\uffff]{0,8192}")

# Threads of their own: a name that nobody answers for holds one for half a minute, and blobs,
# evidence and policies must not wait for it.
_lookups: Final = ThreadPoolExecutor(LOOKUPS, "lookup")


@dataclass(frozen=True, slots=True)
class WebLimits:
    total_s: float = 15.0  # gateway contract: 15 s, 512 KiB
    body_bytes: int = 512 * 1024
    redirects: int = 5
    connections: int = 64


DEFAULT_LIMITS: Final = WebLimits()


async def system_resolve(name: str, port: int) -> Sequence[str]:
    ask = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
    infos = await asyncio.get_running_loop().run_in_executor(_lookups, ask)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class Guard:
    """Says which addresses a host may be reached at."""

    def __init__(
        self, *, resolve: Resolve = system_resolve, allow_private: frozenset[str] = frozenset()
    ) -> None:
        """`allow_private` holds exact host:port pairs that the operator opens on purpose."""
        self._resolve = resolve
        self._opened = allow_private
        self._opened_peers: set[tuple[Address, int]] = set()

    async def addresses(self, host: Host, port: int) -> tuple[Address, ...]:
        """The checked addresses; raises Blocked if one of them isn't public."""
        if self.opened(host, port):
            found = await self._look_up(host, port)
            self._opened_peers.update((address, port) for address in found)
            return found
        if reason := self.objection(host):
            raise Blocked(host.name, reason)
        found = await self._look_up(host, port)
        for address in found:
            if reason := refusal(address):
                raise Blocked(host.name, f"{address} is {reason}")
        return found

    def opened(self, host: Host, port: int) -> bool:
        return host.canonical and f"{host.bracketed}:{port}" in self._opened

    def objection(self, host: Host) -> str:
        """What can be said against a host before it is looked up."""
        if not host.canonical:
            return f"{host.name} in disguise"
        if host.address is not None:
            return refusal(host.address)
        return "a local name" if refused_name(host.name) else ""

    def socket_for(self, info: AddrInfoType) -> socket.socket:
        """A socket for a peer, just before it is connected; whoever resolved it, it is looked at."""
        family, kind, proto, _, peer = info
        address, port = ipaddress.ip_address(str(peer[0])), int(peer[1])
        if (reason := refusal(address)) and (address, port) not in self._opened_peers:
            raise Blocked(f"{address}:{port}", reason)
        return socket.socket(family, kind, proto)

    async def _look_up(self, host: Host, port: int) -> tuple[Address, ...]:
        if host.address is not None:
            return (host.address,)
        try:
            texts = await self._resolve(host.name, port)
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{host.name} cannot be resolved") from error
        try:
            found = tuple(ipaddress.ip_address(text) for text in texts)
        except ValueError as error:
            raise Blocked(host.name, "an address that cannot be read") from error
        if not found:
            raise Unavailable(f"{host.name} has no address")
        return found


async def connect(guard: Guard, host: Host, port: int, *, timeout_s: float = 10.0) -> socket.socket:
    """A TCP connection to a checked address, for whoever speaks another protocol over it."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    async with asyncio.timeout(timeout_s):
        for address in await guard.addresses(host, port):
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            peer = (str(address), port)
            sock = guard.socket_for((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", peer))
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, peer)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
    raise Unavailable(f"{host.name}:{port} cannot be reached") from failure


class _PinnedResolver(AbstractResolver):
    """Gives aiohttp the addresses that the guard has let through, and no others."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._guard.addresses(Host(host), port)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        pass


class GuardedWeb:
    """The web client, over aiohttp. Open it with `async with`."""

    def __init__(
        self,
        guard: Guard,
        *,
        limits: WebLimits = DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
        agent: str = "toolgate",
    ) -> None:
        self._guard = guard
        self._limits = limits
        self._tls = tls
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "GuardedWeb":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=_PinnedResolver(self._guard),
                use_dns_cache=False,
                socket_factory=self._guard.socket_for,
                limit=self._limits.connections,
                ssl=self._tls if self._tls is not None else True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
        method = request.method.upper()
        if method not in METHODS:
            raise Invalid(f"the method is one of {', '.join(sorted(METHODS))}", field="method")
        url, headers, body = parse_url(request.url), _checked_headers(request.headers), request.body
        hops: list[str] = []
        try:
            async with asyncio.timeout(self._limits.total_s):
                while True:
                    await self._check(url, method, granted)
                    answer = await self._ask(url, method, headers, body)
                    location = answer.header("location")
                    if answer.status not in REDIRECTS or not location:
                        return _with_hops(answer, hops)
                    if len(hops) >= self._limits.redirects:
                        raise Blocked(str(url), f"more than {self._limits.redirects} redirects")
                    hops.append(str(url))
                    following = join(url, location)
                    method, headers, body = _after_redirect(
                        answer.status, method, headers, body, leaves=following.origin != url.origin
                    )
                    url = following
        except TimeoutError as error:
            raise Unavailable(f"{url.origin} took over {self._limits.total_s} s") from error

    async def _check(self, url: Url, method: str, granted: Granted) -> None:
        """Before the connection pool is asked: a literal address never meets the resolver."""
        if not granted(url, method):
            raise Blocked(url.endpoint, "not a host that was granted")
        if url.host.address is not None or not url.host.canonical:
            await self._guard.addresses(url.host, url.port)

    async def _ask(
        self, url: Url, method: str, headers: Mapping[str, str], body: bytes
    ) -> WebResponse:
        if self._session is None:
            raise Unavailable("the web client is closed")
        try:
            async with self._session.request(
                method,
                URL(str(url), encoded=True),
                headers={
                    "User-Agent": self._agent,
                    **headers,
                    "Accept-Encoding": "gzip, deflate",
                },
                data=body if method == "POST" else None,
                allow_redirects=False,
            ) as answer:
                content, truncated = await self._read(answer, url)
                return WebResponse(
                    url=str(url),
                    status=answer.status,
                    headers=tuple((k.lower(), v) for k, v in answer.headers.items()),
                    body=content,
                    truncated=truncated,
                )
        except aiohttp.ClientError as error:
            raise Unavailable(f"{url.origin} does not answer: {type(error).__name__}") from error

    async def _read(self, answer: aiohttp.ClientResponse, url: Url) -> tuple[bytes, bool]:
        inflater = _inflater(answer.headers.get("Content-Encoding", ""))
        limit = self._limits.body_bytes
        received = 0
        body = bytearray()
        async for chunk in answer.content.iter_chunked(CHUNK):
            received += len(chunk)
            try:
                body += inflater.inflate(chunk, limit + 1 - len(body))
            except zlib.error as error:
                raise Unavailable(f"{url.origin} sent what cannot be decompressed") from error
            if len(body) > limit or received > limit:
                answer.close()  # what follows isn't wanted; the connection cannot be used again
                return bytes(body[:limit]), True
        return bytes(body), not inflater.is_done


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise Invalid(f"not a header: {name[:100]!r}", field="headers")
        lowered = name.lower()
        if lowered in FORBIDDEN_HEADERS or lowered.startswith(("proxy-", "sec-")):
            raise Invalid(f"the header {name} is not the caller's to set", field="headers")
        checked[lowered] = value
    return checked


def _after_redirect(
    status: int, method: str, headers: dict[str, str], body: bytes, *, leaves: bool
) -> tuple[str, dict[str, str], bytes]:
    """Method, headers and body of the next hop; nothing that may be a secret changes origin."""
    if leaves:
        headers = {name: value for name, value in headers.items() if name in CARRIED_HEADERS}
    if method == "POST" and status in {301, 302, 303}:
        return "GET", {k: v for k, v in headers.items() if k != "content-type"}, b""
    return method, headers, body


class _Inflater(Protocol):
    @property
    def is_done(self) -> bool:
        """Whether no more is to come, as far as what came says so."""
        ...

    def inflate(self, chunk: bytes, room: int) -> bytes:
        """Decompress at most so many bytes of a chunk; a bomb costs no more than the limit."""
        ...


def _inflater(encoding: str) -> _Inflater:
    match encoding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Gunzip()
        case "deflate":
            return _Undeflate()
        case _:
            raise Unavailable(f"the answer is encoded as {encoding[:40]!r}, which wasn't asked for")


class _Plain:
    is_done = True

    def inflate(self, chunk: bytes, room: int) -> bytes:
        return chunk[: max(room, 0)]


class _Gunzip:
    """One member after the other (RFC 1952, 2.2); what follows the last is let be."""

    def __init__(self) -> None:
        self._unzip = zlib.decompressobj(wbits=GZIP_BITS)
        self._begun = False

    @property
    def is_done(self) -> bool:
        return self._unzip.eof or not self._begun

    def inflate(self, chunk: bytes, room: int) -> bytes:
        self._begun = True
        found = self._unzip.decompress(chunk, room)
        while len(found) < room and (rest := self._unzip.unused_data).startswith(GZIP_MARK):
            self._unzip = zlib.decompressobj(wbits=GZIP_BITS)
            found += self._unzip.decompress(rest, room - len(found))
        return found


class _Undeflate:
    """With zlib's header or, as some servers send it, without (RFC 9110, 8.4.1.2)."""

    _unzip: "zlib._Decompress | None" = None

    @property
    def is_done(self) -> bool:
        return self._unzip is None or self._unzip.eof

    def inflate(self, chunk: bytes, room: int) -> bytes:
        if self._unzip is None:
            headed = chunk[0] & 0x0F == zlib.DEFLATED
            self._unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS if headed else -zlib.MAX_WBITS)
        return self._unzip.decompress(chunk, room)


def _with_hops(answer: WebResponse, hops: Sequence[str]) -> WebResponse:
    return WebResponse(
        url=answer.url,
        status=answer.status,
        headers=answer.headers,
        body=answer.body,
        truncated=answer.truncated,
        hops=tuple(hops),
    )
