"""Everything under /proc that a command in a sandbox can read: none of it tells a secret."""

import json
import os
from collections.abc import Callable

import pytest

from tests.support.engines import sandbox_of
from toolgate.sandbox.sandbox import Command, Interpreter, SessionKey, SessionSpec

OURS = "canary-of-the-runner"
SESSION_S = "canary-of-the-session"
EARLIER = "canary-of-an-earlier-command"
# What is read is at most 64 KiB of each file, without waiting; the names of files with a canary.
READ_ALL = f"""
import json, os
canaries = [text[::-1].encode() for text in {[each[::-1] for each in (OURS, SESSION_S, EARLIER)]!r}]
read, found = 0, []
for folder, _, names in os.walk("/proc"):
    for name in names:
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            content = os.read(fd, 65536)
        except OSError:
            continue
        finally:
            os.close(fd)
        read += bool(content)
        if any(canary in content for canary in canaries):
            found.append(path)
print(json.dumps([read, found]))
"""


@pytest.mark.parametrize("backend", ["bwrap", "docker"])
async def test_nothing_in_proc_tells_a_secret_of_ours_or_of_the_session(
    backend: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("TOOLGATE_CANARY", OURS)
    async with sandbox_of(backend, request) as sandbox:
        session = await sandbox.open(SessionSpec(SessionKey("hostile", "proc", "session")))
        await session.exec(Command(f"export TOKEN={SESSION_S}; sh -c 'sleep 100' {EARLIER} & cd ."))
        done = await session.exec(
            Command(READ_ALL, interpreter=Interpreter.PYTHON, clean=True, timeout_seconds=60)
        )
        assert done.exit_code == 0, done.stderr
        read, found = json.loads(done.stdout)
        record_property("class", [f"/proc of the sandbox ({backend})", read, read - len(found)])
        assert found == []
        assert read > 100, "the walk has seen something"
        # The judge sees: without `clean` the command has what the session exported.
        seen = await session.exec(Command("cat /proc/self/environ"))
        assert SESSION_S.encode() in seen.stdout
        await session.close()
    assert os.environ["TOOLGATE_CANARY"] == OURS
