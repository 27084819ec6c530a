"""What a remote caller's pages may reach: nothing inside, by whatever way they try."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.tasks.conftest import QUICK
from tests.tasks.runtimes import REMOTE, a_toolset, fails, run
from tests.tasks.site import Site
from toolgate.browser.options import BrowserOptions
from toolgate.browser.proxy_verdicts import ProxyVerdicts
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TaskCode, TrustLevel
from toolgate.tasks.addresses import check_target
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.toolset import Toolset
from toolgate.web.egress_proxy import EgressProxy
from toolgate.web.guard import Guard

pytestmark = pytest.mark.asyncio(loop_scope="session")

SELF = "outside.example"  # resolves to the test's site, which the guard is told to let through


@pytest.fixture(scope="module")
def inner() -> Iterator[Site]:
    """A server of the internal network: nothing may ever ask it anything."""
    inner = Site()
    yield inner
    inner.close()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def guarded(site: Site) -> AsyncIterator[SystemBrowser]:
    async def resolve(name: str, port: int) -> Sequence[str]:
        if name in {SELF, "rebound.example"}:
            return ["127.0.0.1"]
        raise OSError("no such name")

    verdicts = ProxyVerdicts()
    guard = Guard(resolve=resolve, allow_private=frozenset({f"{SELF}:{site.port}"}))
    async with EgressProxy(guard, decided=verdicts.note) as proxy:
        port = await proxy.listen_tcp()
        options = BrowserOptions(
            proxy_url=f"http://127.0.0.1:{port}",
            soft_ms=QUICK.soft_ms,
            navigation_ms=QUICK.navigation_ms,
        )
        browser = SystemBrowser(options, complaint=verdicts.complaint)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def remote(tmp_path: Path, guarded: SystemBrowser) -> AsyncIterator[Toolset]:
    async with a_toolset(tmp_path, browser=guarded, catalog=load_templates()) as toolset:
        yield toolset


def outside(site: Site, path: str) -> str:
    return f"http://{SELF}:{site.port}{path}"


async def items(toolset: Toolset, *urls: str) -> list[dict[str, Any]]:
    answer = await run(
        toolset, "batch_extract_pages", {"urls": list(urls)}, call=REMOTE, mode="sync"
    )
    found = answer["result"]["items"]
    assert isinstance(found, list)
    return found


@pytest.mark.requirement("004/trust/remote-file")
@pytest.mark.requirement("004/trust/remote-private")
@pytest.mark.requirement("004/trust/remote-numeric")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://127.0.0.1/",
        "http://10.1.2.3/",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:8787/",
        "http://something.localhost/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fe80::1]/",
        "data:text/html,x",
        "about:blank",
        "chrome://version",
    ],
)
async def test_a_remote_caller_may_not_open_what_is_inside(url: str) -> None:
    with pytest.raises(TaskFailed) as failed:
        check_target(url, trust=TrustLevel.REMOTE)
    assert failed.value.code is TaskCode.TRUST_LEVEL_NOT_ALLOWED


@pytest.mark.parametrize(
    "url", ["", "x", "http://", "javascript:alert(1)", "http://a b/", "ftp://h/"]
)
@pytest.mark.parametrize("trust", list(TrustLevel))
async def test_what_is_no_address_is_invalid_for_everyone(url: str, trust: TrustLevel) -> None:
    with pytest.raises(TaskFailed) as failed:
        check_target(url, trust=trust)
    assert failed.value.code is TaskCode.INVALID_PARAMETER


async def test_public_addresses_are_open_to_everyone() -> None:
    for url in ("https://example.org/x?y=1", "http://93.184.215.14/", "http://[2606:4700::1111]/"):
        for trust in TrustLevel:
            check_target(url, trust=trust)


@pytest.mark.requirement("004/trust/per-item")
async def test_a_refused_target_fails_its_item_and_the_others_are_read(
    remote: Toolset, site: Site
) -> None:
    refused, fine = await items(remote, site.url("/n/1"), outside(site, "/n/2"))
    assert refused["error"]["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
    assert fine["title"] == "Page 2"


async def test_a_name_that_leads_nowhere_is_a_failure_and_no_page(remote: Toolset) -> None:
    plain, secure = "http://nobody.example/", "https://nobody.example/"
    for item in await items(remote, plain, secure):
        assert item["error"]["errorCode"] == "EXECUTION_ERROR"
        assert item["error"]["message"] == "the server cannot be reached"
    for url in (plain, secure):
        failed = await fails(remote, "screenshot_page", {"url": url}, call=REMOTE)
        assert failed["message"] == "the server cannot be reached"


@pytest.mark.requirement("004/trust/remote-dns-pinned")
async def test_a_name_that_resolves_to_the_inside_is_refused(remote: Toolset, inner: Site) -> None:
    inner.hits.clear()
    plain, tunnel = await items(
        remote, f"http://rebound.example:{inner.port}/n/1", f"https://rebound.example:{inner.port}/"
    )
    assert plain["error"]["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
    assert tunnel["error"]["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
    assert not inner.hits


@pytest.mark.requirement("004/trust/remote-redirects")
async def test_a_redirect_to_the_inside_is_refused(
    remote: Toolset, site: Site, inner: Site
) -> None:
    inner.hits.clear()
    site.inner = inner.url("/n/secret")
    (redirected,) = await items(remote, outside(site, "/redirect-inside"))
    assert redirected["success"] is False
    assert redirected["error"]["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
    assert not inner.hits


@pytest.mark.requirement("004/trust/remote-sub-resources")
async def test_what_a_page_loads_by_itself_meets_the_same_check(
    remote: Toolset, site: Site, inner: Site
) -> None:
    inner.hits.clear()
    site.inner = inner.url("/n/secret")
    (fetching,) = await items(remote, outside(site, "/fetches-inside"))
    text = " ".join(section["text"] for section in fetching["content"]["sections"])
    assert "secret" not in text
    assert not inner.hits


@pytest.mark.requirement("004/trust/remote-login")
@pytest.mark.requirement("004/errors/trust-level-not-allowed")
async def test_a_remote_caller_may_not_log_in(remote: Toolset, site: Site) -> None:
    with pytest.raises(TaskFailed) as failed:
        await run(
            remote,
            "login_keep_session",
            {
                "startUrl": outside(site, "/login"),
                "credentials": {"username": "ada", "password": "x"},
                "fields": {"mode": "semantic"},
            },
            call=REMOTE,
        )
    assert failed.value.code is TaskCode.TRUST_LEVEL_NOT_ALLOWED


async def test_a_remote_caller_cannot_use_a_local_callers_session(
    remote: Toolset, site: Site
) -> None:
    kept = await run(
        remote,
        "login_keep_session",
        {
            "startUrl": site.url("/login"),
            "credentials": {"username": "ada", "password": "corréct horse&battery"},
            "fields": {"mode": "semantic"},
        },
    )
    with pytest.raises(TaskFailed) as failed:
        await run(
            remote,
            "batch_extract_pages",
            {"urls": [outside(site, "/n/1")]},
            call=REMOTE,
            session=kept["sessionId"],
        )
    assert failed.value.code is TaskCode.SESSION_NOT_FOUND


async def test_without_a_guarded_way_out_a_remote_caller_has_none(toolset: Toolset) -> None:
    failed = await fails(toolset, "pdf_page", {"url": "http://outside.example/"}, call=REMOTE)
    assert failed["errorCode"] == TaskCode.EXECUTION_ERROR
