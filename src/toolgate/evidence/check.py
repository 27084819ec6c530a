"""Checks evidence with nothing running: one proof file, a log's directory, or a whole home.

It trusts a key and nothing else. What is wrong comes back as sentences; nothing is repaired.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from toolgate.core.errors import Invalid, NotFound, ToolgateError
from toolgate.evidence import checkpoints
from toolgate.evidence import tree as evidence
from toolgate.evidence.audit import STREAM as AUDIT
from toolgate.evidence.checkpoints import (
    ENTRIES,
    TILE_HEIGHT,
    TILE_WIDTH,
    Checkpoint,
    Tile,
    VerifierKey,
)
from toolgate.evidence.evidence import STREAM, record_of
from toolgate.evidence.marks import COLLECTION, KEY, Mark
from toolgate.evidence.records import (
    LOG_DIRECTORY,
    PROOF_FORMAT,
    artifacts_of,
    check_content,
    digest_of,
    find_artifact,
    subject_of,
)
from toolgate.evidence.recount import AuditRows
from toolgate.evidence.signer import check_signature
from toolgate.evidence.tiles import (
    CHECKPOINT,
    PUBLIC_KEY,
    UNFINISHED,
    TileFiles,
    first_of,
)
from toolgate.journal.journal import Event
from toolgate.journal.sqlite.read_only import JOURNAL_FILE, ClosedJournal

BLOBS_DIRECTORY: Final = "blobs"
ARTIFACT_DIRECTORY: Final = "artifacts"  # in an exported log: files named by their hash

MOST_PROBLEMS: Final = 1_000
NOT_FILED: Final = b""  # in the place of a record that the journal has lost or hidden
LOST: Final = "it is missing, or not filed under its kind and subject"

_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

ReadArtifact = Callable[[str, str], bytes]
"""(ref, digest) -> content; raises NotFound."""


Told = Callable[[int, int], None]


def untold(_done: int, _total: int) -> None:
    """For whoever does not want to hear how far it is."""


class Proof(msgspec.Struct, forbid_unknown_fields=True):
    artifacts: dict[str, str]
    checkpoint: str
    format: str
    index: int
    key: str
    proof: list[str]
    record: str


class _Said(msgspec.Struct):
    """Of a record, what its event in the journal is found by."""

    kind: str
    subject: str


@dataclass(frozen=True, slots=True)
class Proven:
    index: int
    checkpoint: Checkpoint
    key: VerifierKey
    record: dict[str, Any]
    artifacts: Mapping[str, str]


@dataclass(slots=True)
class LogReport:
    size: int = 0
    artifacts: int = 0
    audit_rows: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_proof(raw: bytes, *, key: VerifierKey | None = None) -> Proven:
    """What a proof file proves. Without a key, only that it fits the key that came with it.

    Raises Invalid, saying what does not fit.
    """
    try:
        proof = msgspec.json.decode(raw, type=Proof)
    except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
        raise Invalid(f"not a proof file: {unreadable}", field="file") from unreadable
    if msgspec.json.encode(proof, order="sorted") + b"\n" != raw:
        raise Invalid("the file is not written as proofs are", field="file")
    if proof.format != PROOF_FORMAT:
        raise Invalid(f"unknown format {proof.format}", field="format")
    own_key = VerifierKey.parse(proof.key)
    if key is not None and own_key != key:
        raise Invalid(f"it is signed by {own_key}, not by {key}", field="key")
    checkpoint = checkpoints.open_checkpoint(proof.checkpoint, key=own_key, check=check_signature)
    record = proof.record.encode()
    if not evidence.includes(
        checkpoint.root,
        size=checkpoint.size,
        leaf=evidence.leaf_hash(record),
        index=proof.index,
        proof=checkpoints.decode_hashes(proof.proof),
    ):
        raise Invalid("the record is not in the log at this index", field="record")
    try:
        named = artifacts_of(record)
        msgspec.json.decode(record)["kind"]
    except (msgspec.DecodeError, KeyError, TypeError) as other:
        raise Invalid("what it proves is no record", field="record") from other
    if named.keys() != proof.artifacts.keys():
        raise Invalid("the artifacts are not those that the record names", field="artifacts")
    for ref, content in proof.artifacts.items():
        if digest_of(content.encode()) != named[ref]:
            raise Invalid(f"artifact {ref} is not what was recorded", field="artifacts")
    return Proven(
        index=proof.index,
        checkpoint=checkpoint,
        key=own_key,
        record=msgspec.json.decode(record),
        artifacts=proof.artifacts,
    )


def check_log(
    root: Path,
    *,
    key: VerifierKey,
    since: str = "",
    read_artifact: ReadArtifact | None = None,
    journal: Iterator[bytes] | None = None,
    rows: AuditRows | None = None,
    mark: Mark | None = None,
    told: Told = untold,
) -> LogReport:
    """Every byte of a log against its checkpoint; its artifacts, journal and audit rows where given.

    `since` is an older checkpoint of the same log, which this one must only have added to, as to what
    `mark` says; `told` hears how many of how many records were looked at.
    """
    report = LogReport()
    files = TileFiles(root)
    try:
        checkpoint = _opened(files.checkpoint(), key)
        earlier = [("the checkpoint before", _opened(since, key))] if since else []
    except (ToolgateError, UnicodeDecodeError) as wrong:
        report.problems.append(f"checkpoint: {wrong}")
        return report
    if mark is not None and mark.size:
        of_mark = Checkpoint(mark.log, mark.size, bytes.fromhex(mark.root))
        earlier.append(("its mark", of_mark))
    report.size = checkpoint.size
    walk = _Walk(files, checkpoint, report, read_artifact, journal, rows, earlier, key)
    with contextlib.suppress(_Enough):
        walk.records(told)
        walk.upper_tiles()
        walk.other_files()
    return report


class _Enough(Exception):
    """So much is wrong that more of it tells nothing; a size alone can claim without end."""


class _Walk:
    """One pass over the log, from the records up."""

    def __init__(
        self,
        files: TileFiles,
        checkpoint: Checkpoint,
        report: LogReport,
        read_artifact: ReadArtifact | None,
        journal: Iterator[bytes] | None,
        rows: AuditRows | None,
        earlier: Sequence[tuple[str, Checkpoint]],
        key: VerifierKey,
    ) -> None:
        self._key = key
        self._files = files
        self._checkpoint = checkpoint
        self._report = report
        self._read_artifact = read_artifact
        self._journal = journal
        self._audit = rows
        self._earlier_ones = earlier
        self._tree = evidence.Tree()
        self._rows: dict[int, list[bytes]] = {}  # levels above 0, whole
        self._checked: set[str] = set()

    def records(self, told: Told) -> None:
        for name, earlier in self._earlier_ones:
            if earlier.size > self._checkpoint.size:
                self._wrong(CHECKPOINT, f"it has fewer records than the {earlier.size} of {name}")
        for tile in checkpoints.tiles_of(self._checkpoint.size):
            if tile.level == ENTRIES:
                self._bundle(tile)
                told(self._tree.size, self._checkpoint.size)
        if self._tree.size == self._checkpoint.size and self._tree.root() != self._checkpoint.root:
            self._wrong(CHECKPOINT, "the records do not lead to its root")
        self._rest_of_journal()

    def upper_tiles(self) -> None:
        for tile in checkpoints.tiles_of(self._checkpoint.size):
            if tile.level > 0:
                start = tile.index * TILE_WIDTH
                hashes = self._rows.get(tile.level, [])[start : start + tile.width]
                self._compare(tile, b"".join(hashes))

    def other_files(self) -> None:
        """What else lies there: partial tiles of earlier checkpoints, which must fit as well."""
        for path in sorted(self._listed()):
            name = path.relative_to(self._files.root).as_posix()
            if name in self._checked or name == CHECKPOINT:
                continue
            if path.parent == self._files.root / UNFINISHED:
                continue
            if path.is_symlink():
                self._wrong(name, "it is no part of the log")
                continue
            if name == PUBLIC_KEY:
                if path.read_bytes() != f"{self._key}\n".encode():
                    self._wrong(name, "it is not the key that signed the checkpoint")
                continue
            if path.parent == self._files.root / ARTIFACT_DIRECTORY:
                if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
                    self._wrong(name, "it is not the content it is named for")
                continue
            try:
                tile = Tile.parse(name)
            except Invalid:
                self._wrong(name, "it is no part of the log")
                continue
            with contextlib.suppress(FileNotFoundError):  # a running server has just filled it
                self._earlier(tile, path.read_bytes())

    def _listed(self) -> Iterator[Path]:
        """Every file; what a running server removes meanwhile (partial tiles) is no matter."""
        for directory, _, names in os.walk(self._files.root, onerror=self._unlisted):
            yield from (Path(directory) / name for name in names)

    def _unlisted(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._wrong(str(error.filename), error.strerror or "it cannot be listed")

    def _bundle(self, tile: Tile) -> None:
        self._checked.add(tile.path)
        try:
            records = self._files.entries(tile)
        except (ToolgateError, OSError) as wrong:
            self._wrong(tile.path, str(wrong))
            return
        leaves = [evidence.leaf_hash(record) for record in records]
        self._compare(Tile(0, tile.index, tile.width), b"".join(leaves))
        for record, leaf in zip(records, leaves, strict=True):
            self._record(record)
            for level, found in enumerate(self._tree.append(leaf)):
                if level and level % TILE_HEIGHT == 0:
                    self._rows.setdefault(level // TILE_HEIGHT, []).append(found)
            for name, earlier in self._earlier_ones:
                if self._tree.size == earlier.size and self._tree.root() != earlier.root:
                    self._wrong(
                        CHECKPOINT, f"the first {earlier.size} records are not those of {name}"
                    )

    def _record(self, record: bytes) -> None:
        index = self._tree.size
        if self._journal is not None:
            kept = next(self._journal, None)
            if kept == NOT_FILED:
                self._wrong(f"journal, record {index}", LOST)
            elif kept != record:
                self._wrong(f"journal, record {index}", "it is another in the log")
        self._recount(index, record)
        self._artifacts(index, record)

    def _recount(self, index: int, record: bytes) -> None:
        for wrong in self._audit.compare(record) if self._audit else ():
            self._wrong(f"record {index}", wrong)

    def _artifacts(self, index: int, record: bytes) -> None:
        if self._read_artifact is None:
            return
        try:
            named = artifacts_of(record)
        except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError) as unreadable:
            self._wrong(f"record {index}", f"it cannot be read: {unreadable}")
            return
        for ref, digest in named.items():
            try:
                check_content(ref, digest, self._read_artifact(ref, digest))
                self._report.artifacts += 1
            except (ToolgateError, ValueError, OSError) as wrong:
                self._wrong(f"record {index}", str(wrong))

    def _rest_of_journal(self) -> None:
        waiting = 0
        for record in self._journal or ():
            index = self._checkpoint.size + waiting
            if record == NOT_FILED:
                self._wrong(f"journal, record {index}", LOST)
            else:
                self._recount(index, record)
                self._artifacts(index, record)
            waiting += 1
        if waiting:
            self._report.notes.append(f"{waiting} records are not yet under a checkpoint")
        if self._audit is not None:
            for wrong in self._audit.rest():
                self._wrong("audit", wrong)
            self._report.audit_rows = self._audit.counted

    def _compare(self, tile: Tile, expected: bytes) -> None:
        self._checked.add(tile.path)
        try:
            found = self._files.read(tile)
        except (ToolgateError, OSError) as wrong:
            self._wrong(tile.path, str(wrong))
            return
        if found != expected:
            self._wrong(tile.path, "it is not what the records hash to")

    def _earlier(self, tile: Tile, content: bytes) -> None:
        count = self._checkpoint.size >> max(tile.level, 0) * TILE_HEIGHT
        width = min(TILE_WIDTH, count - tile.index * TILE_WIDTH)
        if tile.width > width:
            self._report.notes.append(f"{tile.path}: beyond the checkpoint, so not vouched for")
            return
        try:
            newest = self._files.read(Tile(tile.level, tile.index, width))
            fits = content == first_of(tile, newest)
        except (ToolgateError, OSError) as wrong:
            self._wrong(tile.path, str(wrong))
            return
        if not fits:
            self._wrong(tile.path, "it is not the beginning of the tile it became")

    def _wrong(self, where: str, what: str) -> None:
        self._report.problems.append(f"{where}: {what}")
        if len(self._report.problems) == MOST_PROBLEMS:
            self._report.notes.append(f"after {MOST_PROBLEMS} things the rest was not looked at")
            raise _Enough


def check_home(
    closed: "ClosedHome",
    *,
    key: VerifierKey,
    since: str = "",
    mark: Mark | None = None,
    told: Told = untold,
) -> LogReport:
    """A whole home: its log, artifacts, journal and audit rows, and what its mark says."""
    position = closed.last_position()
    report = check_log(
        closed.log.root,
        key=key,
        since=since,
        read_artifact=closed.artifact,
        rows=closed.audit_rows(),
        journal=closed.filed(),
        mark=mark,
        told=told,
    )
    if mark is not None and position < mark.position:
        report.problems.append(f"journal: it ends at {position}, its mark is at {mark.position}")
    return report


class ClosedHome:
    """What a home says, read without starting or locking anything."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._journal = ClosedJournal(home / JOURNAL_FILE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._journal.__exit__(*details)

    @property
    def log(self) -> TileFiles:
        return TileFiles(self.home / LOG_DIRECTORY)

    def records(self) -> Iterator[bytes]:
        return (record_of(event.data) for event in self._journal.events(STREAM))

    def filed(self) -> Iterator[bytes]:
        """As `records`, with NOT_FILED for each that nobody would find by its number or subject."""
        number = 0
        for event in self._journal.events(STREAM):
            while (number := number + 1) < event.seq:
                yield NOT_FILED
            record = record_of(event.data)
            yield record if _is_filed(event, record) else NOT_FILED

    def audit_rows(self) -> AuditRows | None:
        """None where rows have no leaves yet: no start has upgraded the home of 0.1.0."""
        if not self.installation():
            return None
        return AuditRows(self._journal.events(AUDIT), self._journal.ends(AUDIT))

    def events(self, stream: str) -> Iterator[Event]:
        return self._journal.events(stream)

    def installation(self) -> str:
        """The installation's name as the journal has it; empty if there is none."""
        return (self._journal.row(COLLECTION, KEY) or b"").decode("ascii", "replace")

    def last_position(self) -> int:
        return self._journal.last_position()

    def about(self, subject: str) -> list[tuple[int, bytes]]:
        """The records about something (a request): index and text."""
        found = self._journal.events(STREAM, subject=subject)
        return [(event.seq - 1, record_of(event.data)) for event in found]

    def at(self, index: int) -> bytes:
        for event in self._journal.events(STREAM, after=index, limit=1):
            if event.seq == index + 1:  # else it was taken out, and this is one that came later
                return record_of(event.data)
        raise NotFound("record", str(index))

    def artifact(self, ref: str, digest: str) -> bytes:
        subject = subject_of(ref)
        for event in self._journal.events(STREAM, subject=subject) if subject else ():
            if (found := find_artifact(event.data, ref, digest)) is not None:
                _, content = found
                return content if content is not None else self._blob(ref, digest)
        raise NotFound("artifact", ref)

    def _blob(self, ref: str, digest: str) -> bytes:
        """As `blobs_disk` lays them out, without its threads."""
        name = digest.removeprefix("sha256:")
        if _HEX_DIGEST.fullmatch(name) is None:
            raise Invalid(f"artifact {ref} has no digest", field="ref")
        try:
            return (self.home / BLOBS_DIRECTORY / name[:2] / name[2:4] / name).read_bytes()
        except FileNotFoundError as missing:
            raise NotFound("artifact", ref) from missing


def _is_filed(event: Event, record: bytes) -> bool:
    try:
        said = msgspec.json.decode(record, type=_Said)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return (said.kind, said.subject) == (event.type, event.subject)


def exported_artifact(root: Path) -> ReadArtifact:
    def read(ref: str, digest: str) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (root / ARTIFACT_DIRECTORY / digest.removeprefix("sha256:")).read_bytes()
        raise NotFound("artifact", ref)

    return read


def _opened(note: str | None, key: VerifierKey) -> Checkpoint:
    if note is None:
        raise NotFound("file", CHECKPOINT)
    return checkpoints.open_checkpoint(note, key=key, check=check_signature)
