"""`toolgate browser`: how it starts, and how it ends."""

import asyncio
import contextlib
import json
import signal
import socket
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import aiohttp
import pytest
from mcp import Client as McpClient
from mcp.client.sse import sse_client

from tests.e2e.forked import Forked, fork
from tests.e2e.harness import PROGRAM, environment
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import TOOL_RUN, AuditQuery, search
from toolgate.http.asgi import HEAD_LIMIT
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal

PATIENCE = 30


async def started(home: Path, port: int) -> Forked:
    return await fork(
        "browser",
        "--http",
        f"--port={port}",
        env=environment({"TOOLGATE_HOME": str(home)}),
        stdout=PIPE,
        stderr=PIPE,
    )


async def installed(home: Path) -> asyncio.subprocess.Process:
    given = environment({"TOOLGATE_HOME": str(home)})
    return await asyncio.create_subprocess_exec(
        PROGRAM, "browser", "--http", "--port=0", env=given, stdout=PIPE, stderr=PIPE
    )


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await started(tmp_path, port)
        told, said = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, told) == (2, b"")
    assert f"{port} is in use" in said.decode()


async def test_a_signal_ends_it_after_its_work_is_put_away(tmp_path: Path) -> None:
    for name, process in (
        (signal.SIGTERM, await installed(tmp_path)),
        (signal.SIGINT, await started(tmp_path / "other", 0)),
    ):
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        process.send_signal(name)
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, said.decode()
        assert b"Traceback" not in said


async def test_it_says_that_it_is_well_as_every_listener_does(tmp_path: Path) -> None:
    process = await started(tmp_path, 0)
    assert process.stdout is not None
    try:
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
        url = ready["urls"]["mcp"].replace("/mcp", "/health")
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            assert (answer.status, await answer.json()) == (200, {"ok": True})
    finally:
        process.terminate()
        await process.communicate()


async def test_a_head_without_an_end_is_refused_and_its_connection_closed(tmp_path: Path) -> None:
    process = await started(tmp_path, 0)
    assert process.stdout is not None
    try:
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
        address = urlsplit(ready["urls"]["mcp"])
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        writer.writelines([b"X-Filler: " + b"x" * 1000 + b"\r\n"] * (16 * HEAD_LIMIT // 1000))
        with contextlib.suppress(ConnectionError):  # it may hang up before we have read its answer
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            assert answer.startswith(b"HTTP/1.1 431 ")
        writer.close()
    finally:
        process.terminate()
        await process.communicate()


async def test_a_signal_ends_it_on_stdio_too_while_its_client_says_nothing(tmp_path: Path) -> None:
    process = await fork(
        "browser",
        "--stdio",
        env=environment({"TOOLGATE_HOME": str(tmp_path)}),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
        _, said = await process.communicate()
    assert b"Traceback" not in said


async def test_a_home_that_cannot_be_made_is_not_said_to_be_in_use(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    process = await fork(
        "browser",
        "--stdio",
        env=environment({"TOOLGATE_HOME": str(file / "home")}),
        stderr=PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 2
    assert "in use" not in said.decode()
    assert "cannot be written" in said.decode()


ASK = """\
version: 1
name: ask
default: deny
rules:
  - {id: ask, ask: browser.run_task_template, match: any, reason: A person must see it}
"""


def submission(number: int) -> bytes:
    arguments = {"templateId": "screenshot_page", "inputs": {"url": "http://h.example/"}}
    params = {"name": "run_task_template", "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return json.dumps(message).encode() + b"\n"


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.mark.requirement("004/gate/alone")
async def test_alone_it_refuses_what_a_person_must_approve_and_names_what_to_use(
    tmp_path: Path,
) -> None:
    policy = tmp_path / "ask.yaml"
    policy.write_text(ASK)
    given = {"XDG_DATA_HOME": str(tmp_path / "data"), "POLICY_FILE": str(policy)}
    process = await fork(
        "browser",
        "--stdio",
        env=environment({**given, "HOME": str(tmp_path)}),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=tmp_path,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        process.stdin.write(submission(2))
        told = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
    finally:
        process.kill()
        await process.communicate()
    answer = told["result"]["structuredContent"]
    assert answer["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
    assert "`toolgate up`" in answer["error"]
    assert answer["details"]["ruleId"] == "ask"
    assert (tmp_path / "data" / "toolgate" / "browser" / "stdio-0" / "journal.db").exists()


@pytest.mark.requirement("004/gate/alone")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_alone_over_http_the_caller_is_loopback_and_what_asks_is_refused_too(
    tmp_path: Path, transport: str
) -> None:
    policy = tmp_path / "ask.yaml"
    policy.write_text(ASK)
    given = {"XDG_DATA_HOME": str(tmp_path / "data"), "POLICY_FILE": str(policy)}
    process = await fork(
        "browser",
        f"--{transport}",
        "--port=0",
        env=environment({**given, "HOME": str(tmp_path)}),
        stdout=PIPE,
        stderr=PIPE,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        urls = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))["urls"]
        at = sse_client(urls["mcp_sse"]) if transport == "sse" else urls["mcp"]
        async with asyncio.timeout(PATIENCE), McpClient(at) as client:
            task = {"templateId": "screenshot_page", "inputs": {"url": "http://h.example/"}}
            answer = (await client.call_tool("run_task_template", task)).structured_content
    finally:
        process.terminate()
        await process.communicate()
    assert answer is not None
    assert answer["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
    assert "`toolgate up`" in answer["error"]
    assert not (tmp_path / ".toolgate").exists()
    home = tmp_path / "data" / "toolgate" / "browser" / "http"
    journal = await SqliteJournal.open(home / "journal.db", clock=SystemClock(), bus=LocalBus())
    try:
        rows = await search(journal, AuditQuery(action=TOOL_RUN, decision="deny", limit=10))
    finally:
        await journal.close()
    assert [(row.actor, row.resource_id) for row in rows.items] == [
        ("user:loopback", "browser.screenshot_page")
    ]
