"""`toolgate browser` is killed while Chromium submits forms: each form is sent at most once."""

import asyncio
import contextlib
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.forked import Forked, fork, toolgate
from tests.e2e.harness import PATIENCE, environment
from toolgate.browser.chromium import KNOWN
from toolgate.core.enums import TaskStatus
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import LARGEST_LIMIT, TOOL_RUN, AuditQuery, search
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.tasks.state import TERMINAL
from toolgate.tools.calls import EXECUTIONS, decode_entry
from toolgate.tools.calls import TERMINAL as CALL_ENDED

POLICY = """\
version: 1
name: forms
default: deny
rules:
  - {id: all, allow: "browser.*", match: any, reason: For the test}
"""
FORM = "<title>Form</title><form method=post><input name=id><button>Send</button></form>"
SENT = "<title>Sent</title><p>Thank you"
LONGEST_S = 2.5  # from the first answer to the kill
FORMS = 4  # submitted after each start, two at once


@dataclass
class Pages:
    """A form on loopback; counts what is sent."""

    sent: Counter[str] = field(default_factory=Counter)
    url: str = ""

    async def form(self, _: web.Request) -> web.Response:
        return web.Response(text=FORM, content_type="text/html")

    async def send(self, request: web.Request) -> web.Response:
        self.sent[str((await request.post())["id"])] += 1
        return web.Response(text=SENT, content_type="text/html")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Pages"]:
        app = web.Application()
        app.add_routes([web.get("/", self.form), web.post("/", self.send)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            yield self
        finally:
            await runner.cleanup()


@dataclass
class Browser:
    """`toolgate browser --stdio`, and MCP by hand on its two pipes."""

    process: Forked
    reading: asyncio.Task[None] = field(init=False)
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    @classmethod
    async def start(cls, home: Path, policy: Path) -> "Browser":
        given = {"TOOLGATE_HOME": str(home), "POLICY_FILE": str(policy), "LOG_LEVEL": "error"}
        with home.with_suffix(".log").open("ab") as log:
            env = environment(given)
            browser = cls(
                await fork("browser", "--stdio", env=env, stdin=PIPE, stdout=PIPE, stderr=log)
            )
        browser.reading = asyncio.create_task(browser._read())
        client = {"name": "kills", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        await browser.request("initialize", params)
        browser._write({"method": "notifications/initialized"})
        return browser

    async def call(self, tool: str, **arguments: Any) -> Any:
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        return answer["structuredContent"]

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._write({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(answer, 3 * PATIENCE)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self.reading

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if (waiting := self._answers.pop(message.get("id", -1), None)) is not None:
                waiting.set_result(message["result"])
        for waiting in self._answers.values():
            waiting.cancel()


@dataclass
class Forms:
    """The forms that were asked for, by key, and the runs that were acknowledged."""

    url: str
    asked: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    repeated: int = 0

    async def submit(self, browser: Browser, key: str) -> None:
        locator = {"mode": "selector", "selector": "input"}
        inputs = {
            "startUrl": self.url,
            "fields": [{"name": "id", "value": key, "locator": locator}],
            "successIndicator": {"type": "textIncludes", "value": "Thank you"},
        }
        options = {"mode": "async", "idempotencyKey": key}
        arguments = {"templateId": "submit_and_verify", "inputs": inputs, "options": options}
        run = await browser.call("run_task_template", **arguments)
        assert self.runs.setdefault(key, run["runId"]) == run["runId"], "another run"

    async def live(self, browser: Browser) -> None:
        """Repeat what was not answered, then go on with new forms."""
        for key in [key for key in self.asked if key not in self.runs]:
            self.repeated += 1
            await self.submit(browser, key)
        for _ in range(FORMS):
            self.asked.append(f"form-{len(self.asked)}")
            await self.submit(browser, self.asked[-1])

    async def ended(self, browser: Browser) -> dict[str, str]:
        """The status of each form's run, once all have ended."""
        statuses: dict[str, str] = {}
        for key, run_id in self.runs.items():
            async with asyncio.timeout(3 * PATIENCE):
                while statuses.get(key) not in TERMINAL:
                    run = await browser.call("get_task_run", runId=run_id)
                    statuses[key] = run["status"]
                    await asyncio.sleep(0.05)
        return statuses


async def kill_under_load(
    home: Path, policy: Path, forms: Forms, sent: Callable[[], int], chance: random.Random
) -> None:
    """By time, or as soon as one more form was sent."""
    browser = await Browser.start(home, policy)
    life = asyncio.create_task(forms.live(browser))
    before, by_time = sent(), chance.random() < 0.5
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(chance.uniform(0.0, LONGEST_S) if by_time else PATIENCE):
            while by_time or sent() == before:
                await asyncio.sleep(0.002)
    await browser.kill()
    with contextlib.suppress(asyncio.CancelledError, OSError):
        await life


async def check_records(home: Path, run_ids: Iterable[str]) -> None:
    """Each run's call has ended and has one audit row; the evidence verifies."""
    ran = await asyncio.to_thread(
        toolgate, "evidence", "verify", "--home", str(home), env=environment({})
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    journal = await SqliteJournal.open(home / "journal.db", clock=SystemClock(), bus=LocalBus())
    try:
        page = await search(journal, AuditQuery(action=TOOL_RUN, limit=LARGEST_LIMIT))
        audited = Counter(str(row.metadata["requestId"]) for row in page.items)
        for run_id in run_ids:
            row = await journal.get(EXECUTIONS, run_id)
            assert row is not None
            assert decode_entry(row.value).state in CALL_ENDED, run_id
            assert audited[run_id] == 1, run_id
    finally:
        await journal.close()


@pytest.mark.timeout(600)
@pytest.mark.soak("kills", rounds=20, short=1)
@pytest.mark.skipif(not any(map(shutil.which, KNOWN)), reason="there is no Chromium here")
async def test_a_form_is_sent_once_at_most_over_kills(
    tmp_path: Path, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    home, policy, chance = tmp_path / "home", tmp_path / "policy.yaml", random.Random(15)
    policy.write_text(POLICY)
    async with Pages().serving() as pages:
        forms = Forms(pages.url)
        for _ in range(rounds):
            await kill_under_load(home, policy, forms, pages.sent.total, chance)
        browser = await Browser.start(home, policy)
        await forms.live(browser)
        statuses = await forms.ended(browser)
        total = (await browser.call("list_task_runs", limit=1))["total"]
        await browser.kill()
    assert total == len(forms.asked)
    await check_records(home / "browser" / "stdio-0", forms.runs.values())
    for key in forms.asked:
        assert pages.sent[key] <= 1, (key, statuses[key])
        if statuses[key] == TaskStatus.SUCCEEDED:
            assert pages.sent[key] == 1, key
    done = sum(status == TaskStatus.SUCCEEDED for status in statuses.values())
    assert done, statuses
    record_property(
        "table",
        f"forms: {len(forms.asked)} acknowledged, {forms.repeated} repeated,"
        f" {pages.sent.total()} sent, {done} succeeded",
    )
