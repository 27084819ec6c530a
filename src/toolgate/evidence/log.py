"""The evidence log: records into the journal, and from there into a signed Merkle log on disk.

A record is durable once its commit is; the tiles and checkpoints under `<home>/evidence` follow
within a second, are made from the journal alone, and can always be made again. Close this before
the journal.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.errors import Damaged, Invalid, NotFound
from toolgate.core.tools import JsonValue
from toolgate.evidence import checkpoints
from toolgate.evidence.checkpoints import ENTRY_LIMIT, Checkpoint, VerifierKey
from toolgate.evidence.evidence import STREAM, Scalar, record_of
from toolgate.evidence.records import (
    Record,
    artifacts_of,
    canonical,
    check_fields,
    digest_of,
    find_artifact,
    in_order,
    index_in,
    is_kind,
    make_proof,
    size_of,
    subject_of,
)
from toolgate.evidence.recovery import take_up
from toolgate.evidence.signer import Ed25519Signer
from toolgate.evidence.tiles import PUBLIC_KEY, TiledLog, TileFiles
from toolgate.journal.blobs import Blobs
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Append, Event, Journal, NewEvent, Operation
from toolgate.secrets.redaction import Redactor

log = logging.getLogger(__name__)

FETCHED: Final = 20  # records at a time in search of an artifact; most requests have two or three


@dataclass(frozen=True, slots=True)
class Options:
    publish_every: float = 0.5  # seconds; a checkpoint at least every second while records come
    look_again_after: float = 5.0  # seconds; where a hint of the bus was lost
    inline_limit: int = 32_768  # bytes; a larger artifact goes to the blobs
    text_limit: int = 2_000  # characters of one field; longer ones belong in an artifact
    page: int = 1_000


class EvidenceLog:
    """Made by `open`, which checks that the log on disk is the beginning of the journal's."""

    def __init__(
        self,
        files: TileFiles,
        log: TiledLog,
        *,
        journal: Journal,
        blobs: Blobs,
        bus: Bus,
        clock: Clock,
        signer: Ed25519Signer,
        redactor: Redactor,
        commit: Callable[[bytes], str],
        published: Callable[[Checkpoint], None],
        options: Options,
    ) -> None:
        self._files = files
        self._log = log
        self._journal = journal
        self._blobs = blobs
        self._clock = clock
        self._signer = signer
        self._redactor = redactor
        self._commit = commit
        self._published = published
        self._options = options
        self._arrived: list[Event] = []
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._stale = False
        self._publishing = asyncio.Lock()
        self._checkpoint = ""
        self.failure = ""  # why the last attempt to publish failed, for health
        self._subscription = bus.subscribe(STREAM, self._hear)
        self._publisher: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        files: TileFiles,
        *,
        journal: Journal,
        blobs: Blobs,
        bus: Bus,
        clock: Clock,
        signer: Ed25519Signer,
        redactor: Redactor,
        commit: Callable[[bytes], str],
        published: Callable[[Checkpoint], None] = lambda _: None,
        options: Options | None = None,
    ) -> Self:
        """Take up the log in this directory and keep it published.

        A thread calls `published` with each checkpoint that is on disk. Raises Damaged where what was signed is not what the journal has.
        """
        options = options or Options()
        made = cls(
            files,
            await take_up(files, journal, key=signer.key, page=options.page),
            journal=journal,
            blobs=blobs,
            bus=bus,
            clock=clock,
            signer=signer,
            redactor=redactor,
            commit=commit,
            published=published,
            options=options,
        )
        await made.publish()
        made._publisher = asyncio.create_task(made._keep_publishing(), name="evidence-publisher")
        return made

    async def close(self) -> None:
        """Publish what there is, with a last checkpoint."""
        self._closing.set()
        self._woken.set()
        if self._publisher is not None:
            await self._publisher
            self._publisher = None
            await self.publish()
        self._subscription.close()

    @property
    def key(self) -> VerifierKey:
        return self._signer.key

    @property
    def checkpoint(self) -> str:
        """The newest signed checkpoint."""
        return self._checkpoint

    def canonical(self, value: object) -> bytes:
        return canonical(value)

    def prepare(
        self, kind: str, fields: Mapping[str, Scalar], *, subject: str = ""
    ) -> list[Operation]:
        if not is_kind(kind):
            raise Invalid(f"not a kind of record: {kind}", field="kind")
        if "" in fields:
            raise Invalid("a field has a name", field="fields")
        # The subject goes along as a nameless field, so that one search does for both.
        clean = self._redactor.fields({**fields, "": subject})
        subject = str(clean.pop("", ""))
        check_fields(clean)
        record = Record({}, self._clock.now_ms(), dict(sorted(clean.items())), kind, subject)
        return [self._written(record, [b""])]

    async def of_call(
        self, kind: str, fields: object, *, call_id: str, contents: Mapping[str, bytes]
    ) -> Operation:
        prefix = f"requests/{call_id}/"
        limit = self._options.inline_limit
        named: dict[str, str] = {}
        lines = [b""]
        for name in sorted(contents):
            content = contents[name]
            named[f"{prefix}{name}.json"] = digest_of(content)
            if len(content) > limit:
                await self._blobs.put(content)
                content = b""
            lines.append(content)
        return self._written(Record(named, self._clock.now_ms(), fields, kind, call_id), lines)

    def _written(self, record: Record, lines: list[bytes]) -> Operation:
        """`lines` are the contents of its artifacts, behind one for itself."""
        data = in_order(record)
        if len(data) > self._options.text_limit:  # else no field of it can be longer
            record.fields = self._shortened(msgspec.to_builtins(record.fields))
            data = in_order(record)
        if len(data) > ENTRY_LIMIT:
            raise Invalid(f"a record has at most {ENTRY_LIMIT} bytes", field="fields")
        lines[0] = data
        return Append(STREAM, (NewEvent(record.kind, b"\n".join(lines), record.subject),))

    async def record(
        self,
        kind: str,
        fields: Mapping[str, Scalar],
        *,
        subject: str = "",
        with_operations: Sequence[Operation] = (),
    ) -> int:
        prepared = self.prepare(kind, fields, subject=subject)
        committed = await self._journal.commit(*prepared, *with_operations)
        return index_in(committed)

    async def fetch(self, ref: str) -> bytes:
        subject = subject_of(ref)
        after = 0
        while subject and (
            page := await self._journal.read(STREAM, after=after, limit=FETCHED, subject=subject)
        ):
            after = page[-1].seq
            for event in page:
                if (found := find_artifact(event.data, ref)) is not None:
                    digest, content = found
                    return await self._blobs.get(digest) if content is None else content
        raise NotFound("artifact", ref)

    def commitment(self, content: bytes) -> str:
        return self._commit(content)

    async def publish(self) -> Checkpoint:
        """Bring the log on disk up to the journal, and sign it."""
        # A task of its own: a caller that gives up must not leave a thread at work unguarded.
        return await asyncio.shield(asyncio.ensure_future(self._publish()))

    async def prove(self, index: int) -> bytes:
        """A file that proves one record, with its artifacts, to someone who has the key."""
        if index >= self._log.size:
            await self.publish()
        async with self._publishing:
            size = size_of(self._checkpoint)
            if not 0 <= index < size:
                raise NotFound("record", str(index))
            record = await asyncio.to_thread(self._files.record, index, size=size)
            contents = {ref: await self.fetch(ref) for ref in artifacts_of(record)}
            return await asyncio.to_thread(
                make_proof,
                self._files,
                note=self._checkpoint,
                key=self._signer.key,
                index=index,
                record=record,
                artifacts=contents,
            )

    def _shortened(self, fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
        limit = self._options.text_limit
        return {
            name: value[: limit - 1] + "…"
            if isinstance(value, str) and len(value) > limit
            else value
            for name, value in fields.items()
        }

    def _hear(self, events: Sequence[Event]) -> None:
        if len(self._arrived) < self._options.page:  # what is missed is read from the journal
            self._arrived.extend(events)
        self._woken.set()

    async def _keep_publishing(self) -> None:
        while not self._closing.is_set():
            await _happens(self._woken, within=self._options.look_again_after)
            self._woken.clear()
            try:
                await self.publish()
                self.failure = ""
            except Exception as failed:  # tried again, and shown in health meanwhile
                self.failure = f"{type(failed).__name__}: {failed}"
                log.exception("evidence_not_published size=%d", self._log.size)
            await _happens(self._closing, within=self._options.publish_every)

    async def _publish(self) -> Checkpoint:
        async with self._publishing:
            if self._stale:
                self._log = await take_up(
                    self._files, self._journal, key=self._signer.key, page=self._options.page
                )
            self._stale = True  # until all of it has worked
            while page := await self._next_page():
                await asyncio.to_thread(self._log.extend, page)
            checkpoint = await asyncio.to_thread(self._sign)
            self._stale = False
            return checkpoint

    async def _next_page(self) -> list[bytes]:
        """The records that come next: those heard of, or, where one was missed, the journal's."""
        arrived, self._arrived = self._arrived, []
        following = self._log.size + 1
        records: list[bytes] = []
        for event in arrived:
            if event.seq == following:
                records.append(record_of(event.data))
                following += 1
        if records:
            return records
        page = await self._journal.read(STREAM, after=self._log.size, limit=self._options.page)
        if page and page[-1].seq != self._log.size + len(page):  # else each would prove another
            raise Damaged(f"records are missing in the journal after the first {self._log.size}")
        return [record_of(event.data) for event in page]

    def _sign(self) -> Checkpoint:
        """Runs in a thread: the tiles first, then the checkpoint that vouches for them."""
        checkpoint = Checkpoint(self._signer.key.name, self._log.size, self._log.root())
        text = checkpoint.text()
        if self._checkpoint.startswith(text):
            return checkpoint
        self._log.flush()
        if not self._checkpoint:
            self._files.write(PUBLIC_KEY, f"{self._signer.key}\n".encode())
        note = checkpoints.sign_note(text, key=self._signer.key, sign=self._signer.sign)
        self._files.write("checkpoint", note.encode())
        self._published(checkpoint)
        self._checkpoint = note
        return checkpoint


async def _happens(event: asyncio.Event, *, within: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
