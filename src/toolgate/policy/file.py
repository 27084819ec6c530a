"""The policy as a YAML file: read strictly, tried against its own tests, reloaded when it changes.

A file that is wrong never replaces one that was right; what is wrong with it is reported.
"""

import asyncio
import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Conflict, Refused, ToolgateError
from toolgate.core.tools import JsonValue
from toolgate.journal.journal import Operation
from toolgate.policy.compile import compile_policy
from toolgate.policy.lint import run_tests
from toolgate.policy.model import ACTIVE_POLICY, InvalidPolicy, Policy
from toolgate.policy.records import PolicyRecords
from toolgate.policy.shell import ParseShell

T = TypeVar("T")

MAX_BYTES: Final = 1_048_576
MAX_NODES: Final = 200_000
MAX_DEPTH: Final = 16  # a rule's deepest member is at 7
POLL_SECONDS: Final = 0.5

log = logging.getLogger(__name__)


class _StrictLoader(yaml.CSafeLoader):
    """Refuses a key that is given twice, where YAML itself would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name} is there twice", key.start_mark
                )
            if not isinstance(key, yaml.ScalarNode) or name == "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, "keys must be plain names", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def parse_document(text: str, *, name: str) -> dict[str, JsonValue]:
    """What a policy's YAML says, as plain data. Raises InvalidPolicy."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidPolicy(name, [f"the file is larger than {MAX_BYTES} bytes"])
    try:
        _check_shape(text, name)
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - derived from the safe one
    except yaml.MarkedYAMLError as bad:
        line = f"line {bad.problem_mark.line + 1}: " if bad.problem_mark else ""
        raise InvalidPolicy(name, [f"{line}{bad.problem or bad.context}"]) from bad
    except (yaml.YAMLError, ValueError, RecursionError) as bad:
        raise InvalidPolicy(name, [f"it is not YAML: {bad}"]) from bad
    if not isinstance(document, dict):
        raise InvalidPolicy(name, ["the file does not hold a mapping"])
    problems: list[str] = []
    _check_plain(document, "", problems)
    if problems:
        raise InvalidPolicy(name, problems)
    return document


