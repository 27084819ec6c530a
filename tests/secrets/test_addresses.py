"""Passwords and tokens in the addresses of a task."""

import pytest

from toolgate.secrets.addresses import secrets_in, without_password


def test_a_password_in_an_address_is_not_shown() -> None:
    assert without_password("http://u:secret@host/x?y#z") == "http://[redacted]@host/x?y#z"
    assert without_password("http://host/a@b") == "http://host/a@b"
    assert without_password("http://[broken") == "http://[broken"


@pytest.mark.requirement("004/sessions/credentials-nowhere")
@pytest.mark.parametrize(
    "address",
    [
        "http:/u:secret@host/x",  # a browser goes there all the same
        "http:\\\\u:secret@host/x",
        " ht\ttp://u:secret@host/x",
        "http://u:secret@[broken/x",
        "http://u:secret@host:port/x",
        "u:secret@host/x",
    ],
)
def test_a_password_in_an_address_that_is_none_is_not_shown_either(address: str) -> None:
    assert "secret" not in without_password(address)
    assert without_password(address).endswith("/x")


def test_what_is_no_address_has_no_password() -> None:
    assert list(secrets_in({"a": ["ada@example.org", "data:,a:b@c", "to: me@there"]})) == []


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
    assert list(secrets_in({"urls": [{"url": given}, 5, None]})) == tokens
