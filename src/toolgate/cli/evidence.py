"""`toolgate evidence`: show, export and verify records, with the server running or gone."""

import contextlib
import json
import shutil
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import click

from toolgate import settings
from toolgate.cli.terminal import of_file, plain, progress, through
from toolgate.core.errors import Damaged, NotFound, Unavailable
from toolgate.evidence.check import (
    ARTIFACT_DIRECTORY,
    ClosedHome,
    LogReport,
    check_home,
    check_log,
    check_proof,
    exported_artifact,
)
from toolgate.evidence.checkpoints import VerifierKey, tiles_of
from toolgate.evidence.marks import Marks
from toolgate.evidence.records import LOG_DIRECTORY, artifacts_of, make_proof, size_of, subject_of
from toolgate.evidence.tiles import CHECKPOINT, PUBLIC_KEY
from toolgate.journal.sqlite.read_only import JOURNAL_FILE

INDEX_DIGITS: Final = 15  # of any log that there will be

_home = click.option(
    "--home", type=click.Path(path_type=Path), help="Where the data is. [TOOLGATE_HOME]"
)
_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(name="evidence")
def command() -> None:
    """Show, export and verify what was done."""


@command.command()
@click.argument("what")
@_json
@_home
def show(what: str, *, as_json: bool, home: Path | None) -> None:
    """Print the records about WHAT: an index, a request's id, or an artifact's ref.

    With --json one line for each: its index, the record, and its artifacts as texts.
    """
    with _answering(), ClosedHome(_resolved(home)) as closed:
        lost: list[str] = []
        for index, data in _records(closed, what):
            record = json.loads(data)
            wanted = (record["subject"], str(index))
            texts: dict[str, str] = {}
            for ref, digest in artifacts_of(data).items():
                if (what == ref or what in wanted) and (
                    content := _left(closed, ref, digest, lost)
                ):
                    texts[ref] = content.decode()
            if as_json:
                click.echo(json.dumps({"index": index, "record": record, "artifacts": texts}))
                continue
            click.echo(f"record {index}")
            click.echo(plain(json.dumps(record, indent=2, ensure_ascii=False)))
            for ref, text in texts.items():
                click.echo(f"\n{ref}")
                click.echo(plain(text))
        _tell_lost(lost)


@command.command()
@click.argument("what", required=False)
@click.option("--all", "everything", is_flag=True, help="The whole log, with its artifacts.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
@_json
@_home
def export(
    what: str | None, everything: bool, output: Path, *, as_json: bool, home: Path | None
) -> None:
    """Write a file that proves one record, or with --all a directory that proves them all.

    Of a request that has several records it is the last, its result; `toolgate evidence show` says
    the index of each.
    """
    if everything == (what is not None):
        raise click.UsageError("name one record, or say --all")
    with _answering(), ClosedHome(_resolved(home)) as closed:
        if everything:
            count = _export_all(closed, output)
            written: dict[str, object] = {"records": count, "path": str(output)}
            line = f"{count} records: {output}"
        else:
            assert what is not None
            index, size = _export_one(closed, what, output)
            written = {"index": index, "size": size, "path": str(output)}
            line = f"record {index} of {size}: {output}"
    click.echo(json.dumps({"ok": True, **written}) if as_json else line)


@command.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--key", default="", help="The verifier key, or a file that holds it.")
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An older checkpoint, of which this log must be a continuation.",
)
@_json
@_home
def verify(
    path: Path | None, key: str, since: Path | None, *, as_json: bool, home: Path | None
) -> None:
    """Check a proof file, a log's directory or a home; exit 1 where anything was changed."""
    with _answering():
        path = path or _resolved(home)
        if path.is_file():
            _verify_proof(path, key, as_json=as_json)
        else:
            _verify_directory(path, key, since, as_json=as_json)


def _verify_proof(path: Path, key: str, *, as_json: bool) -> None:
    proven = check_proof(path.read_bytes(), key=_parse_key(key) if key else None)
    if as_json:
        found = {"index": proven.index, "size": proven.checkpoint.size, "key": str(proven.key)}
        click.echo(json.dumps({"ok": True, **found, "record": proven.record}))
        return
    click.echo(
        f"verified: record {proven.index} of {proven.checkpoint.size}"
        f" ({plain(str(proven.record['kind']))}), {len(proven.artifacts)} artifacts"
    )
    click.echo(f"signed by {plain(str(proven.key))}")
    if not key:
        click.echo("the key came with the file: compare it, or give it with --key", err=True)


def _verify_directory(path: Path, key: str, since: Path | None, *, as_json: bool) -> None:
    older = since.read_bytes().decode() if since else ""
    if (path / JOURNAL_FILE).is_file():
        with ClosedHome(path) as closed, progress("Verifying records") as told:
            marks = Marks(settings.load().state_dir)
            # Before the checkpoint: a running Toolgate writes the mark after it.
            found = marks.find(closed.installation(), path)
            mark = found[0] if found else None
            given = _key_for(closed.log.root, key, path / "keys" / PUBLIC_KEY)
            report = check_home(closed, key=given, since=older, mark=mark, told=told)
        if mark is None:
            report.notes.append("STATE_DIR has no mark of this home to compare it with")
        _report(report, as_json=as_json)
        return
    root = path if (path / CHECKPOINT).exists() else path / LOG_DIRECTORY
    if not root.is_dir():
        raise Unavailable(f"a log was not found in {path}: say with --home where the data is")
    with_artifacts = (root / ARTIFACT_DIRECTORY).is_dir()
    with progress("Verifying records") as told:
        report = check_log(
            root,
            key=_key_for(root, key),
            since=older,
            read_artifact=exported_artifact(root) if with_artifacts else None,
            told=told,
        )
    if not with_artifacts:
        report.notes.append("there are no artifacts here to check")
    _report(report, as_json=as_json)


