"""Tokens that stand in the addresses of a task: `?access_token=…`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from toolgate.domain.redaction import is_sensitive

SHORTEST: Final = 8  # a page's number is called a token too, and stands in every text


def query_tokens(given: Any) -> Iterator[str]:
    """The secrets in the queries and fragments of every address in these inputs."""
    left = [given]  # not by recursion: unknown members may be nested without end
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, str) and "://" in value:
            yield from _tokens_of(value)


def _tokens_of(address: str) -> Iterator[str]:
    try:
        parts = urlsplit(address)
        members = [*parse_qsl(parts.query), *parse_qsl(parts.fragment)]
    except ValueError:  # no address
        return
    yield from (value for name, value in members if len(value) >= SHORTEST and is_sensitive(name))
