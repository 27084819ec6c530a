"""Known secrets in every encoding and every place: grep finds none of them under a real home."""

import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.evidence.evidence_home import record_call
from tests.secrets.secret_writing import ENCODINGS, make_secrets
from tests.support.soak import soaking
from toolgate.core.tools import JsonValue
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.log_filter import RedactingFilter
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock

SECRETS = make_secrets(500)  # all of them are known
WRITTEN = SECRETS if soaking() else SECRETS[::9]  # of every alphabet


def call_with(written: str, *, place: int) -> dict[str, JsonValue]:
    """A tool call that has the secret in one of the places where it may be."""
    places: list[dict[str, JsonValue]] = [
        {"args": {"command": f"run {written} now", "list": [written, {"deep": written}]}},
        {"headers": {"X-Other": written, "Authorization": f"Bearer {written}"}},
        {"url": f"https://example.com/a?q={written}&b=1"},
        {"stdout": f"line\n{written}\nline"},
        {"stderr": f"failed: {written}"},
        {"error": repr(ValueError(written))},
        {written: "as a name"},
    ]
    return places[place % len(places)]


def calls_with(texts: Iterable[str], *, first: int) -> JsonValue:
    return [call_with(text, place=first + at) for at, text in enumerate(texts)]


def found_by_grep(place: Path, needles: Path) -> str:
    grep = shutil.which("grep")
    assert grep is not None
    done = subprocess.run(
        [grep, "-r", "-a", "-F", "-o", "-m", "1", "-f", needles, place],
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode("utf-8", "replace")


@pytest.mark.requirement("003/secrets/everywhere")
@pytest.mark.requirement("003/secrets/audit-events-logs")
async def test_grep_finds_no_secret_in_any_encoding_under_the_home(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    home = tmp_path / "home"
    clock = FakeClock()
    bus = LocalBus()
    patterns = SecretPatterns(SECRETS)
    redactor = patterns.redactor()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    log = await EvidenceLog.open(
        TileFiles(home / "evidence"),
        journal=journal,
        blobs=DiskBlobs(home / "blobs"),
        bus=bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home),
        redactor=redactor,
        commit=Commitments.in_home(home),
    )
    audit = AuditLog(journal, redactor=redactor)
    handler = logging.FileHandler(home / "toolgate.log", encoding="utf-8")
    handler.addFilter(RedactingFilter(redactor))
    logger = logging.Logger("test")  # noqa: LOG001 -- one that only this test knows
    logger.addHandler(handler)

    for number, secret in enumerate(WRITTEN):
        every = {name: encode(secret) for name, encode in ENCODINGS.items()}
        request, metadata, delta = (calls_with(every.values(), first=number + n) for n in (0, 2, 4))
        fields = {f"field{at}": text for at, text in enumerate(every.values())}
        event = json.dumps(redactor.value(delta)).encode()
        stream = redactor.stream()
        shown = "".join(
            stream.feed(text[:9]) + stream.feed(text[9:] + "\n") for text in every.values()
        )
        artifacts = {"request": redactor.value(request)}
        await record_call(log, journal, f"r{number}", artifacts=artifacts)
        await log.record(
            "result",
            fields | {"shown": (shown + stream.close())[:1500]},
            subject=every["base64"],
            with_operations=[
                *audit.prepare(
                    AuditEntry(
                        action="tool.run",
                        actor=secret,
                        resource_id=every["hex"],
                        metadata={"calls": metadata},
                    )
                ),
                Append("run", [NewEvent("delta", event)]),
            ],
        )
        for text in every.values():
            logger.error("call failed: %s", text, extra={"detail": {"x": text}})
        try:
            raise ValueError(secret)
        except ValueError:
            logger.exception("failed")

    handler.close()
    await log.close()
    await journal.close()

    needles = tmp_path / "needles"
    written = {encode(secret) for secret in WRITTEN for encode in ENCODINGS.values()}
    lines = sorted(one for one in written if "\n" not in one)  # grep takes a line for a needle
    needles.write_text("\n".join(lines) + "\n", encoding="utf-8")
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "file").write_text(f"x{ENCODINGS['base64url'](WRITTEN[7])}y", encoding="utf-8")
    assert found_by_grep(planted, needles), "grep would have found one"
    assert (home / "toolgate.log").stat().st_size > 200 * len(WRITTEN)
    found = set(found_by_grep(home, needles).splitlines())
    record_property("class", ["secrets on disk", len(lines), len(lines) - len(found)])
    assert found == set()
