"""The high-water mark of a home: how far it had come, kept in STATE_DIR, outside the home.

Someone who puts an older home in place, or takes events out of it, does not reach the mark. It is
written after each checkpoint, from what is on disk, so that a crash never leaves it ahead. Whoever
can write to STATE_DIR too is not found by it.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Damaged, Misconfigured, ToolgateError
from toolgate.core.tools import JsonValue
from toolgate.evidence import tree
from toolgate.evidence.audit import STREAM as AUDIT
from toolgate.evidence.audit import AuditLog, RowsHash
from toolgate.evidence.checkpoints import Checkpoint
from toolgate.evidence.evidence import STREAM, Scalar, record_of
from toolgate.evidence.records import LOG_DIRECTORY, parse_note, plain_record
from toolgate.evidence.recovery import take_up
from toolgate.evidence.signer import SIGNING_KEY, Ed25519Signer, keep_secret
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.journal import Append, Operation, Put
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.aesgcm_seal import write_private

log = logging.getLogger(__name__)

COLLECTION: Final = "installation"  # one row: the name under which this home's mark is kept
KEY: Final = "id"
DIRECTORY: Final = "marks"
RETIRED: Final = ".retired"
PERIOD_S: Final = 5.0  # where a home's position moves on and its evidence does not
PAGE: Final = 1_000


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    installation: str
    home: str
    log: str  # the name of the evidence key; empty where the home has none
    epoch: str
    position: int
    size: int
    root: str  # hex


class Marks:
    """The marks of every home of this user, one file each."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / DIRECTORY

    def check_place(self, home: Path) -> None:
        """Raises Misconfigured where the marks would be restored or changed with the home."""
        if home.resolve() in self.directory.resolve().parents:
            raise Misconfigured(
                f"STATE_DIR {self.directory.parent} is inside of TOOLGATE_HOME {home}: whoever"
                " restores or changes the home would change its mark too; name a directory outside"
            )

    def path(self, installation: str) -> Path:
        return self.directory / f"{installation}.json"

    def read(self, installation: str) -> Mark | None:
        """Raises Damaged where the file cannot be a mark of this name."""
        path = self.path(installation)
        try:
            mark = msgspec.json.decode(path.read_bytes(), type=Mark)
            if mark.installation == installation and len(bytes.fromhex(mark.root)) == 32:
                return mark
        except FileNotFoundError:
            return None
        except OSError as refused:
            raise Misconfigured(
                f"the mark {path} cannot be read ({refused.strerror}): let this user read STATE_DIR"
            ) from refused
        except (msgspec.MsgspecError, ValueError):
            pass
        raise Damaged(
            f"{path} is not a mark any more, so that nothing says how far its home had come:"
            " restore that file from a copy; if the home is as you left it, `toolgate restore accept`"
        )

    def of_home(self, home: Path, log_name: str) -> list[Mark]:
        """Those that were kept for a home at this place or with this key, the newest first."""
        found = []
        for path in sorted(self.directory.glob("*.json")):
            with contextlib.suppress(ToolgateError):  # that of another home
                mark = self.read(path.stem)
                if mark and (mark.home == _name(home) or (log_name and mark.log == log_name)):
                    found.append(mark)
        return sorted(found, key=lambda mark: -mark.position)

    def find(self, own: str, home: Path) -> list[Mark]:
        """The marks that a home of this name must continue, its own first.

        With its own goes any that was kept for its place. Where its own is gone, the home is known by
        its key too: so neither a row that was taken away nor one of another home hides it.
        """
        mark = self.read(own) if own else None
        if mark is None:
            return self.of_home(home, key_name(home))
        return [mark, *(one for one in self.of_home(home, "") if one != mark)]

    def retire(self, home: Path, but: str) -> None:
        """Keep one mark for this place: the others are of homes that are not there any more."""
        for mark in self.of_home(home, ""):
            if mark.installation != but:
                self.path(mark.installation).rename(
                    self.path(mark.installation).with_suffix(RETIRED)
                )

    def write(self, mark: Mark) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
        write_private(self.path(mark.installation), msgspec.json.encode(mark) + b"\n")


