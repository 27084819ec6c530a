"""`web.search`: what a provider's answer becomes, and that it is reached where the operator has it."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from toolgate import settings as table
from toolgate.bootstrap import tools as execution
from toolgate.core.addresses import parse_host
from toolgate.core.enums import Outcome
from toolgate.core.tools import Caller, ToolRequest
from toolgate.tools.engines.web_search import WebSearch
from toolgate.web.guard import GuardedWeb
from toolgate.web.web import Granted, WebRequest, WebResponse, any_host


class OneAnswer:
    def __init__(self, document: Any) -> None:
        self.body = msgspec.json.encode(document)

    async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
        return WebResponse(request.url, 200, (), self.body, truncated=False)


async def test_what_a_provider_does_not_know_of_a_hit_is_empty() -> None:
    hit = {"title": "A page", "url": "https://example.org/", "content": None}
    engine = WebSearch(OneAnswer({"results": [hit]}), provider="searxng", url="http://searx.lan")
    found = await engine.run(ToolRequest("r_1", "web.search", {"query": "x"}, Caller()))
    assert found.data == {
        "provider": "searxng",
        "results": [{"title": "A page", "url": "https://example.org/", "snippet": ""}],
    }


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"limit": 0}, {"limit": 51}, {"query": ""}])
async def test_an_agent_is_held_to_the_limits_that_it_is_told(wrong: dict[str, Any]) -> None:
    hits = [{"title": str(number)} for number in range(60)]
    engine = WebSearch(OneAnswer({"results": hits}), provider="searxng", url="http://searx.lan")
    found = await engine.run(ToolRequest("r_1", "web.search", {"query": "x", **wrong}, Caller()))
    assert (found.exit_code, found.data, found.outcome) == (
        1,
        {"error": {"code": "invalid"}},
        Outcome.NOT_STARTED,
    )


class Entering:
    async def enter(self, context: AbstractAsyncContextManager[Any]) -> Any:
        self.entered = context
        return context


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://searx.lan:8080/", "searx.lan", 8080),
        ("http://searx.lan", "searx.lan", 80),
        ("https://10.0.0.7/searx", "10.0.0.7", 443),
        ("http://SearX.lan:8080", "searx.lan", 8080),
    ],
)
async def test_a_provider_of_the_operators_own_may_be_private(
    url: str, host: str, port: int
) -> None:
    installation: Any = Entering()
    settings = table.load({"SEARCH_PROVIDER": "searxng", "SEARCH_URL": url})
    await execution._search(settings, installation)
    web = installation.entered
    assert isinstance(web, GuardedWeb)
    assert web._guard.opened(parse_host(host), port)
