"""Names, structure and streams, with a finder so simple that it can be read here."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.tools import JsonValue
from toolgate.secrets import redaction
from toolgate.secrets.redaction import MASK, STREAM_LIMIT, UNCHECKED, Redactor, Span

SECRET = "hunter2hunter2"


def find(text: str) -> list[Span]:
    spans = []
    start = text.find(SECRET)
    while start >= 0:
        spans.append(Span(start, start + len(SECRET), "known", start))
        start = text.find(SECRET, start + 1)
    return spans


def unfinished(text: str) -> int:
    return next((i for i in range(len(text)) if SECRET.startswith(text[i:])), len(text))


REDACTOR = Redactor(find, unfinished=unfinished)


@pytest.mark.parametrize(
    "name",
    [
        "token", "Token", "auth_token", "authToken", "X-Device-Token", "secret", "client_secret",
        "PASSWORD", "db.password", "passwd", "api_key", "apiKey", "API-KEY", "private_key",
        "mnemonic", "passphrase", "Authorization", "proxy-authorization", "cookie", "Set-Cookie",
        "x-api-key", "x-gateway-token", "AWS_SECRET_ACCESS_KEY", "pin", "jwt", "--password",
    ],
)  # fmt: skip
def test_a_name_that_hides_its_value(name: str) -> None:
    assert redaction.is_sensitive(name)
    assert REDACTOR.value({name: "anything"}) == {name: MASK}
    assert REDACTOR.headers({name: "anything"}) == [(name, MASK)]


@pytest.mark.parametrize(
    "name",
    [
        "key", "idempotencyKey", "public_key", "max_tokens", "prompt_tokens", "author", "tool",
        "spin", "bypass", "tokenizer", "request_id", "content-type", "x-request-id",
    ],
)  # fmt: skip
def test_a_name_that_hides_nothing(name: str) -> None:
    assert REDACTOR.value({name: 12}) == {name: 12}
    assert REDACTOR.headers([(name, "plain")]) == [(name, "plain")]


@pytest.mark.requirement("003/secrets/header-names")
def test_the_contracts_headers_are_masked_in_any_case_and_form() -> None:
    for name in (
        "Authorization", "proxy-authorization", "COOKIE", "Set-Cookie", "x-api-key",
        "X-Device-Token", "X-Gateway-Token",
    ):  # fmt: skip
        assert REDACTOR.headers([(name, "x")]) == [(name, MASK)]
        assert REDACTOR.value({"headers": {name: "x"}}) == {"headers": {name: MASK}}
        assert REDACTOR.value({"headers": [[name, "x"]]}) == {"headers": [[name, MASK]]}


@pytest.mark.requirement("003/secrets/key-names")
def test_the_contracts_key_names_are_masked() -> None:
    names = ["token", "secret", "password", "api_key", "private_key", "mnemonic"]
    assert REDACTOR.value(dict.fromkeys(names, "x")) == dict.fromkeys(names, MASK)


def test_what_has_no_secret_comes_back_uncopied() -> None:
    value: JsonValue = {"a": [1, 2.5, None, True, {"b": "text"}], "tokens": 3}
    assert REDACTOR.value(value) is value


@pytest.mark.requirement("003/secrets/key-names")
def test_a_structure_under_a_sensitive_name_is_masked_whole() -> None:
    assert REDACTOR.value({"credentials": {"user": "a", "n": 1}}) == {"credentials": MASK}
    assert REDACTOR.value({"tokens": ["a", "b"]}) == {"tokens": MASK}


def test_whether_there_is_a_secret_may_be_said() -> None:
    assert REDACTOR.value({"token": None, "secret": True}) == {"token": None, "secret": True}


def test_a_number_under_a_sensitive_name_is_masked() -> None:
    assert REDACTOR.value({"pin": 1234}) == {"pin": MASK}


def test_a_named_value_and_a_flag_and_a_pair_hide_what_follows() -> None:
    assert REDACTOR.value([{"name": "Authorization", "value": "x"}]) == [
        {"name": "Authorization", "value": MASK}
    ]
    assert REDACTOR.value({"key": "api_token", "value": "x"}) == {"key": "api_token", "value": MASK}
    assert REDACTOR.value(["curl", "--password", "x", "y"]) == ["curl", "--password", MASK, "y"]
    assert REDACTOR.value([["Cookie", "a=b"]]) == [["Cookie", MASK]]


def test_a_secret_is_found_in_values_keys_lists_and_numbers() -> None:
    numbers = Redactor(lambda text: [Span(0, len(text), "known", 0)] if "987654" in text else [])
    assert numbers.value({"a": 987654, "b": 1.5}) == {"a": MASK, "b": 1.5}
    assert REDACTOR.value({f"x{SECRET}": [f"a {SECRET} b", {"c": SECRET}]}) == {
        f"x{MASK}": [f"a {MASK} b", {"c": MASK}]
    }


def test_bytes_that_are_no_text_are_kept_around_the_secret() -> None:
    assert REDACTOR.bytes(b"\xff\x00" + SECRET.encode() + b"\xfe") == (
        b"\xff\x00" + MASK.encode() + b"\xfe"
    )


def test_what_cannot_be_checked_is_replaced_whole() -> None:
    def broken(_: str) -> list[Span]:
        raise RuntimeError("the finder broke")

    redactor = Redactor(broken)
    assert redactor.text("abc") == UNCHECKED
    assert redactor.bytes(b"abc") == UNCHECKED.encode()
    assert redactor.value({"a": "b"}) == UNCHECKED
    assert redactor.fields({"a": "b"}) == {"redacted": UNCHECKED}
    assert redactor.headers({"a": "b"}) == [(UNCHECKED, UNCHECKED)]
    stream = redactor.stream()
    assert stream.feed("abc") == UNCHECKED
    assert stream.feed("abc") == ""
    assert stream.close() == ""


def test_a_structure_too_deep_to_walk_is_replaced_whole() -> None:
    deep: JsonValue = SECRET
    for _ in range(100_000):
        deep = [deep]
    assert REDACTOR.value(deep) == UNCHECKED
    while isinstance(deep, list):  # taken apart by hand: the interpreter recurses otherwise
        deep = deep.pop()


def test_overlapping_and_touching_spans_become_one_mask() -> None:
    spans = [Span(2, 5, "a", 2), Span(4, 8, "b", 4), Span(0, 1, "c", 0), Span(2, 3, "d", 2)]
    assert redaction.mask("0123456789", spans) == f"{MASK}1{MASK}89"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))), st.text(min_size=20, max_size=20)
)
def test_no_masked_character_is_left_and_no_other_is_lost(
    pairs: list[tuple[int, int]], text: str
) -> None:
    spans = [Span(min(p), max(p), "", min(p)) for p in pairs if p[0] != p[1]]
    hidden = {i for span in spans for i in range(span.start, span.end)}
    masked = redaction.mask("".join(chr(0xE000 + i) for i in range(20)), spans)
    assert [c for c in masked if ord(c) >= 0xE000] == [
        chr(0xE000 + i) for i in range(20) if i not in hidden
    ]


@given(
    st.lists(st.sampled_from([SECRET, SECRET[:5], "hunter", " ", "x", "hunter2", "\n"])), st.data()
)
def test_a_stream_shows_what_the_whole_text_would_whatever_the_pieces(
    parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    stream = REDACTOR.stream()
    shown = ""
    position = 0
    while position < len(text):
        size = data.draw(st.integers(1, 9))
        shown += stream.feed(text[position : position + size])
        assert SECRET not in shown
        position += size
    assert shown + stream.close() == REDACTOR.text(text)


def test_a_stream_shows_at_once_what_cannot_be_part_of_a_secret() -> None:
    stream = REDACTOR.stream()
    assert stream.feed("hello world\n") == "hello world\n"
    assert stream.feed("a hunt") == "a "
    assert stream.feed("ing") == "hunting"


def test_a_secret_without_an_end_is_swallowed_and_not_kept_for_ever() -> None:
    def long_words(text: str) -> list[Span]:
        start = text.find("LONG")
        if start < 0:
            return []
        end = next((i for i in range(start, len(text)) if text[i].isspace()), len(text))
        return [Span(start, end, "long", start)]

    stream = Redactor(long_words, unfinished=lambda text: len(text)).stream()
    shown = stream.feed("before LONG")
    for _ in range(4):
        shown += stream.feed("z" * STREAM_LIMIT)
    shown += stream.feed("zz after\n") + stream.close()
    assert shown == f"before {MASK} after\n"


@pytest.mark.parametrize("name", ["DB_PASS", "smtp-pwd", "user_pin", "sms.otp", "_jwt_", "x_auth"])
def test_a_short_name_hides_as_the_last_word_of_a_longer_one(name: str) -> None:
    assert REDACTOR.value({name: "shown"}) == {name: MASK}


@pytest.mark.parametrize("name", ["compass", "spin", "bypass", "passport", "pinned", "author"])
def test_a_word_that_only_ends_like_a_secret_hides_nothing(name: str) -> None:
    assert REDACTOR.value({name: "shown"}) == {name: "shown"}


@pytest.mark.parametrize("pair", [("name", "value"), ("Name", "Value"), ("Key", "Value")])
def test_a_pair_of_name_and_value_is_read_however_it_is_written(pair: tuple[str, str]) -> None:
    name, value = pair
    shown: JsonValue = {name: "COLOUR", value: "blue"}
    assert REDACTOR.value([{name: "Password", value: "blue"}, shown]) == [
        {name: "Password", value: MASK},
        shown,
    ]


def test_long_names_are_judged_and_not_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(40):
            name = f"{number}" + "x" * 1_000_000
            assert REDACTOR.value({name: "shown", name + "_token": "hidden"}) == {
                name: "shown",
                name + "_token": MASK,
            }
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10_000_000