def _check_shape(text: str, name: str) -> None:
    """Look at the events alone first: no alias has been unfolded yet."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            line = event.start_mark.line + 1
            raise InvalidPolicy(
                name, [f"line {line}: anchors and aliases are not taken; use groups"]
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InvalidPolicy(name, [f"it is nested more than {MAX_DEPTH} deep"])
        if count > MAX_NODES:
            raise InvalidPolicy(name, [f"it has more than {MAX_NODES} parts"])


def _check_plain(value: object, where: str, problems: list[str]) -> None:
    """YAML knows dates, sets and infinities; a policy does not."""
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                problems.append(f"{where or 'the file'}: the key {key!r} is not text; quote it")
            _check_plain(member, f"{where}.{key}" if where else str(key), problems)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _check_plain(member, f"{where}[{index}]", problems)
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(f"{where}: must be a finite number")
    elif value is not None and not isinstance(value, str | int | float):
        problems.append(f"{where}: is a {type(value).__name__} to YAML; quote it")


def load_policy(text: str, *, name: str = ACTIVE_POLICY, parse_shell: ParseShell) -> Policy:
    """A policy that decides as its own tests say. Raises InvalidPolicy."""
    policy = compile_policy(parse_document(text, name=name), name=name)
    failed = [str(r) for r in run_tests(policy, parse_shell=parse_shell) if not r.passed]
    if failed:
        raise InvalidPolicy(name, failed)
    return policy


def find_policy(
    path: Path | None, *, keep_at: Path | None, parse_shell: ParseShell
) -> tuple[Path | None, str, Policy]:
    """The policy of an installation, with its file and text.

    It is in `path`, else in `keep_at`, else it is the one that ships with Toolgate. Raises OSError,
    UnicodeDecodeError, InvalidPolicy.
    """
    kept = keep_at is not None and keep_at.exists()
    found = keep_at if path is None and kept else path
    text = default_policy_text() if found is None else _read(found).decode("utf-8")
    return found, text, load_policy(text, parse_shell=parse_shell)


def default_policy_text() -> str:
    """The policy that ships with Toolgate."""
    return resources.files("toolgate.policy").joinpath("default_policy.yaml").read_text("utf-8")


def _nothing_more(_: Policy) -> Sequence[Operation]:
    return ()


class PolicyFile:
    """The policy in force, kept in a file, and those that have a name of their own.

    A policy comes into force by a commit of its row, then a swap in memory: `current` and
    `row_version` always belong together. Without a file it is the shipped default.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        text: str,
        policy: Policy,
        row_version: int,
        parse_shell: ParseShell,
        records: PolicyRecords,
        named: Mapping[str, Policy],
        keep_at: Path | None,
    ) -> None:
        """Use `open`: it reads the file and puts the policy on record."""
        self._path = path
        self._keep_at = keep_at
        self._parse_shell = parse_shell
        self._records = records
        self._named = dict(named)
        self._seen: object = None  # what the file was when last read
        self._looked_at: object = None
        self._digest = _digest(text.encode())
        self._lock = asyncio.Lock()
        self.text = text
        self.current = policy
        self.row_version = row_version  # of the row in `policy_on_record` that names `current`
        self.error = ""  # why the file as it is now is not in force; empty: it is

    @classmethod
    async def open(
        cls,
        path: Path | None,
        *,
        parse_shell: ParseShell,
        records: PolicyRecords,
        named: Mapping[str, Policy] | None = None,
        keep_at: Path | None = None,
    ) -> "PolicyFile":
        """Read the file and put it on record, whatever the journal says: the file wins.

        `keep_at` is where `replace` puts a text if there is no `path`, and where it is found again.
        Raises OSError, UnicodeDecodeError, InvalidPolicy, Unavailable.
        """

        found, text, policy = await asyncio.to_thread(
            find_policy, path, keep_at=keep_at, parse_shell=parse_shell
        )
        return cls(
            found,
            text=text,
            policy=policy,
            row_version=await records.commit(policy),
            parse_shell=parse_shell,
            records=records,
            named=named or {},
            keep_at=keep_at,
        )

    def find(self, ref: str) -> Policy | None:
        """The policy that a `policy_ref` names."""
        return self.current if ref == ACTIVE_POLICY else self._named.get(ref)

    async def watch(self, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Look at the file from time to time, for ever."""
        while True:
            await asyncio.sleep(poll_seconds)
            try:
                await self.look()
            except Exception:
                # Whatever one look brings, the policy in force stays, and the next look comes.
                log.exception("policy_watch_failed version=%s", self.current.version)

    async def look(self) -> None:
        """As `refresh`, where the file is as it was at the last look.

        What is still being copied may be a policy already, without the denials at its end.
        """
        found = await asyncio.to_thread(self._stamp)
        if found == self._looked_at:
            await self.refresh()
        self._looked_at = found

    async def refresh(self) -> bool:
        """Look at the file now; return whether another version came into force.

        A file that cannot be put on record is shown as an error, and tried again at the next look.
        """
        return await _to_its_end(self._refresh())

    async def _refresh(self) -> bool:
        async with self._lock:
            previous = self.current.version
            try:
                found = await asyncio.to_thread(self._read_if_changed)
            except (OSError, UnicodeDecodeError, InvalidPolicy) as bad:
                if isinstance(bad, OSError):
                    self._seen = None  # it may come back just as it was
                self._show_error(str(bad))
                return False
            if found is not None:
                try:
                    await self._activate(*found)
                except ToolgateError as failed:
                    self._show_error(f"The policy cannot be put on record: {failed}")
            return self.current.version != previous

    async def replace(
        self,
        text: str,
        *,
        over: str = "",
        also: Callable[[Policy], Sequence[Operation]] = _nothing_more,
    ) -> Policy:
        """Put another text in the file and in force; `over` is the version that it must replace.

        The operations of `also` go into the commit that activates it. Raises InvalidPolicy,
        Conflict, Refused, Unavailable, and then changes nothing.
        """
        return await _to_its_end(self._replace(text, over=over, also=also))

    async def _replace(
        self, text: str, *, over: str, also: Callable[[Policy], Sequence[Operation]]
    ) -> Policy:
        path = self._path or self._keep_at
        if path is None:
            raise InvalidPolicy(ACTIVE_POLICY, ["there is no policy file: set POLICY_FILE"])
        async with self._lock:
            if over and over != self.current.version:
                raise Conflict("the policy was changed meanwhile; look at it again")
            policy = await asyncio.to_thread(self._compile, text)
            # The text is on disk beside the file before the commit, so that little can fail after
            # it. The commit comes before the file: `also` says who changed the policy, and no
            # policy may come into force without that. A kill between the two leaves the old file:
            # the next start puts that on record again, and nobody was told that it was replaced.
            try:
                beside = await asyncio.to_thread(_write_beside, path.resolve(), text)
            except OSError as failed:
                raise _unwritten(path, failed) from failed
            before = self.text, self.current
            try:
                await self._activate(text, policy, also=also(policy))
                await asyncio.to_thread(_put, beside, path.resolve())
            except OSError as failed:
                await self._take_back(*before)
                raise _unwritten(path, failed) from failed
            finally:
                beside.unlink(missing_ok=True)
            self._path = path
            self._seen, self._digest = None, _digest(text.encode())
            return policy

    async def _activate(self, text: str, policy: Policy, *, also: Sequence[Operation] = ()) -> None:
        """Commit the policy, then make it current, without an await between the two."""
        previous, had_error = self.current.version, bool(self.error)
        try:
            row_version = await self._records.commit(policy, also=also)
        except BaseException:
            self._forget_file()  # the commit may have been made: the next look settles it
            raise
        self.text, self.current, self.row_version, self.error = text, policy, row_version, ""
        if policy.version != previous or had_error:
            log.info("policy_active version=%s previous=%s", policy.version, previous)

    async def _take_back(self, text: str, policy: Policy) -> None:
        """Activate the former policy, because the file could not be replaced."""
        try:
            await self._activate(text, policy)
        except ToolgateError as failed:
            self._show_error(f"The policy cannot be put on record: {failed}")
        self._forget_file()

    def _forget_file(self) -> None:
        """Have the next look read the file, and put it in force and on record if it is not."""
        self._seen, self._digest = None, ""

    def _show_error(self, error: str) -> None:
        if error != self.error:
            self.error = error
            log.warning("policy_refused version=%s error=%s", self.current.version, error)

    def _stamp(self) -> object:
        try:
            return None if self._path is None else _identity(self._path.stat())
        except OSError:
            return None

    def _read_if_changed(self) -> tuple[str, Policy] | None:
        seen = None if self._path is None else _identity(self._path.stat())
        if seen == self._seen and self._digest:
            return None
        content = default_policy_text().encode() if self._path is None else _read(self._path)
        self._seen = seen
        digest = _digest(content)
        if digest == self._digest and not self.error:
            return None
        self._digest = digest
        text = content.decode("utf-8")
        return text, self._compile(text)

    def _compile(self, text: str) -> Policy:
        return load_policy(text, parse_shell=self._parse_shell)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled: memory must follow a commit that was made."""
    return await asyncio.shield(asyncio.ensure_future(work))


def _unwritten(path: Path, failed: OSError) -> Refused:
    return Refused(f"{path} cannot be written: {failed.strerror}")


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_BYTES:
        raise InvalidPolicy(ACTIVE_POLICY, [f"the file is larger than {MAX_BYTES} bytes"])
    return path.read_bytes()


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_beside(path: Path, text: str) -> Path:
    """The new text, on disk, in the folder of the old."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        if path.exists():
            Path(temporary).chmod(path.stat().st_mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return Path(temporary)


def _put(beside: Path, path: Path) -> None:
    """All of the new text or all of the old, also after a power cut."""
    beside.replace(path)
    sync_directory(path.parent)
