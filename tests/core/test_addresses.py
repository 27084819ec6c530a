"""Every spelling of an address is the same address, and the inside is refused in all of them."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.addresses import Host, embedded, parse_host, refusal, refused_name
from toolgate.core.errors import Invalid

NETWORKS = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
)  # fmt: skip
INSIDE_V4 = st.sampled_from(NETWORKS).flatmap(
    lambda network: st.ip_addresses(v=4, network=network).map(
        lambda address: ipaddress.IPv4Address(int(address))
    )
)


def spell(number: int, base: str) -> str:
    match base:
        case "octal":
            return f"0{number:o}"
        case "hex":
            return f"0x{number:x}"
        case "HEX":
            return f"0X{number:X}"
        case "long octal":
            return f"0000{number:o}"
        case _:
            return str(number)


BASES = st.sampled_from(["decimal", "octal", "hex", "HEX", "long octal"])


@st.composite
def spellings(draw: st.DrawFn) -> tuple[ipaddress.IPv4Address, str]:
    """An address, and one of the ways to write it: one to four parts, each in its own base."""
    address = draw(st.ip_addresses(v=4).map(lambda ip: ipaddress.IPv4Address(int(ip))))
    parts = draw(st.integers(1, 4))
    octets = list(address.packed)
    last = int.from_bytes(bytes(octets[parts - 1 :]), "big")
    numbers = [*octets[: parts - 1], last]
    text = ".".join(spell(number, draw(BASES)) for number in numbers)
    if draw(st.booleans()):  # full-width digits and ideographic stops mean the same
        text = text.translate({ord(c): ord(c) + 0xFEE0 for c in "0123456789"}).replace(".", "。")
    return address, text + draw(st.sampled_from(["", "."]))


@given(spellings())
def test_every_spelling_is_read_as_the_address_it_means(
    case: tuple[ipaddress.IPv4Address, str],
) -> None:
    address, text = case
    host = parse_host(text)
    assert host.address == address
    assert host.canonical == (text == str(address))


@pytest.mark.parametrize(
    "text",
    [
        "-127.0.0.1", "+127.0.0.1", "1_27.0.0.1", "a.0.0.1", "127.0.-0.1", "0o177.0.0.1", "0b1.1",
        "127.0x.0.g.1", "1.2.3.4.5", "256.0.0.1", "1.2.65536", "1.16777216", "09.0.0.1",
        "9" * 65, "1." + "0" * 65,
    ],
)  # fmt: skip
def test_what_is_nearly_an_address_is_neither_an_address_nor_a_name(text: str) -> None:
    with pytest.raises(Invalid):
        parse_host(text)


@given(st.text(alphabet="0123456789.xX-+_abf", max_size=20))
def test_any_near_number_is_a_host_or_invalid(text: str) -> None:
    try:
        host = parse_host(text)
    except Invalid:
        return
    assert host.address is not None or not host.name.rpartition(".")[2].isdigit()


@given(INSIDE_V4)
def test_an_inside_address_is_refused_alone_and_in_every_ipv6_form(
    address: ipaddress.IPv4Address,
) -> None:
    number = int(address)
    assert refusal(address)
    forms = [
        number, 0xFFFF << 32 | number, 0xFFFF << 48 | number, 0x0064FF9B << 96 | number,
        0x0064FF9B0001 << 80 | number, 0x2002 << 112 | number << 80,
        0x20010000 << 96 | number << 64, 0x20010000 << 96 | (number ^ 0xFFFFFFFF),
        0x2600 << 112 | 0x5EFE << 32 | number, 0x2600 << 112 | 0x02005EFE << 32 | number,
    ]  # fmt: skip
    for form in forms:
        assert refusal(ipaddress.IPv6Address(form)), ipaddress.IPv6Address(form)


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_keeps_from_the_world_is_refused_here_too(
    address: ipaddress.IPv4Address,
) -> None:
    if not address.is_global or address.is_multicast:
        assert refusal(address)


@given(st.ip_addresses(v=6))
def test_the_same_holds_for_ipv6(address: ipaddress.IPv6Address) -> None:
    if not address.is_global or address.is_multicast or address.sixtofour or address.teredo:
        assert refusal(address)


@given(st.text(max_size=60))
def test_any_text_is_a_host_or_invalid(text: str) -> None:
    try:
        host = parse_host(text)
    except Invalid:
        return
    assert host.name.isascii()
    assert host.name == host.name.lower()
    assert parse_host(host.bracketed) == Host(host.name, host.address)


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "1.1.1.1", "93.184.215.14", "223.255.255.254", "172.32.0.1", "11.0.0.1"]
)
def test_public_addresses_are_let_through(text: str) -> None:
    assert refusal(ipaddress.IPv4Address(text)) == ""


@pytest.mark.parametrize("text", ["2606:4700::1111", "2a00:1450:4001:80b::200e", "2620:fe::fe"])
def test_public_ipv6_addresses_are_let_through(text: str) -> None:
    assert refusal(ipaddress.IPv6Address(text)) == ""


def test_a_zone_is_refused_whatever_the_address() -> None:
    assert refusal(ipaddress.IPv6Address("2606:4700::1111%eth0"))


def test_a_teredo_address_shows_its_server_and_its_client() -> None:
    address = ipaddress.IPv6Address("2001:0:4136:e378:8000:63bf:3fff:fdd2")
    assert [str(inner) for _, inner in embedded(address)] == ["65.54.227.120", "192.0.2.45"]


@pytest.mark.parametrize("name", ["localhost", "a.localhost", "x.internal", "printer.local"])
def test_local_names_are_known_by_their_spelling(name: str) -> None:
    assert refused_name(name)
    assert not refused_name(f"{name}.example.com")
    assert not refused_name(f"not{name}x")


def test_an_international_name_becomes_ascii() -> None:
    assert parse_host("BÜCHER.example").name == "xn--bcher-kva.example"
