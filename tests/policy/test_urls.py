"""Hosts in one spelling, or none."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolgate.core import urls as client_urls
from toolgate.policy.urls import BadUrl, HostSet, host_name, is_public, parse_url


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port"),
    [
        ("https://example.com", "https", "example.com", 443),
        ("http://example.com/a?b#c", "http", "example.com", 80),
        ("HTTPS://EXAMPLE.com./", "https", "example.com", 443),
        ("https://example.com:8443/x", "https", "example.com", 8443),
        ("https://münchen.de/", "https", "xn--mnchen-3ya.de", 443),
        ("https://xn--mnchen-3ya.de/", "https", "xn--mnchen-3ya.de", 443),
        ("http://[::1]:80/", "http", "::1", 80),
        ("http://[2001:DB8:0:0:0:0:0:1]/", "http", "2001:db8::1", 80),
        ("http://127.0.0.1/", "http", "127.0.0.1", 80),
        ("ftp://example.com", "ftp", "example.com", 21),
    ],
)
def test_a_url_has_one_spelling(text: str, scheme: str, host: str, port: int) -> None:
    assert parse_url(text) == (scheme, host, port, False)


def test_the_host_is_what_follows_the_user() -> None:
    assert parse_url("https://example.com@evil.test/") == ("https", "evil.test", 443, True)
    assert parse_url("https://a:b@evil.test:1/") == ("https", "evil.test", 1, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "//example.com",
        "https:example.com",
        "https:/example.com",
        "https:///example.com",
        "https://",
        "https://example.com\\@evil.test/",
        "https://evil.test\\.example.com/",
        "https://example.com\n.evil.test/",
        "https://exa mple.com/",
        " https://example.com/",
        "https://example.com /",
        "https://example.com:99999/",
        "https://example.com:80:80/",
        "https://example.com:x/",
        "https://a@b@example.com/",
        "https://exa%6dple.com/",
        "https://ex\u200bample.com/",
        "https://example。com/",
        "https://ｅxample.com/",
        "https://faß.de/",
        "https://βόλος.com/",
        "https://a\u200db.de/",
        "https://ex\u202eample.com/",
        "https://-example.com/",
        "https://example..com/",
        "https://.example.com/",
        "https://example.com../",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://1.2.3.4.5/",
        "http://[::1/",
        "http://::1/",
        "http://[fe80::1%25eth0]/",
        "http://[::1]evil.test/",
        "https://a:0/",
        "https://a:00000/",
        "https://" + "a" * 9000,
        "https://" + "a." * 200 + "com/",
    ],
)
def test_a_url_whose_host_cannot_be_told_is_bad(text: str) -> None:
    with pytest.raises(BadUrl):
        parse_url(text)


@given(st.text(max_size=40))
def test_any_text_after_a_scheme_is_a_url_or_bad(text: str) -> None:
    try:
        url = parse_url("https://" + text)
    except BadUrl:
        return
    assert url.host == host_name(url.host)


@example("[a]")
@given(st.text(alphabet="aB1.-:@[]/?#%\\_éßx0 \u3002", max_size=20))
def test_the_host_that_the_policy_sees_is_the_one_that_is_asked(text: str) -> None:
    try:
        seen = parse_url("https://" + text)
    except BadUrl:
        return
    if not seen.has_user:  # the client refuses those, and no allow matches them
        asked = client_urls.parse_url("https://" + text)
        assert (seen.host, seen.port) == (asked.host.name, asked.port)


def test_a_star_is_every_subdomain_and_not_the_domain_itself() -> None:
    hosts = HostSet(["*.example.org", "api.test", "::1"])
    assert "a.example.org" in hosts
    assert "a.b.example.org" in hosts
    assert "example.org" not in hosts
    assert "evilexample.org" not in hosts
    assert "example.org.evil.test" not in hosts
    assert "api.test" in hosts
    assert "x.api.test" not in hosts
    assert "::1" in hosts
    assert "anything.at.all" in HostSet(["*"])
    assert "example.org" not in HostSet([])


@pytest.mark.parametrize("host", ["example.com", "8.8.8.8", "2606:4700::1111", "a1", "x.h4"])
def test_public_hosts(host: str) -> None:
    assert is_public(host) is (host != "a1")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "a.localhost",
        "printer.local",
        "metadata.google.internal",
        "intranet",
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "192.168.1.1",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:1::1",
    ],
)
def test_hosts_that_are_not_public(host: str) -> None:
    assert not is_public(host_name(host))