class HighWater:
    """The mark of one running home. `open` compares the home with it."""

    def __init__(self, marks: Marks, mark: Mark, journal: SqliteJournal) -> None:
        self._marks = marks
        self._journal = journal
        self._lock = threading.Lock()  # the evidence writes from a thread of its own
        self._failed = False
        self.mark = mark

    @classmethod
    async def open(
        cls, state_dir: Path, home: Path, journal: SqliteJournal, audit: AuditLog
    ) -> Self:
        """Compare, and keep the mark from now on.

        A mark that is lost, and a home that is new where another was, leave an audit row. Raises Damaged where the home is not one that
        continues what its mark says, and Misconfigured where no mark can be kept.
        """
        marks = Marks(state_dir)
        marks.check_place(home)
        row = await journal.get(COLLECTION, KEY)
        own = "" if row is None else row.value.decode()
        mark = await find_mark(marks, home, journal)
        if mark is None and own:
            log.warning("mark_missing installation=%s directory=%s", own, marks.directory)
            reason = {"reason": "STATE_DIR has no mark of this home"}
            await journal.begin_epoch(*_note(audit, "epoch.begun", reason))
        elif mark is None:
            for before in await asyncio.to_thread(marks.of_home, home, ""):
                log.warning("home_replaced home=%s before=%s", home, before.installation)
                await journal.commit(
                    *_note(audit, "home.replaced", {"before": before.installation})
                )
        if mark is None:
            mark = new_mark(home, journal, installation=own)
        made = cls(marks, msgspec.structs.replace(mark, home=_name(home)), journal)
        try:
            await asyncio.to_thread(made.write)
            await asyncio.to_thread(marks.retire, home, mark.installation)
        except OSError as refused:
            raise Misconfigured(
                f"STATE_DIR {state_dir} cannot be written ({refused.strerror}), and the mark of"
                f" {home} is kept there: let this user write it, or name another directory"
            ) from refused
        if mark.installation != own:
            await journal.commit(*await named(journal, mark.installation))
        return made

    def published(self, checkpoint: Checkpoint) -> None:
        """Note a checkpoint that is on disk. Runs in a thread."""
        self.write(size=checkpoint.size, root=checkpoint.root.hex(), log=checkpoint.origin)

    def write(self, **changes: str | int) -> None:
        with self._lock:
            self.mark = msgspec.structs.replace(
                self.mark,
                epoch=self._journal.vouches_since,
                position=self._journal.synced_position,
                **changes,
            )
            self._marks.write(self.mark)

    async def keep(self) -> None:
        """Write the mark again while the position moves on."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.close()

    async def close(self) -> None:
        if self.mark.position == self._journal.synced_position and not self._failed:
            return
        try:
            await asyncio.to_thread(self.write)
            self._failed = False
        except OSError as refused:
            if not self._failed:
                log.error("mark_not_written directory=%s error=%s", self._marks.directory, refused)
            self._failed = True


def new_mark(home: Path, journal: SqliteJournal, *, installation: str = "") -> Mark:
    return Mark(
        installation=installation or f"in_{secrets.token_hex(8)}",
        home=_name(home),
        log=key_name(home),
        epoch=journal.vouches_since,
        position=journal.synced_position,
        size=0,
        root=tree.EMPTY_ROOT.hex(),
    )


async def find_mark(marks: Marks, home: Path, journal: SqliteJournal) -> Mark | None:
    """The mark that this home continues; None where there is none. Raises Damaged if it does not."""
    row = await journal.get(COLLECTION, KEY)
    own = "" if row is None else row.value.decode()
    found = await asyncio.to_thread(marks.find, own, home)
    if not own and not await journal.last_position() and not key_name(home):
        return None  # a new home, where another was
    for mark in found:
        if wrong := await _disagreement(mark, home, journal):
            raise Damaged(
                f"{home} does not continue what its mark {marks.path(mark.installation)} says"
                f" ({wrong}): if you restored it from a copy, run `toolgate restore accept`; if not,"
                " something was removed or changed: keep the home and the mark for whoever must look"
                " into it"
            )
    return found[0] if found else None


async def accept(
    state_dir: Path, home: Path, journal: SqliteJournal, audit: AuditLog, *, at: int
) -> Mark | None:
    """Let a home that was restored go on as an installation of its own: the mark that it has now.

    None where there is nothing to accept. The epoch is a new one, so that clients get a snapshot; a
    record says from where to where. The log that was published before stays beside the new one.
    """
    marks = Marks(state_dir)
    files = TileFiles(home / LOG_DIRECTORY)
    try:
        await find_mark(marks, home, journal)
        if key_name(home):
            await take_up(files, journal, key=Ed25519Signer.in_home(home).key, page=PAGE)
        return None
    except Damaged as refused:
        log.warning("restore_accepted reason=%s", refused)
    row = await journal.get(COLLECTION, KEY)
    before = None
    with contextlib.suppress(Damaged, IndexError):
        before = marks.find("" if row is None else row.value.decode(), home)[0]
    made = new_mark(home, journal)
    await asyncio.to_thread(marks.write, made)  # first: a kill then leaves the home as refused
    await asyncio.to_thread(_put_aside, files.root, f"{LOG_DIRECTORY}.before-{made.installation}")
    fields: dict[str, Scalar] = {
        "from_position": before.position if before else None,
        "from_size": before.size if before else None,
        "installation": made.installation,
        "previous": before.installation if before else "",
        "to_position": await journal.last_position(),
        "to_size": (await journal.head(STREAM)).last,
    }
    await journal.begin_epoch(
        Append(STREAM, (plain_record("restored", fields, at=at),)),
        *audit.note(
            "restore.accepted", actor="operator", resource=("journal", ""), metadata=fields
        ),
        *await named(journal, made.installation),
    )
    made = msgspec.structs.replace(
        made, epoch=journal.vouches_since, position=journal.synced_position
    )
    await asyncio.to_thread(marks.write, made)
    await asyncio.to_thread(marks.retire, home, made.installation)
    return made


async def _disagreement(mark: Mark, home: Path, journal: SqliteJournal) -> str:
    position = await journal.last_position()
    if position < mark.position:
        return f"the journal ends at position {position}, the mark is at {mark.position}"
    size = (await journal.head(STREAM)).last
    if size < mark.size:
        return f"the journal has {size} evidence records, the mark {mark.size}"
    files = TileFiles(home / LOG_DIRECTORY)
    if mark.size == 0 or await asyncio.to_thread(_is_published, mark, files):
        return ""
    found = tree.Tree()
    while found.size < mark.size:
        limit = min(PAGE, mark.size - found.size)
        events = await journal.read(STREAM, after=found.size, limit=limit)
        if not events or events[-1].seq != found.size + len(events):
            return f"evidence records are missing after the first {found.size}"
        for event in events:
            found.append(tree.leaf_hash(record_of(event.data)))
    if found.root().hex() != mark.root:
        return f"the first {mark.size} evidence records are others"
    return ""


def _is_published(mark: Mark, files: TileFiles) -> bool:
    """True if the tiles prove that the checkpoint continues the mark."""
    try:
        checkpoint = parse_note(files.checkpoint() or "")
        hash_at = files.hash_at(checkpoint.size)
        proof = tree.consistency_proof(mark.size, size=checkpoint.size, hash_at=hash_at)
    except (ToolgateError, OSError, ValueError):
        return False
    return tree.extends(
        checkpoint.root,
        size=checkpoint.size,
        old_root=bytes.fromhex(mark.root),
        old_size=mark.size,
        proof=proof,
    )


async def named(journal: SqliteJournal, installation: str) -> list[Operation]:
    """The operations that give the home this name.

    With its first name go the audit rows that 0.1.0 wrote without leaves: they get one.
    """
    row = await journal.get(COLLECTION, KEY)
    version = 0 if row is None else row.version
    put = Put(COLLECTION, KEY, installation.encode(), expected=version)
    return [put] if row is not None else [put, *await _leaf_of_old_rows(journal)]


async def _leaf_of_old_rows(journal: SqliteJournal) -> list[Operation]:
    found = RowsHash()
    rows = await journal.read(AUDIT, limit=PAGE)
    while rows:
        for row in rows:
            found.add(row)
        rows = await journal.read(AUDIT, after=rows[-1].seq, limit=PAGE)
    return [Append(STREAM, (found.leaf(),))] if found.last else []


def _note(
    audit: AuditLog, action: str, fields: Mapping[str, JsonValue], *, by: str = "system"
) -> Sequence[Operation]:
    return audit.note(action, actor=by, resource=("journal", ""), metadata=fields)


def _put_aside(directory: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        directory.rename(directory.with_name(name))
        sync_directory(directory.parent)


def key_name(home: Path) -> str:
    """The name of the home's evidence key; empty where it has none."""
    if not (home / "keys" / SIGNING_KEY).exists():
        return ""
    return Ed25519Signer(keep_secret(home / "keys" / SIGNING_KEY)).key.name


def _name(home: Path) -> str:
    return str(home.resolve())
