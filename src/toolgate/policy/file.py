"""The policy as a YAML file: read strictly, tried against its own tests, reloaded when it changes.

A file that is wrong never replaces one that was right; what is wrong with it is reported.
"""

import asyncio
import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Conflict, Refused
from toolgate.core.tools import JsonValue
from toolgate.policy.compile import compile_policy
from toolgate.policy.lint import run_tests
from toolgate.policy.model import ACTIVE_POLICY, InvalidPolicy, Policy
from toolgate.policy.shell import ParseShell

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


def default_policy_text() -> str:
    """The policy that ships with Toolgate."""
    return resources.files("toolgate.policy").joinpath("default_policy.yaml").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a look at the file brought: another version in force, or an error and the old one."""

    version: str
    previous: str
    error: str = ""


def _ignore(_: PolicyChange) -> None:
    """For an owner that does not want to hear of changes."""


async def _unnoted(_: Policy) -> None:
    """For a change of which nothing is to be written first."""


class PolicyFile:
    """The policy in force, and those that have a name of their own.

    Without a path it is the shipped default, which never changes.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        parse_shell: ParseShell,
        named: Mapping[str, Policy] | None = None,
        changed: Callable[[PolicyChange], None] = _ignore,
        keep_at: Path | None = None,
    ) -> None:
        """`keep_at` is where a text that replaces the shipped one is put, and found again."""
        kept = keep_at is not None and keep_at.exists()
        self._path = path if path is not None or not kept else keep_at
        self._keep_at = keep_at
        self._parse_shell = parse_shell
        self._named = dict(named or {})
        self._changed = changed
        self._seen: object = None  # what the file was when last read
        self._looked_at: object = None
        self._digest = ""
        self._lock = asyncio.Lock()
        self.error = ""  # what is wrong with the file as it is now; empty: it is in force
        self.text, self.current = self._load()

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
        """Look at the file now; whether another version is in force."""
        async with self._lock:
            previous = self.current.version
            try:
                found = await asyncio.to_thread(self._read_if_changed)
            except (OSError, UnicodeDecodeError, InvalidPolicy) as bad:
                if isinstance(bad, OSError):
                    self._seen = None  # it may come back just as it was
                if str(bad) != self.error:
                    self.error = str(bad)
                    log.warning("policy_refused version=%s error=%s", previous, self.error)
                    self._changed(PolicyChange(previous, previous, self.error))
                return False
            if found is not None:
                self._activate(*found)
            return self.current.version != previous

    async def replace(
        self, text: str, *, over: str = "", first: Callable[[Policy], Awaitable[None]] = _unnoted
    ) -> Policy:
        """Put another text in the file and in force; `over` is the version that it must replace.

        `first` is awaited when nothing stands in the way any more. Raises InvalidPolicy, Conflict,
        Refused, what `first` raises, and then changes nothing.
        """
        path = self._path or self._keep_at
        if path is None:
            raise InvalidPolicy(ACTIVE_POLICY, ["there is no policy file: set POLICY_FILE"])
        async with self._lock:
            if over and over != self.current.version:
                raise Conflict("the policy was changed meanwhile; look at it again")
            policy = await asyncio.to_thread(self._compile, text)
            try:
                beside = await asyncio.to_thread(_write_beside, path.resolve(), text)
                try:
                    await first(policy)
                    await asyncio.to_thread(_put, beside, path.resolve())
                finally:
                    beside.unlink(missing_ok=True)
            except OSError as failed:
                raise Refused(f"{path} cannot be written: {failed.strerror}") from failed
            self._path = path
            self._seen, self._digest = None, _digest(text.encode())
            self._activate(text, policy)
            return policy

    def _activate(self, text: str, policy: Policy) -> None:
        previous, had_error = self.current.version, bool(self.error)
        self.text, self.current, self.error = text, policy, ""
        if policy.version != previous or had_error:
            log.info("policy_active version=%s previous=%s", policy.version, previous)
            self._changed(PolicyChange(policy.version, previous))

    def _load(self) -> tuple[str, Policy]:
        if self._path is None:
            text = default_policy_text()
            return text, self._compile(text)
        found = self._read_if_changed()
        assert found is not None  # nothing has been seen before
        return found

    def _stamp(self) -> object:
        try:
            return None if self._path is None else _identity(self._path.stat())
        except OSError:
            return None

    def _read_if_changed(self) -> tuple[str, Policy] | None:
        if self._path is None:
            return None
        status = self._path.stat()
        seen = _identity(status)
        if seen == self._seen:
            return None
        if status.st_size > MAX_BYTES:
            raise InvalidPolicy(ACTIVE_POLICY, [f"the file is larger than {MAX_BYTES} bytes"])
        content = self._path.read_bytes()
        self._seen = seen
        digest = _digest(content)
        if digest == self._digest and not self.error:
            return None
        self._digest = digest
        text = content.decode("utf-8")
        return text, self._compile(text)

    def _compile(self, text: str) -> Policy:
        return load_policy(text, parse_shell=self._parse_shell)


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
