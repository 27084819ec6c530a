"""The cron entries of an installation, as a YAML file.

- {id: morning, cron: "0 8 * * mon-fri", agent: assistant, message: "What is new?"}
- {id: probe, cron: "@every 5m", tool: http.fetch, args: {url: "https://example.com/"}}
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from toolgate.core.errors import Invalid, Misconfigured
from toolgate.schedules.cron import parse

HEARTBEAT = "heartbeat"  # the schedule that is there without a file
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class CronEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Name
    cron: str
    agent: str = ""
    message: str = ""
    tool: str = ""
    args: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if bool(self.agent) == bool(self.tool):
            raise ValueError("an entry has either an agent (with a message) or a tool (with args)")


def read_schedules(path: Path) -> list[CronEntry]:
    """Raises Misconfigured with what is wrong."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = msgspec.convert(document or [], list[CronEntry])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as wrong:
        raise Misconfigured(f"SCHEDULE_FILE {path}: {wrong}") from wrong
    names = [entry.id for entry in entries]
    if len(set(names)) != len(names):
        raise Misconfigured(f"SCHEDULE_FILE {path}: an id is there twice")
    for entry in entries:
        if wrong_with := _problem(entry):
            raise Misconfigured(f"SCHEDULE_FILE {path}: {entry.id}: {wrong_with}")
    return entries


def _problem(entry: CronEntry) -> str:
    """Why it would never run; empty where it would."""
    if entry.id == HEARTBEAT:
        return "this id is the heartbeat's own"
    try:
        never = parse(entry.cron).next_after(0) is None
    except Invalid as wrong:
        return str(wrong)
    return f"{entry.cron!r} is never due" if never else ""
