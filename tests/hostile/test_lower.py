"""Smaller promises, each against whoever reads the source: Host, size of a head, approved scripts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.harness import PATIENCE, running
from tests.e2e.test_runner_check import runner
from tests.support.batteries import chosen
from tests.support.policies import PARSE
from tests.tools.engines.test_files_run import call
from tests.tools.engines.test_files_run import sessions as sessions
from toolgate.core.enums import Level
from toolgate.http.asgi import HEAD_LIMIT
from toolgate.policy.policies import Policies
from toolgate.sandbox.sandbox import Command
from toolgate.sandbox.sessions import Sessions
from toolgate.tools.engines.files_run import FilesRun
from toolgate.tools.routing import as_named

HOSTS = (
    "rebound.example", "rebound.example:18081", "127.0.0.1.example", "localhost.example", "example.",
    "localhost@evil.example", "evil.example#localhost", "0x7f000001.example", "xn--lcalhost-0za",
    "a", "LOCALHOST.example", "127.0.0.1x", "[evil]:1", "evil.localhost.example", "-",
)  # fmt: skip
PAGES = ("Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site",
         "Sec-Fetch-Site: same-origin", "sec-fetch-site: none\r\nORIGIN: http://127.0.0.1")  # fmt: skip


async def status_of(url: str, request: bytes) -> int:
    """The status of an answer; 0 where the connection ends without one."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(request)
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def test_no_page_and_no_rebound_name_reaches_a_runner_without_a_token(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    body = (
        b'{"call":{"name":"x","args":{}},"ctx":{"runId":"r","sessionId":"s","runtimeMode":"local"},'
        b'"target":{"targetId":"t","kind":"docker-runner","tenantId":"t"}}'
    )
    heads = [f"Host: {host}" for host in HOSTS] + [f"Host: localhost\r\n{page}" for page in PAGES]
    past = []
    async with runner("--mock", home=tmp_path, RUNNER_AUTH_TOKEN="") as url:
        for head in ("Host: localhost", "Host: 127.0.0.1:1", *heads):
            post = f"POST /execute HTTP/1.1\r\n{head}\r\ncontent-length: {len(body)}\r\n\r\n"
            status = await status_of(url, post.encode() + body)
            if head not in heads:
                assert status == 200, head
            elif status == 200:
                past.append(head)
            if (
                head in heads
                and await status_of(url, f"GET /health HTTP/1.1\r\n{head}\r\n\r\n".encode()) == 200
            ):
                past.append(f"health {head}")
    record_property(
        "class", ["Host and pages at a runner", 2 * len(heads), 2 * len(heads) - len(past)]
    )
    assert past == []


async def test_no_listener_takes_a_head_of_more_than_16_kib(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    tried, past = 0, []
    async with (
        running(tmp_path / "home") as program,
        runner("--mock", home=tmp_path / "runner") as url,
    ):
        urls = {f"{urlsplit(one).netloc}": one for one in (*program.urls.values(), url)}
        assert len(urls) == 5
        for netloc, one in urls.items():
            is_websocket = one.startswith("ws")
            upgrade = (
                "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
                "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            )
            start = f"GET {'/ws' if is_websocket else '/health'} HTTP/1.1\r\nhost: {netloc}\r\n"
            start += (upgrade if is_websocket else "") + "x-more: "
            for size in (HEAD_LIMIT - 100, HEAD_LIMIT + 100, 4 * HEAD_LIMIT, 64 * HEAD_LIMIT):
                head = start + "a" * (size - len(start) - 4) + "\r\n\r\n"
                status = await status_of(one, head.encode())
                if size < HEAD_LIMIT:
                    assert status in (101, 200), (one, status)
                    continue
                tried += 1
                if status not in (0, 431):
                    past.append((one, size, status))
    record_property("class", ["heads at every listener", tried, tried - len(past)])
    assert past == []


WAYS_TO_RUN = (
    "sh s.sh", "bash ./s.sh a", "./s.sh", "cat s.sh | sh", "sh < s.sh", "sh -c './s.sh'", "sh -c 'sh s.sh'",
    ". ./s.sh", "source s.sh", "env X=1 sh s.sh", "timeout 5 sh s.sh", "cd . && sh s.sh", "sh d/../s.sh",
    "sh '/workspace/s.sh'", "sh ./d/link.sh", "python3 s.sh", "make -f s.sh", "awk -f s.sh x",
)  # fmt: skip
WAYS_TO_CHANGE = (
    "echo evil >> s.sh", "echo evil > s.sh", "printf evil > n; mv n s.sh", "rm s.sh; ln -s data s.sh",
    "cp data s.sh", "truncate -s 1 s.sh", "sed -i s/one/two/ s.sh", "rm s.sh; ln data s.sh", "rm s.sh",
    "printf 'echo two\\n' > s.sh; touch -d 2001-01-01 s.sh",
)  # fmt: skip
POLICIES = Policies(lambda _: None, PARSE, lambda _: Level.WRITE)


@pytest.fixture
def place(sessions: Sessions) -> FilesRun:
    return FilesRun(POLICIES, sessions)


@pytest.mark.timeout(180)
async def test_no_change_of_an_approved_script_keeps_the_place_that_was_approved(
    sessions: Sessions, place: FilesRun, record_property: Callable[[str, object], None]
) -> None:
    where = place.added_to(as_named)
    session = await sessions.open_for(call("true"))
    make = "rm -rf d s.sh; mkdir d; echo 'echo one' > s.sh; echo x > data; chmod +x s.sh; ln -s ../s.sh d/link.sh"
    pairs = [(run, change) for run in WAYS_TO_RUN for change in WAYS_TO_CHANGE]
    tried = chosen(pairs, pairs[::9])
    past = []
    for run, change in tried:
        await session.exec(Command(make))
        before = await where(call(run))
        assert before.strip().startswith("files:"), run
        await session.exec(Command(change))
        if await where(call(run)) == before:
            past.append((run, change))
    record_property("rounds", len(tried))
    record_property("class", ["approved scripts", len(tried), len(tried) - len(past)])
    assert past == []
