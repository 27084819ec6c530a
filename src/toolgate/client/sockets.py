"""One WebSocket to an ingress: messages in order, and nothing about what they mean."""

import asyncio
from collections import deque
from typing import Final

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

MANY: Final = 1000  # messages that may wait for their reader before the socket does
OPENING_S: Final = 10.0
SILENCE_S: Final = (
    20.0  # after which the server is asked if it is there; as long it may take to say so
)


class Closed(Exception):
    """The connection is gone; `code` is the close code, 1006 where none was said."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        super().__init__(f"{code} {reason}".strip())
        self.code = code
        self.reason = reason


class Socket(WSListener):
    """Made by `open_socket`."""

    def __init__(self) -> None:
        super().__init__()
        self._transport: WSTransport | None = None
        self._inbox: deque[bytes] = deque()
        self._pieces: list[bytes] = []
        self._arrived = asyncio.Event()
        self._closed: Closed | None = None
        self._paused = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.CONTINUATION:
                self._pieces.append(frame.get_payload_as_bytes())
                if frame.fin:
                    self._inbox.append(b"".join(self._pieces))
                    self._pieces = []
                    self._arrived.set()
                if len(self._inbox) > MANY and not self._paused:
                    self._paused = True
                    transport.underlying_transport.pause_reading()
            case WSMsgType.CLOSE:
                payload = frame.get_payload_as_bytes()
                code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
                self._closed = Closed(code, payload[2:].decode(errors="replace"))
                if not transport.is_close_frame_sent:
                    transport.send(WSMsgType.CLOSE, payload[:2] or None)
                transport.disconnect()
            case _:
                return

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._closed = self._closed or Closed()
        self._arrived.set()

    def pause_writing(self) -> None:
        """What a client says is little: the transport may hold it."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._closed is None

    async def receive(self) -> bytes:
        """The next message; Closed once all that came before the end has been read."""
        while not self._inbox:
            if self._closed is not None and self._transport is None:
                raise self._closed
            self._arrived.clear()
            await self._arrived.wait()
        message = self._inbox.popleft()
        if self._paused and len(self._inbox) < MANY // 2 and self._transport is not None:
            self._paused = False
            self._transport.underlying_transport.resume_reading()
        return message

    def send(self, message: bytes) -> None:
        if self._transport is None:
            raise self._closed or Closed()
        self._transport.send(WSMsgType.TEXT, message)

    async def close(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.send(WSMsgType.CLOSE, (1000).to_bytes(2, "big"))
            transport.disconnect()
            await transport.wait_disconnected()


async def open_socket(url: str) -> Socket:
    """Raises Closed where there is nobody, or nobody who speaks WebSocket."""
    try:
        async with asyncio.timeout(OPENING_S):
            _, listener = await ws_connect(
                Socket,
                url,
                logger_name="toolgate-client",
                enable_auto_ping=True,
                auto_ping_idle_timeout=SILENCE_S,
                auto_ping_reply_timeout=SILENCE_S,
            )
    except Exception as failed:  # such as a redirect to what is no WebSocket, or an odd URL
        raise Closed(1006, str(failed) or type(failed).__name__) from failed
    if not isinstance(listener, Socket):  # the server hung up before it had answered
        raise Closed(1006, "no answer to the handshake")
    return listener
