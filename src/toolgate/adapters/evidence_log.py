"""The evidence log: records into the journal, and from there into a signed Merkle log on disk.

A record is durable once its commit is; the tiles and checkpoints under `<home>/evidence` follow
within a second, are made from the journal alone, and can always be made again. Close this before
the journal.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import msgspec

from toolgate.adapters.evidence_tiles import PUBLIC_KEY, TiledLog, TileFiles
from toolgate.adapters.signer_ed25519 import check_signature
from toolgate.domain import checkpoints, evidence
from toolgate.domain.checkpoints import ENTRY_LIMIT, Checkpoint, VerifierKey
from toolgate.domain.errors import Damaged, Invalid, NotFound
from toolgate.domain.redaction import Redactor
from toolgate.domain.tools import JsonValue
from toolgate.ports.blobs import Blobs
from toolgate.ports.bus import Bus
from toolgate.ports.clock import Clock
from toolgate.ports.evidence import STREAM, Scalar, record_of
from toolgate.ports.journal import Append, Event, Journal, NewEvent, Operation
from toolgate.ports.signer import Signer

log = logging.getLogger(__name__)

RECORD_VERSION: Final = 1
PROOF_FORMAT: Final = "toolgate-evidence-proof/1"
FETCHED: Final = 20  # records at a time in search of an artifact; most requests have two or three
LARGEST_INTEGER: Final = 2**53 - 1  # what RFC 8785 can write exactly
_PLAIN: Final = frozenset({str, bool, type(None)})
_KIND: Final = re.compile(r"[a-z][a-z0-9_.]{0,63}")
_FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

_encode = msgspec.json.Encoder(order="sorted").encode
_encode_as_it_stands = msgspec.json.Encoder().encode  # in half the time


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
        published: TiledLog,
        *,
        journal: Journal,
        blobs: Blobs,
        bus: Bus,
        clock: Clock,
        signer: Signer,
        redactor: Redactor,
        commit: Callable[[bytes], str],
        options: Options,
    ) -> None:
        self._files = files
        self._log = published
        self._journal = journal
        self._blobs = blobs
        self._clock = clock
        self._signer = signer
        self._redactor = redactor
        self._commit = commit
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
        signer: Signer,
        redactor: Redactor,
        commit: Callable[[bytes], str],
        options: Options | None = None,
    ) -> Self:
        """Take up the log in this directory and keep it published.

        Raises Damaged where what was signed is not what the journal has.
        """
        options = options or Options()
        published = await _take_up(files, journal, key=signer.key, page=options.page)
        made = cls(
            files,
            published,
            journal=journal,
            blobs=blobs,
            bus=bus,
            clock=clock,
            signer=signer,
            redactor=redactor,
            commit=commit,
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
        return _canonical(value)

    def prepare(
        self, kind: str, fields: Mapping[str, Scalar], *, subject: str = ""
    ) -> list[Operation]:
        if not _is_kind(kind):
            raise Invalid(f"not a kind of record: {kind}", field="kind")
        if "" in fields:
            raise Invalid("a field has a name", field="fields")
        # The subject goes along as a nameless field, so that one search does for both.
        clean = self._redactor.fields({**fields, "": subject})
        subject = str(clean.pop("", ""))
        _check_fields(clean)
        record = _Record({}, self._clock.now_ms(), dict(sorted(clean.items())), kind, subject)
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
        return self._written(_Record(named, self._clock.now_ms(), fields, kind, call_id), lines)

    def _written(self, record: "_Record", lines: list[bytes]) -> Operation:
        """`lines` are the contents of its artifacts, behind one for itself."""
        data = _in_order(record)
        if len(data) > self._options.text_limit:  # else no field of it can be longer
            record.fields = self._shortened(msgspec.to_builtins(record.fields))
            data = _in_order(record)
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
        checkpoint = await self.publish() if index >= self._log.size else None
        async with self._publishing:
            checkpoint = checkpoint or _open(self._checkpoint, self._signer.key)
            if not 0 <= index < checkpoint.size:
                raise NotFound("record", str(index))
            record = await asyncio.to_thread(self._files.record, index, size=checkpoint.size)
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
                self._log = await _take_up(
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
        self._checkpoint = note
        return checkpoint


class _Record(msgspec.Struct):
    """In the order of the names, as the canonical form has it."""

    artifacts: dict[str, str]
    at: int
    fields: object
    kind: str
    subject: str
    v: int = RECORD_VERSION


def _check_fields(fields: Mapping[str, JsonValue]) -> None:
    """Only what has one canonical form; raises Invalid naming the field that hasn't."""
    _check_names(tuple(fields))
    if set(map(type, fields.values())) <= _PLAIN:
        return
    for name, value in fields.items():
        if not isinstance(value, str) and not _is_plain(value):
            raise Invalid(f"{name} is no text, whole number, true, false or null", field=name)


@lru_cache(maxsize=1024)
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if _FIELD.fullmatch(name) is None:
            raise Invalid(f"not a field's name: {name}", field=name)


@lru_cache(maxsize=256)
def _is_kind(kind: str) -> bool:
    return _KIND.fullmatch(kind) is not None


def _is_plain(value: JsonValue) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST_INTEGER
    return value is None


