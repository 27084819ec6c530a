"""A sandbox that runs nothing: it answers as told and remembers what it was asked."""

import asyncio
import sys
from collections.abc import Sequence

from toolgate.sandbox.sandbox import (
    Command,
    Entry,
    FileRefused,
    Files,
    Finished,
    NotStarted,
    Piece,
    SessionKey,
    SessionSpec,
    Stream,
    no_piece,
)


class FakeFiles:
    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    async def read(self, path: str, *, limit: int, offset: int = 0) -> bytes:
        if path not in self.content:
            raise FileRefused("No such file or directory")
        return self.content[path][offset : offset + limit]

    async def version(self, path: str) -> str:
        return str(hash(await self.read(path, limit=sys.maxsize)))

    async def write(self, path: str, content: bytes, *, append: bool = False) -> int:
        before = self.content.get(path, b"") if append else b""
        self.content[path] = before + content
        return len(self.content[path])

    async def list(self, path: str, *, recursive: bool, limit: int) -> Sequence[Entry]:
        return [Entry(name, "file", len(text)) for name, text in sorted(self.content.items())][
            :limit
        ]


class FakeSession:
    """Echoes each command to its standard output, once `gate` is open; ends once `exit` is."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.alive = True
        self.busy = False
        self.files: Files = FakeFiles()
        self.unlinked_files = self.files  # there are no links
        self.commands: list[Command] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.exit = asyncio.Event()
        self.exit.set()

    async def exec(self, command: Command, *, piece: Piece = no_piece) -> Finished:
        if not self.alive:
            raise NotStarted("the session has ended")
        self.commands.append(command)
        self.busy = True
        try:
            await self.gate.wait()
        finally:
            self.busy = False
        output = command.text.encode()
        piece(Stream.STDOUT, output)
        return Finished(0, output, b"", len(output), 0)

    async def kill(self) -> None:
        self.gate.set()

    async def close(self) -> None:
        self.alive = False
        await self.exit.wait()


class FakeSandbox:
    isolation = "fake"
    can_be_clean = True

    def __init__(self) -> None:
        self.opened: list[FakeSession] = []
        self.refuses = ""
        self.closed = False

    async def check(self) -> None:
        """It always holds."""

    async def open(self, spec: SessionSpec) -> FakeSession:
        if self.refuses:
            raise NotStarted(self.refuses)
        self.opened.append(FakeSession(spec))
        return self.opened[-1]

    async def close(self) -> None:
        self.closed = True

    def session_of(self, key: SessionKey) -> FakeSession:
        """The newest one of a key."""
        return next(each for each in reversed(self.opened) if each.spec.key == key)
