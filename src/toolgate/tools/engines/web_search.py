"""`web.search` by a provider that the operator names: a SearXNG of their own, or Brave."""

from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec

from toolgate.core.enums import Level, Outcome
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.tools import JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.tools.definitions import INVALID, UPSTREAM, failed
from toolgate.tools.engine import Update, no_update
from toolgate.web.web import Web, WebRequest

BRAVE_URL: Final = "https://api.search.brave.com/res/v1/web/search"
MOST_HITS: Final = 50

TOOL: Final = Tool(
    name="web.search",
    description="Search the web.",
    level=Level.READ,
    schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_HITS},
        },
        "required": ["query"],
    },
    repeatable=True,
)


class _Args(msgspec.Struct, frozen=True):
    query: Annotated[str, msgspec.Meta(min_length=1)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_HITS)] = 10


class WebSearch:
    """An engine of one tool. `web` must be able to reach the provider."""

    ref: Final = "toolgate_web_search"

    def __init__(self, web: Web, *, provider: str, url: str, key: str = "") -> None:
        self._web = web
        self._provider = provider
        self._url = url or BRAVE_URL
        self._key = key

    def tools(self) -> Sequence[Tool]:
        return (TOOL,)

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        try:
            args = msgspec.convert(request.args, _Args)
            hits = await self._hits(args)
        except (msgspec.ValidationError, Invalid) as wrong:
            return failed(f"web.search: {wrong}", code=INVALID)
        except Unavailable as silent:
            return failed(f"web.search: {silent}", outcome=Outcome.MAY_HAVE_EXECUTED, code=UPSTREAM)
        found: list[JsonValue] = [dict(hit) for hit in hits[: args.limit]]
        return ToolOutput(exit_code=0, data={"provider": self._provider, "results": found})

    async def _hits(self, args: _Args) -> list[dict[str, str]]:
        if self._provider == "brave":
            query = urlencode({"q": args.query, "count": min(args.limit, 20)})
            headers = {"Accept": "application/json", "X-Subscription-Token": self._key}
            document = await self._ask(f"{self._url}?{query}", headers)
            return _picked(_members(document, "web", "results"), "description")
        query = urlencode({"q": args.query, "format": "json"})
        document = await self._ask(f"{self._url.rstrip('/')}/search?{query}", {})
        return _picked(_members(document, "results"), "content")

    async def _ask(self, url: str, headers: dict[str, str]) -> Any:
        answer = await self._web.fetch(WebRequest(url, headers=headers))
        if answer.status != 200:
            raise Unavailable(f"{self._provider} answered {answer.status}")
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as garbage:
            raise Unavailable(f"{self._provider} did not answer in JSON") from garbage


def _members(document: Any, *path: str) -> list[Any]:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, list) else []


def _picked(results: list[Any], snippet: str) -> list[dict[str, str]]:
    return [
        {
            "title": str(one.get("title") or ""),
            "url": str(one.get("url") or ""),
            "snippet": str(one.get(snippet) or ""),
        }
        for one in results
        if isinstance(one, dict)
    ]