def _report(report: LogReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps(
                {
                    "ok": not report.problems,
                    "records": report.size,
                    "artifacts": report.artifacts,
                    "auditRows": report.audit_rows,
                    "problems": report.problems,
                    "notes": report.notes,
                }
            )
        )
        if report.problems:
            sys.exit(1)
        return
    for note in report.notes:
        click.echo(note, err=True)
    for problem in report.problems:
        click.echo(f"wrong: {plain(problem)}", err=True)
    if report.problems:
        count = len(report.problems)
        what = "1 thing is" if count == 1 else f"{count} things are"
        raise Damaged(f"{what} not as recorded")
    rows = f", {report.audit_rows} audit rows" if report.audit_rows else ""
    click.echo(f"verified: {report.size} records, {report.artifacts} artifacts{rows}")


def _key_for(root: Path, key: str, *others: Path) -> VerifierKey:
    if key:
        return _parse_key(key)
    for place in (*others, root / PUBLIC_KEY):
        if place.is_file():
            return _parse_key(str(place))
    raise Unavailable(f"there is no {root / PUBLIC_KEY}: give the log's key with --key")


def _parse_key(key: str) -> VerifierKey:
    # A key has plus signs and is long, so that no file is called the same.
    text = Path(key).read_bytes().decode() if len(key) < 4096 and Path(key).is_file() else key
    return VerifierKey.parse(text.strip())


def _export_one(closed: ClosedHome, what: str, output: Path) -> tuple[int, int]:
    """The record's index, and the size of the log that has it."""
    index, record = _records(closed, what)[-1]
    note = closed.log.checkpoint()
    size = size_of(note) if note else 0
    if note is None or index >= size:
        raise Unavailable(
            f"no checkpoint is over record {index}: start the server once, to sign it"
        )
    contents = {ref: closed.artifact(ref, d) for ref, d in artifacts_of(record).items()}
    proof = make_proof(
        closed.log,
        note=note,
        key=_key_for(closed.log.root, "", closed.home / "keys" / PUBLIC_KEY),
        index=index,
        record=record,
        artifacts=contents,
    )
    output.write_bytes(proof)
    return index, size


def _export_all(closed: ClosedHome, output: Path) -> int:
    note = closed.log.checkpoint()
    if note is None:
        raise NotFound("checkpoint", str(closed.log.root / CHECKPOINT))
    size = size_of(note)
    # Each tile as this checkpoint has it: a running server replaces files meanwhile.
    output.mkdir(mode=0o700, parents=True)
    (output / CHECKPOINT).write_bytes(note.encode())
    shutil.copy(closed.log.root / PUBLIC_KEY, output / PUBLIC_KEY)
    for tile in tiles_of(size):
        (output / tile.path).parent.mkdir(parents=True, exist_ok=True)
        (output / tile.path).write_bytes(closed.log.read(tile))
    (output / ARTIFACT_DIRECTORY).mkdir()
    count = 0
    lost: list[str] = []
    for record in through(islice(closed.records(), size), "Exporting records", total=size):
        count += 1
        for ref, digest in artifacts_of(record).items():
            if content := _left(closed, ref, digest, lost):
                name = digest.removeprefix("sha256:")
                (output / ARTIFACT_DIRECTORY / name).write_bytes(content)
    _tell_lost(lost)
    return count


def _left(closed: ClosedHome, ref: str, digest: str, lost: list[str]) -> bytes:
    """An artifact's content; empty, and noted, where its blob is gone: the others are not."""
    try:
        return closed.artifact(ref, digest)
    except NotFound:
        lost.append(ref)
        return b""


def _tell_lost(lost: Sequence[str]) -> None:
    for ref in lost:
        click.echo(f"lost: {plain(ref)}", err=True)
    if lost:
        raise Damaged(f"{len(lost)} artifacts are gone; all else is there")


def _records(closed: ClosedHome, what: str) -> list[tuple[int, bytes]]:
    if what.isascii() and what.isdigit() and len(what) <= INDEX_DIGITS:
        with contextlib.suppress(NotFound):  # a request's id may be a number as well
            return [(int(what), closed.at(int(what)))]
    subject = subject_of(what) or what
    found = closed.about(subject)
    if subject != what:
        found = [(index, record) for index, record in found if what in artifacts_of(record)]
    if not found:
        raise NotFound("record", what)
    return found


def _resolved(home: Path | None) -> Path:
    return home if home is not None else settings.load().home


class _answering:  # noqa: N801 -- used as a context manager, where it reads as a verb
    """Turn errors of files and texts into errors of ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, BrokenPipeError):
            return  # the reader has closed the pipe
        if isinstance(error, OSError):
            raise Unavailable(of_file(error)) from error
        if isinstance(error, UnicodeDecodeError):
            raise Unavailable(str(error)) from error
