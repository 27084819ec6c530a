"""Tokens in the queries of addresses."""

import pytest

from toolgate.domain.query_tokens import query_tokens


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("http://host/?q=x&api_key=long%20enough", ["long enough"]),
        ("http://host/?token=123456789#refresh-token=987654321", ["123456789", "987654321"]),
        ("http://host/?page_token=2&page=3", []),
        ("http://host/?monkey=123456789", []),
        ("is token=123456789 an address?", []),
        ("http://[broken?token=123456789", []),
    ],
)
def test_what_a_sensitive_name_of_a_query_holds_is_a_token(given: str, tokens: list[str]) -> None:
    assert list(query_tokens({"urls": [{"url": given}, 5, None]})) == tokens
