"""The event loop of a server: it stops accepting for a moment when descriptors run out.

libuv would try again at once, without end, and log each try.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import aiofastnet
import uvloop

log = logging.getLogger(__name__)

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})
FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 1.0
LOG_EVERY_S: Final = 1.0

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
Connect = Callable[[ProtocolFactory, socket.socket], Awaitable[object]]


class AcceptingServer(asyncio.AbstractServer):
    """A listening socket and the task that accepts its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: ProtocolFactory,
        bound: socket.socket,
        connect: Connect,
    ) -> None:
        self.sockets: Sequence[socket.socket] = (bound,)
        self._loop = loop
        self._factory = factory
        self._connect_socket = connect
        self._logged_at = -LOG_EVERY_S
        self._accepting = loop.create_task(self._accept(bound), name="accept")
        self._connecting: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        self._accepting.cancel()
        for bound in self.sockets:
            bound.close()
        self.sockets = ()

    async def wait_closed(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting

    def is_serving(self) -> bool:
        return not self._accepting.done()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def start_serving(self) -> None:
        """It serves from the start."""

    async def serve_forever(self) -> None:
        await self._accepting

    async def _accept(self, bound: socket.socket) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(bound)
            except OSError as failed:
                if failed.errno in GONE:
                    continue
                self._report(bound, failed)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                continue
            pause = FIRST_PAUSE_S
            connecting = self._loop.create_task(self._connect(accepted))
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._connect_socket(self._factory, accepted)
        except OSError as failed:  # the client has left already
            log.debug("connection_lost error=%s", failed)
            accepted.close()

    def _report(self, bound: socket.socket, failed: OSError) -> None:
        now = self._loop.time()
        if now - self._logged_at < LOG_EVERY_S:
            return
        self._logged_at = now
        more = " raise the limit of open files (ulimit -n)" if failed.errno in EXHAUSTED else ""
        log.error("accept_failed address=%s error=%s%s", bound.getsockname(), failed, more)


class Loop(uvloop.Loop):
    """uvloop, whose servers on a bound socket are AcceptingServers.

    `fast` gives connections the transports of aiofastnet, which picows is quickest with.
    """

    async def create_server(  # type: ignore[override]
        self, factory: ProtocolFactory, *args: Any, **options: Any
    ) -> asyncio.AbstractServer:
        bound = options.get("sock")
        if bound is None or options.get("ssl") is not None or options.get("reuse_port"):
            served: asyncio.AbstractServer = await super().create_server(factory, *args, **options)
            return served
        bound.setblocking(False)
        bound.listen(options.get("backlog", 100))
        connect: Connect = self.connect_accepted_socket
        if options.get("fast"):
            connect = partial(aiofastnet.connect_accepted_socket, self)
        return AcceptingServer(self, factory, bound, connect)


def fast() -> dict[str, Any]:
    """The options of picows' `ws_create_server` on the running loop."""
    mine = isinstance(asyncio.get_running_loop(), Loop)
    return {"fast": True, "use_aiofastnet": False} if mine else {}


def run(main: Any) -> Any:
    """Run a server's main coroutine."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
