"""The login template on a login page that nobody here wrote: Django's admin."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.tasks.runtimes import a_toolset, run
from toolgate.browser.browser import Locator
from toolgate.browser.playwright.elements import PlaywrightElements
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TaskCode
from toolgate.core.system_clock import SystemClock
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER = "ada.of.the.admin"
PASSWORD = "corr\u00e9ct-h\u00f6rse&battery 42"
WRONG = "another-secr\u00e8t&mistyped 43"


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.django_admin",
         str(tmp_path_factory.mktemp("django")), USER, PASSWORD],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert server.stdout is not None
    yield f"http://127.0.0.1:{int(server.stdout.readline())}/admin/"
    server.terminate()
    server.wait()
    server.stdout.close()


@pytest_asyncio.fixture(loop_scope="session")
async def kept(tmp_path: Path, browser: SystemBrowser) -> AsyncIterator[Toolset]:
    """A toolset whose every byte is on disk, under the test's own home."""
    clock = SystemClock()
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock, bus=LocalBus())
    try:
        async with a_toolset(
            tmp_path, browser=browser, catalog=load_templates(), clock=clock, journal=journal
        ) as toolset:
            yield toolset
    finally:
        await journal.close()


async def log_in(
    toolset: Toolset, admin: str, password: str, fields: dict[str, str] | None = None
) -> dict[str, Any]:
    answer = await run(
        toolset,
        "login_keep_session",
        {
            "startUrl": admin,
            "credentials": {"username": USER, "password": password},
            "fields": fields or {"mode": "semantic"},
        },
        mode="sync",
    )
    return dict(answer)


def written(home: Path) -> bytes:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name == "journal.db" for path in files)
    return b"\n".join(path.read_bytes() for path in files)


def assert_kept_nowhere(home: Path, *secrets: str) -> None:
    everything = written(home)
    for secret in secrets:
        for form in (secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]):
            assert form.encode() not in everything
            assert form.encode("unicode_escape") not in everything


async def test_the_right_password_opens_a_session_that_later_runs_use(
    kept: Toolset, admin: str, tmp_path: Path
) -> None:
    answer = await log_in(kept, admin, PASSWORD)
    assert answer["status"] == "succeeded", answer
    assert answer["result"]["loginState"] == "logged_in"
    assert answer["result"]["cookiesSaved"] is True
    inside = await run(
        kept, "batch_extract_pages", {"urls": [admin]}, session=answer["sessionId"], mode="sync"
    )
    assert "Site administration" in inside["result"]["items"][0]["title"]
    outside = await run(kept, "batch_extract_pages", {"urls": [admin]}, mode="sync")
    assert "Log in" in outside["result"]["items"][0]["title"]
    await kept.runtime.sessions.close(answer["sessionId"])
    assert_kept_nowhere(tmp_path, PASSWORD)


async def test_a_wrong_password_is_rejected_and_written_nowhere(
    kept: Toolset, admin: str, tmp_path: Path
) -> None:
    answer = await log_in(kept, admin, WRONG)
    assert answer["status"] == "failed"
    assert answer["result"]["loginState"] == "rejected"
    assert answer["result"]["success"] is False
    assert_kept_nowhere(tmp_path, WRONG, PASSWORD)


async def test_wrong_fields_are_said_to_be_missing_and_nothing_is_kept(
    kept: Toolset, admin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_any = PlaywrightElements.wait_any

    async def wait_less(
        self: PlaywrightElements, locators: Sequence[Locator], *, timeout_ms: int
    ) -> bool:
        absent = any("#no-such" in str(each) for each in locators)
        return await wait_any(self, locators, timeout_ms=300 if absent else timeout_ms)

    monkeypatch.setattr(PlaywrightElements, "wait_any", wait_less)
    for username, password in (("#no-such", "#id_password"), ("#id_username", "#no-such")):
        fields = {"mode": "selector", "username": username, "password": password}
        failed = await log_in(kept, admin, PASSWORD, fields)
        assert failed["errorCode"] == TaskCode.TPL_LOGIN_FIELD_NOT_FOUND
    assert_kept_nowhere(tmp_path, PASSWORD)