async def _happens(event: asyncio.Event, *, within: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


def index_in(events: Sequence[Event]) -> int:
    """The index, in the log, of the record among a commit's events."""
    return next(event.seq - 1 for event in events if event.stream == STREAM)


def artifacts_of(record: bytes) -> dict[str, str]:
    """The artifacts that a record names: ref -> digest."""
    return msgspec.convert(msgspec.json.decode(record)["artifacts"], dict[str, str])


def make_proof(
    files: TileFiles,
    *,
    note: str,
    key: VerifierKey,
    index: int,
    record: bytes,
    artifacts: Mapping[str, bytes],
) -> bytes:
    size = Checkpoint.parse(note.partition("\n\n")[0] + "\n").size
    proof = evidence.inclusion_proof(index, size=size, hash_at=files.hash_at(size))
    document = {
        "artifacts": {ref: content.decode() for ref, content in artifacts.items()},
        "checkpoint": note,
        "format": PROOF_FORMAT,
        "index": index,
        "key": str(key),
        "proof": checkpoints.encode_hashes(proof),
        "record": record.decode(),
    }
    return _encode(document) + b"\n"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_content(ref: str, digest: str, content: bytes) -> None:
    if digest_of(content) != digest:
        raise Damaged(f"artifact {ref} is not what was recorded")


def subject_of(ref: str) -> str:
    """Whose artifact it is; empty where the ref is none."""
    parts = ref.split("/")
    return parts[1] if parts[0] == "requests" and len(parts) > 2 else ""


def find_artifact(data: bytes, ref: str, digest: str = "") -> tuple[str, bytes | None] | None:
    """(digest, content) of an artifact in the data of an event; None where the record names none.

    The content is None where it is in the blobs. Raises Damaged where it is not what was recorded.
    """
    record, *contents = data.split(b"\n")
    try:
        named = artifacts_of(record)
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError):
        return None  # no record: whoever checks the log says so
    if ref not in named or digest not in ("", named[ref]):
        return None
    if len(contents) != len(named):
        raise Damaged(f"artifact {ref} is not what was recorded")
    content = contents[sorted(named).index(ref)]
    if not content:
        return named[ref], None
    check_content(ref, named[ref], content)
    return named[ref], content


def _canonical(value: object) -> bytes:
    """RFC 8785 for what we write: sorted, and every text valid Unicode."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_without_surrogates(msgspec.to_builtins(value)))


def _in_order(record: _Record) -> bytes:
    """The same, of what is in order already."""
    try:
        return _encode_as_it_stands(record)
    except UnicodeEncodeError:
        return _canonical(record)


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


def _open(note: str, key: VerifierKey) -> Checkpoint:
    return checkpoints.open_checkpoint(note, key=key, check=check_signature)


async def _take_up(files: TileFiles, journal: Journal, *, key: VerifierKey, page: int) -> TiledLog:
    """The log as it was left; from the journal where its tiles are lost."""
    await asyncio.to_thread(files.drop_unfinished)
    note = await asyncio.to_thread(files.checkpoint)
    if note is None:
        return TiledLog(files)
    try:
        checkpoint = _open(note, key)
    except Invalid as wrong:
        raise _untrusted(files, f"its checkpoint: {wrong}") from wrong
    head = await journal.head(STREAM)
    if head.last < checkpoint.size:
        raise _untrusted(
            files, f"it vouches for {checkpoint.size} records, the journal has {head.last}"
        )
    try:
        published = await asyncio.to_thread(TiledLog.load, files, checkpoint)
    except Damaged as damaged:
        log.warning("evidence_rebuilt size=%d reason=%s", checkpoint.size, damaged)
        return await _rebuild(files, journal, checkpoint, page=page)
    newest = await journal.read(STREAM, after=checkpoint.size - 1, limit=1)
    if checkpoint.size and newest and newest[0].seq == checkpoint.size:
        last = await asyncio.to_thread(published.last_leaf)
        if evidence.leaf_hash(record_of(newest[0].data)) != last:
            raise _untrusted(files, f"record {checkpoint.size - 1} is another in the journal")
    return published


async def _rebuild(
    files: TileFiles, journal: Journal, checkpoint: Checkpoint, *, page: int
) -> TiledLog:
    """The same tiles again; that they lead to what was signed is checked before any is replaced."""
    tree = evidence.Tree()
    async for records in _pages(journal, through=checkpoint.size, page=page):
        for record in records:
            tree.append(evidence.leaf_hash(record))
    if tree.size != checkpoint.size or tree.root() != checkpoint.root:
        raise _untrusted(files, "the journal's records do not lead to its checkpoint")
    await asyncio.to_thread(files.drop_tiles)
    rebuilt = TiledLog(files)
    async for records in _pages(journal, through=checkpoint.size, page=page):
        await asyncio.to_thread(rebuilt.extend, records)
    await asyncio.to_thread(rebuilt.flush)
    return rebuilt


async def _pages(journal: Journal, *, through: int, page: int) -> AsyncIterator[list[bytes]]:
    seq = 0
    while seq < through:
        events = await journal.read(STREAM, after=seq, limit=min(page, through - seq))
        if not events or events[0].seq != seq + 1:
            return  # forgotten; the caller sees that they are too few
        yield [record_of(event.data) for event in events]
        seq = events[-1].seq


def _untrusted(files: TileFiles, why: str) -> Damaged:
    return Damaged(
        f"the evidence in {files.root} and the journal do not agree ({why}): keep both for whoever"
        " must look into it; move the directory and keys/evidence.key away to begin a new log"
    )
