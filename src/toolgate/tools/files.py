"""Files that were kept: bytes by the name of their content, and who may put them in a workspace.

A ref (`files/<sha256>`) is no secret, so it opens nothing by itself: only the tenant and workspace
that kept a file, or were given it, can use it in a tool.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.errors import Invalid, NotFound
from toolgate.core.tools import Caller
from toolgate.journal.blobs import Blobs
from toolgate.journal.journal import Journal, Operation
from toolgate.journal.rows import store

COLLECTION: Final = "file_artifacts"  # rows by digest and owner
LARGEST_FILE: Final = 32 * 1024 * 1024  # half of what a session's disk holds
CHECK_SECONDS: Final = 10.0  # a file can be written so that each of its bytes has to be looked at
WINDOW: Final = 64 * 1024
OVERLAP: Final = 4 * 1024  # longer than what gives a secret away
PREFIX: Final = "files/"
_TEXTS: Final = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]{8,}")
_REF: Final = re.compile(r"files/([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class FileArtifact:
    ref: str
    size: int

    @property
    def sha256(self) -> str:
        return self.ref.removeprefix(PREFIX)


Also = Callable[[FileArtifact], Sequence[Operation]]


def nothing(_: FileArtifact) -> Sequence[Operation]:
    return ()


class _Row(msgspec.Struct, frozen=True):
    size: int
    kept_at: int  # Unix ms


_encode: Final = msgspec.json.Encoder().encode


class FileArtifacts:
    def __init__(
        self,
        blobs: Blobs,
        journal: Journal,
        *,
        clock: Clock,
        holds_secret: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._blobs = blobs
        self._journal = journal
        self._clock = clock
        self._holds_secret = holds_secret
        self._one_at_a_time = asyncio.Lock()

    async def keep(self, content: bytes, *, owner: Caller, also: Also = nothing) -> FileArtifact:
        """On disk when this returns, with what else is to be written of it in the same commit.

        Raises Invalid for what is too large or holds a secret.
        """
        if len(content) > LARGEST_FILE:
            raise Invalid(f"a file that is kept has at most {LARGEST_FILE} bytes")
        async with self._one_at_a_time:  # looking at one takes a while, and much of the processor
            await asyncio.to_thread(self._check, content)
        digest = (await self._blobs.put(content)).removeprefix("sha256:")
        row = _Row(len(content), self._clock.now_ms())
        kept = FileArtifact(PREFIX + digest, len(content))
        await store(self._journal, COLLECTION, _key(digest, owner), _encode(row), *also(kept))
        return kept

    def _check(self, content: bytes) -> None:
        """Raises Invalid where a secret is in it; it cannot be masked, or it would be another file."""
        text = _readable(content)
        deadline = self._clock.monotonic() + CHECK_SECONDS
        for start in range(0, len(text), WINDOW):
            if self._clock.monotonic() > deadline:
                raise Invalid("the file could not be checked for secrets in time")
            if self._holds_secret(text[start : start + WINDOW + OVERLAP]):
                raise Invalid("the file holds a secret, and secrets are not kept")

    async def get(self, ref: str, *, owner: Caller) -> bytes:
        """For a tool; raises Invalid, or NotFound, which is also said of others' files."""
        digest = _digest(ref)
        if await self._journal.get(COLLECTION, _key(digest, owner)) is None:
            raise NotFound("artifact", ref)
        return await self._blobs.get(f"sha256:{digest}")

    async def fetch(self, ref: str) -> bytes:
        """For whoever may read everything; raises Invalid or NotFound."""
        digest = _digest(ref)
        rows = await self._journal.scan(COLLECTION, after=f"{digest}/", limit=1)
        if not rows or not rows[0].key.startswith(f"{digest}/"):
            raise NotFound("artifact", ref)
        return await self._blobs.get(f"sha256:{digest}")


def _readable(content: bytes) -> str:
    """What a secret could be read in: the text, or what is text in something that is none."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "\0".join(_TEXTS.findall(content.decode("utf-8", "replace")))


def is_file(ref: str) -> bool:
    return ref.startswith(PREFIX)


def _digest(ref: str) -> str:
    found = _REF.fullmatch(ref)
    if found is None:
        raise Invalid("the ref of a file is files/ and its SHA-256", field="artifact")
    return found[1]


def _key(digest: str, owner: Caller) -> str:
    whose = "".join(f"{len(part)}:{part}" for part in (owner.tenant, owner.workspace))
    return f"{digest}/{sha256(whose.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
