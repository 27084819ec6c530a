"""What every HTTP surface shares: JSON answers, bearer checks, body limits, server-sent events.

It knows no contract: a surface says what its own errors look like on the wire.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DEFAULT_BODY_LIMIT: Final = 1_000_000  # "413 over 1 MB" (gateway contract)


class BodyTooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class Json(Response):
    """An answer whose content is already the thing to encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


async def read_body(request: Request, *, limit: int = DEFAULT_BODY_LIMIT) -> bytes:
    """The whole body; raises BodyTooLarge as soon as the limit is passed, declared or not."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def bearer(request: Request) -> str:
    """The bearer token of a request; empty where it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same_secret(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def server_sent_event(data: bytes, *, event: str = "", event_id: str = "") -> bytes:
    """One event in the standard's framing; `data` must hold no line break (JSON does not)."""
    head = (f"id: {event_id}\n" if event_id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + data + b"\n\n"


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(
        chunks,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
