"""Listeners that stand for the inside, and a resolver that lies as an attacker's would."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.web.ssrf_payloads import ANSWERS


@dataclass
class Inside:
    """One port on every address of this machine; counts who comes, and answers 200."""

    port: int
    contacts: list[object] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ninside"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.contacts.append(writer.get_extra_info("sockname"))
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


class Liar:
    """Answers from a table; `rebind.example.com` is public at first and inside afterwards."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, name: str, _port: int) -> Sequence[str]:
        self.asked.append(name)
        if name == "rebind.example.com":
            return ["192.0.2.10"] if self.asked.count(name) == 1 else ["127.0.0.1"]
        if name not in ANSWERS:
            raise OSError("no such name")
        return ANSWERS[name]
