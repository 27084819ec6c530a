"""A URL is read in one way or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.errors import Invalid
from toolgate.core.urls import MAX_URL, join, parse_url, split_authority
from toolgate.policy import urls as policy_urls


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTPS://Example.COM:443/A?b=C#d", "https://example.com/A?b=C"),
        ("http://example.com:8080?x", "http://example.com:8080/?x"),
        ("http://example.com./", "http://example.com/"),
        ("http://[2606:4700:0::1111]/", "http://[2606:4700::1111]/"),
        ("http://example.com/ä ".strip(), "http://example.com/%C3%A4"),
        ("http://example.com/%41?q=%zz", "http://example.com/%41?q=%zz"),
    ],
)
def test_a_url_is_written_back_in_one_form(text: str, read: str) -> None:
    assert str(parse_url(text)) == read
    assert str(parse_url(read)) == read


@pytest.mark.parametrize(
    "text",
    [
        "", "example.com", "ftp://example.com/", "http:///", "http://", "http://a b/", "http://a\\b/",
        "http://u@example.com/", "http://example.com:0/", "http://example.com:65536/",
        "http://example.com:/x", "http://example.com:8a/", "http://-a.example.com/",
        "http://a..example.com/", "http://exa%6dple.com/", "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 200 + "com/", "http://example.com/" + "a" * MAX_URL,
        "http://example.com/\ud800", "http://example.com/\x85", "http://example.com/\x7f",
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_not_the_web_is_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        parse_url(text)


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/x", "http://a.example.com/x"), ("y", "http://a.example.com/p/y"),
        ("../z", "http://a.example.com/z"), ("./", "http://a.example.com/p/"),
        ("?n=1", "http://a.example.com/p/q?n=1"), ("#top", "http://a.example.com/p/q?k=v"),
        ("//b.example.com/", "http://b.example.com/"), ("https://c.example.com", "https://c.example.com/"),
        ("../../../../e", "http://a.example.com/e"),
    ],
)  # fmt: skip
def test_a_redirect_is_read_against_where_it_came_from(location: str, leads_to: str) -> None:
    assert str(join(parse_url("http://a.example.com/p/q?k=v"), location)) == leads_to


@given(st.text(max_size=80))
def test_any_redirect_stays_on_the_web_or_is_invalid(location: str) -> None:
    try:
        url = join(parse_url("https://a.example.com/p/q"), location)
    except Invalid:
        return
    assert url.scheme in {"http", "https"}
    assert str(parse_url(str(url))) == str(url)


def test_a_proxy_target_needs_its_port() -> None:
    host, port = split_authority("example.com:443")
    assert (host.name, port) == ("example.com", 443)
    with pytest.raises(Invalid):
        split_authority("example.com")


PIECES = st.sampled_from(
    [*"ab1.:/@\\#?%[]-_ \t\n０。①ßéİıſK", "evil.com", "good.com", "http://", "127.0.0.1", "%2e"]
)


@given(st.lists(PIECES, min_size=1, max_size=8).map(lambda pieces: "http://" + "".join(pieces)))
def test_the_policy_and_the_guard_never_read_two_hosts_in_one_url(text: str) -> None:
    try:
        seen, fetched = policy_urls.parse_url(text).host, parse_url(text).host.name
    except (policy_urls.BadUrl, Invalid):
        return
    assert seen == fetched
