"""The installed program and a real browser, shared by the tests of one module."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from yarl import URL

from tests.e2e.harness import PATIENCE, PROGRAM, Client, Program, running
from toolgate.browser.chromium import find_chromium

TOKEN = "operator-token-of-the-tests"
MARK = {"X-Toolgate-Console": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("console") / "home"
    async with running(home, OPERATOR_TOKEN=TOKEN) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as driver:
        launched = await driver.chromium.launch(
            executable_path=find_chromium(""), args=["--no-sandbox"]
        )
        yield launched
        await launched.close()


async def link_of(program: Program) -> str:
    """The sign-in link as `toolgate console` prints it."""
    port = URL(program.urls["gateway"]).port
    asking = await asyncio.create_subprocess_exec(
        PROGRAM,
        "console",
        *("--set", f"GATEWAY_PORT={port}", "--set", f"OPERATOR_TOKEN={TOKEN}"),
        cwd=program.home.parent,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(asking.communicate(), PATIENCE)
    found = re.search(r"http\S+#code=\S+", said.decode())
    assert found, said
    return found[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(program: Program) -> AsyncIterator[aiohttp.ClientSession]:
    """Signed in, without a browser."""
    jar = aiohttp.CookieJar(unsafe=True)
    mark = {**MARK, "Origin": program.urls["gateway"]}
    async with aiohttp.ClientSession(cookie_jar=jar, headers=mark) as http:
        url = f"{api(program)}/sign-in"
        assert await status_of(http, "POST", url, json={"token": TOKEN}) == 200
        yield http


async def status_of(http: aiohttp.ClientSession, method: str, url: str, **given: Any) -> int:
    """The status of an answer whose body nobody wants."""
    async with http.request(method, url, **given) as answer:
        return answer.status


def gateway(program: Program, path: str) -> str:
    return program.urls["gateway"] + path


def api(program: Program) -> str:
    return f"{program.urls['console']}/api"


@pytest_asyncio.fixture(loop_scope="module")
async def context(
    browser: Browser, session: aiohttp.ClientSession, program: Program
) -> AsyncIterator[BrowserContext]:
    made = await browser.new_context(
        viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    cookies = session.cookie_jar.filter_cookies(URL(api(program)))
    cookie = cookies["toolgate_operator"]
    await made.add_cookies(
        [{"name": cookie.key, "value": cookie.value, "url": program.urls["console"]}]
    )
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page that fails its test where a script fails or the content policy is broken."""
    made = await context.new_page()
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on(
        "console",
        lambda message: wrong.append(message.text) if "Content Security" in message.text else None,
    )
    yield made
    assert not wrong


Ask = Callable[[str], Awaitable[Client]]


@pytest_asyncio.fixture(loop_scope="module")
async def ask(program: Program) -> AsyncIterator[Ask]:
    """A client that has said this to the script agent."""
    clients: list[Client] = []

    async def say(message: str) -> Client:
        client = await Client.connect(program.urls["ingress_ws"], user="amara")
        clients.append(client)
        await client.invoke(message, agent="script")
        return client

    yield say
    for client in clients:
        await client.close()
