"""A PostgreSQL of our own: in a directory of its own, as an unprivileged user, on a Unix socket."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from toolgate.journal.postgres import schema

USER: Final = "nobody"  # PostgreSQL refuses to run as root
STARTED_S: Final = 60


def programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts)
    return found[-1].parent if found else None


class Postgres:
    """A server with its data in `folder`."""

    def __init__(self, folder: Path, *, settings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._settings = settings
        found = programs()
        assert found is not None
        self._programs = found
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        shutil.chown(self.folder, *self._user())
        self._run("initdb", "-D", self.data, "-U", "postgres", "--no-sync", "-A", "trust")

    def start(self, *settings: str) -> None:
        options = [f"-c{setting}" for setting in (*self._settings, *settings)]
        log = self.folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self.data, "-k", self.folder),
                    *("-clisten_addresses=", "-cmax_connections=200", *options),
                ],
                stdout=output,
                stderr=output,
                **self._as_user(),
            )
        until = time.monotonic() + STARTED_S
        while not self._answers():
            assert self._process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it: SIGQUIT as a crash, SIGINT as one does before a restart."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(STARTED_S)
        self._process = None

    def empty_database(self) -> str:
        """The database, without what an earlier test has left in it; its URL."""
        self._run(
            *("psql", "-q", "-h", self.folder, "-U", "postgres", "-d", "postgres"),
            *("-c", "DROP SCHEMA IF EXISTS toolgate CASCADE"),
        )
        return self.url

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def _answers(self) -> bool:
        asked = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(asked, check=False).returncode == 0

    def _run(self, program: str, *words: object) -> None:
        asked = [str(self._programs / program), *map(str, words)]
        done = subprocess.run(asked, check=False, capture_output=True, **self._as_user())
        assert done.returncode == 0, done.stderr.decode()

    def _user(self) -> tuple[int, int]:
        if os.getuid() != 0:
            return os.getuid(), os.getgid()
        entry = pwd.getpwnam(USER)
        return entry.pw_uid, entry.pw_gid

    def _as_user(self) -> dict[str, Any]:
        uid, gid = self._user()
        return {"user": uid, "group": gid, "extra_groups": []} if os.getuid() == 0 else {}


@contextlib.contextmanager
def a_postgres(*settings: str) -> Iterator[Postgres]:
    """A new server, started; gone with its data at the end."""
    if programs() is None:
        pytest.skip("NOT TESTED, PostgreSQL is not installed: make system")
    # Not below tmp_path: the path of a socket has at most 107 bytes. In memory a sync costs nothing.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="tgpg-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o755)
    server = Postgres(folder, settings=settings)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def with_schema(url: str) -> str:
    """Make the schema in a database; its URL again."""
    connection = await asyncpg.connect(url)
    try:
        await schema.make(connection)
    finally:
        await connection.close()
    return url


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of a worker that only need a database."""
    with a_postgres("shared_buffers=16MB") as server:
        yield server
