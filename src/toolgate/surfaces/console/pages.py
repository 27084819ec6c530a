"""The console's own files, in memory, under a policy that lets nothing else in."""

import re
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

STATIC: Final = "/console/static/"
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?")

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    media_type: str
    etag: str


def read_files() -> dict[str, File]:
    """Every file that ships with the console, by its path."""
    found: dict[str, File] = {}
    _collect(resources.files("toolgate.surfaces.console").joinpath("static"), "", found)
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, File]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
            continue
        media_type = _TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type:
            content = entry.read_bytes()
            etag = f'"{sha256(content).hexdigest()[:20]}"'
            found[prefix + entry.name] = File(content, media_type, etag)


def content_policy(host: str, *, chat_port: int) -> str:
    """Only our own files, and the WebSocket of the chat on the host the page came from."""
    name = host if _HOST.fullmatch(host) else "127.0.0.1"
    name = re.sub(r":\d+$", "", name)
    chat = f"ws://{name}:{chat_port} wss://{name}:{chat_port}"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        f"connect-src 'self' {chat}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class Pages:
    def __init__(self, *, chat_port: int) -> None:
        self.files = read_files()
        self._chat_port = chat_port

    async def page(self, request: Request) -> Response:
        """Every view has an address of its own, and all are this one document."""
        return self._answer(request, self.files["index.html"])

    async def static(self, request: Request) -> Response:
        file = self.files.get(request.path_params["path"])
        if file is None:
            return Response(status_code=404, headers=HEADERS)
        return self._answer(request, file)

    def _answer(self, request: Request, file: File) -> Response:
        policy = content_policy(request.headers.get("host", ""), chat_port=self._chat_port)
        headers = {
            **HEADERS,
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "ETag": file.etag,
        }
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)
