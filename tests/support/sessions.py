"""A sandbox session in memory: files in a dict, commands that a test has scripted."""

import shlex
from collections.abc import Mapping, Sequence

from toolgate.sandbox.sandbox import (
    Command,
    Entry,
    FileRefused,
    Finished,
    NotStarted,
    Piece,
    Stream,
    no_piece,
)


class FakeFiles:
    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = dict(contents)

    async def read(self, path: str, *, limit: int, offset: int = 0) -> bytes:
        return self.contents[self._beneath(path)][offset : offset + limit]

    async def version(self, path: str) -> str:
        return str(hash(self.contents[self._beneath(path)]))

    async def write(self, path: str, content: bytes, *, append: bool = False) -> int:
        before = self.contents.get(path, b"") if append else b""
        self.contents[path] = before + content
        return len(self.contents[path])

    async def list(self, path: str, *, recursive: bool, limit: int) -> Sequence[Entry]:
        if ".." in path or path.startswith("/"):
            raise FileRefused(f"{path} is outside the workspace")
        names = sorted(self.contents)
        return [Entry(name, "file", len(self.contents[name])) for name in names][:limit]

    def _beneath(self, path: str) -> str:
        if path not in self.contents:
            raise FileRefused(f"{path} is not in the workspace")
        return path


class FakeSession:
    """`scripted` maps a command's text, or its words, to its end; others do not start."""

    def __init__(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        scripted: Mapping[str, Finished | Exception] | None = None,
    ) -> None:
        self.files = self.unlinked_files = FakeFiles(files or {})  # there are no links
        self.scripted = dict(scripted or {})
        self.ran: list[Command] = []
        self.alive = True
        self.busy = False

    async def exec(self, command: Command, *, piece: Piece = no_piece) -> Finished:
        text = command.text or shlex.join(command.argv)
        end = self.scripted.get(text, NotStarted("not scripted"))
        if isinstance(end, Exception):
            raise end
        self.ran.append(command)
        piece(Stream.STDOUT, end.stdout)
        piece(Stream.STDERR, end.stderr)
        return end

    async def kill(self) -> None:
        """Nothing runs for longer than a call of `exec`."""

    async def close(self) -> None:
        self.alive = False
