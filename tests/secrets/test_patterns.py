"""Every secret, however it is written, is found; and nothing that is left gives it away."""

import base64
import itertools
import logging
from collections.abc import Callable
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.secrets.secret_writing import ENCODINGS, make_secrets
from tests.support.soak import soaking
from toolgate.core.errors import Invalid
from toolgate.core.tools import JsonValue
from toolgate.secrets import patterns as patterns_re2
from toolgate.secrets.log_filter import RedactingFilter
from toolgate.secrets.patterns import PATTERNS, SecretPatterns
from toolgate.secrets.redaction import MASK, UNCHECKED
from toolgate.secrets.writings import forms

SECRETS = make_secrets(500)
PATTERN_SET = SecretPatterns(SECRETS)
REDACTOR = PATTERN_SET.redactor()
NOTHING_KNOWN = SecretPatterns()
BLIND = NOTHING_KNOWN.redactor()


def test_500_known_secrets_are_found_in_every_encoding() -> None:
    for name, secret in itertools.product(ENCODINGS, SECRETS):
        written = ENCODINGS[name](secret)
        assert written not in REDACTOR.text(f"before {written} after"), (name, secret)


@pytest.mark.parametrize("name", ["hex", "HEX", "base64", "base64url", "percent", "json"])
def test_a_known_secret_is_found_in_the_middle_of_what_was_encoded(name: str) -> None:
    encode = ENCODINGS[name]
    for shift, secret in itertools.product(range(4), SECRETS[:: 5 if soaking() else 21]):
        around = "u" * shift
        clean = REDACTOR.text(encode(f"{around}{secret}{around}"))
        decoded = clean.replace(MASK, "")
        assert MASK in clean, (shift, secret)
        assert len(decoded) <= len(encode(around)) * 2 + 12, (shift, secret)


def test_a_basic_authorization_of_a_known_password_is_found() -> None:
    for secret in SECRETS[:50]:
        pair = base64.b64encode(f"admin:{secret}".encode()).decode()
        assert pair not in REDACTOR.text(pair)


def test_base64_wrapped_at_76_columns_is_found() -> None:
    for secret in SECRETS[:100:3]:
        raw = secret.encode()
        for shift in range(40, 60):
            wrapped = base64.encodebytes(b"x" * shift + raw + b"y" * 60).decode()
            its_own = wrapped.replace("\n", "")[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
            clean = REDACTOR.text(wrapped)
            assert MASK in clean
            assert its_own not in clean.replace("\n", "")


@given(st.sampled_from(SECRETS), st.sampled_from(sorted(ENCODINGS)), st.data())
def test_a_secret_split_across_chunks_is_caught(
    secret: str, name: str, data: st.DataObject
) -> None:
    written = ENCODINGS[name](secret)
    text = f"line one\nout: {written} done\nend"
    stream = REDACTOR.stream()
    shown = ""
    position = 0
    while position < len(text):
        size = data.draw(st.integers(1, 12))
        shown += stream.feed(text[position : position + size])
        position += size
    shown += stream.close()
    assert written not in shown
    assert shown.startswith("line one\n")
    assert shown.endswith("end")


@pytest.mark.soak("properties", rounds=32, short=8)
@pytest.mark.parametrize("size", [1, 7])
def test_a_secret_that_comes_in_small_pieces_is_caught_in_every_encoding(
    size: int, rounds: int
) -> None:
    for name, secret in itertools.product(ENCODINGS, SECRETS[:rounds]):
        written = ENCODINGS[name](secret)
        text = f"out: {written} done\n"
        stream = REDACTOR.stream()
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        shown = "".join(stream.feed(piece) for piece in pieces) + stream.close()
        assert shown == REDACTOR.text(text), (name, secret)


def test_base64_that_comes_line_by_line_is_caught() -> None:
    for secret in SECRETS[:24:2]:
        raw = secret.encode()
        for shift in range(38, 60):
            wrapped = base64.encodebytes(b"x" * shift + raw + b"y" * 60).decode()
            its_own = wrapped.replace("\n", "")[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
            stream = REDACTOR.stream()
            lines = wrapped.splitlines(keepends=True)
            shown = "".join(stream.feed(line) for line in lines) + stream.close()
            assert its_own not in shown.replace("\n", ""), (secret, shift)


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_wrapped_base64_whose_last_line_is_short_is_caught_in_small_pieces(
    size: int, end: str
) -> None:
    redactor = SecretPatterns(SECRETS[:12:2]).redactor()
    for secret in SECRETS[:12:2]:
        raw = secret.encode()
        for shift in (30, 37, 44, 47, 53):
            lines = base64.encodebytes(b"x" * shift + raw + b"y").decode()
            text = f"out:\n{lines}after\n".replace("\n", end)
            its_own = lines.replace("\n", "")[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
            stream = redactor.stream()
            pieces = (text[at : at + size] for at in range(0, len(text), size))
            shown = "".join(stream.feed(piece) for piece in pieces) + stream.close()
            assert its_own[-12:] not in shown.replace(end, ""), (secret, shift)
            assert shown.startswith(f"out:{end}eHh4")
            assert shown.endswith(f"after{end}")


def test_a_key_block_longer_than_a_stream_holds_back_is_swallowed_to_its_end() -> None:
    body = "\n".join("MIIEowIBAAKCAQEA" * 4 for _ in range(3000))
    text = f"a\n-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----\nafter\n"
    for size in (1000, 4096, 70_000):
        stream = BLIND.stream()
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        shown = "".join(stream.feed(piece) for piece in pieces) + stream.close()
        assert "MIIEow" not in shown, size
        assert shown.startswith("a\n")
        assert shown.endswith("after\n")
        assert len(shown) < 100


def test_a_stream_of_plain_lines_is_shown_line_by_line() -> None:
    stream = REDACTOR.stream()
    for line in ("building 1 of 3\n", "100% done \\o/\n", "path c:\\new\n", '{"a": 1}\n'):
        assert stream.feed(line) == line


LOOKS = {
    "bearer": ("Bearer abcdef0123456789", "abcdef0123456789"),
    "bearer, lower": ("authorization bearer tok_1234567890", "tok_1234567890"),
    "jwt": ("x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl y", "eyJzdWIiOiIxIn0"),
    "pem": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----\n",
        "MIIEow",
    ),
    "pem, escaped": (r"-----BEGIN PRIVATE KEY-----\nMIIEow\n-----END PRIVATE KEY-----", "MIIEow"),
    "pem, cut off": ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA", "AAAA"),
    "sk": ("key sk-proj-abcdefgh12345678", "abcdefgh12345678"),
    "stripe": ("sk_live_abcdefgh12345678", "abcdefgh12345678"),
    "github": ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdefghij"),
    "github app": ("ghs_0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdefghij"),
    "github fine": ("github_pat_11ABCDEFG0abcdefghijkl_mnop", "11ABCDEFG0abcdefghijkl"),
    "aws": ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    "slack": ("xoxb-1234567890-abcdefgh", "1234567890-abcdefgh"),
    "a form that only looks random": (
        "the key is wJalrXUtnFEMIxK7MDENGxbPxRfiCYEXAMPLE3Zq",
        "wJalrXUtnFEMIxK7MDENGxbPxRfiCYEXAMPLE3Zq",
    ),
    "near a name": ("the api key is 9f86d081884c7d659a2feaa0c55ad015.", "9f86d081884c7d659a2f"),
    "userinfo": ("git clone https://me:pa55word@example.com/x", "pa55word"),
    "userinfo with @": ("postgres://me:p@ss@db:5432/x", "p@ss"),
    "query": ("GET /x?a=1&access_token=abcd1234&b=2", "abcd1234"),
    "query, signature": ("https://s3/x?X-Amz-Signature=deadbeef01", "deadbeef01"),
    "query, key": ("https://maps/x?key=abcd1234", "abcd1234"),
    "header": ("> Authorization: Basic dXNlcjpwYXNz\r\n> Accept: */*", "dXNlcjpwYXNz"),
    "cookie": ("Cookie: a=b; session=abc123\nnext", "session=abc123"),
    "header in json": ('{"X-Api-Key": "abc 123"}', "abc 123"),
    "assigned": ("export DB_PASSWORD=hunter2", "hunter2"),
    "assigned, quoted": ("mnemonic = 'zoo zoo zoo wrong'", "zoo zoo zoo wrong"),
    "json in a string": ('{\\"password\\": \\"hunter2\\"}', "hunter2"),
    "yaml": ("client_secret: hunter2", "hunter2"),
    "ruby": (":password => 'hunter2'", "hunter2"),
    "flag": ("mysql --password hunter2 -h db", "hunter2"),
    "flag, equals": ("tool --api-key=hunter2", "hunter2"),
    "curl": ("curl -u me:hunter2 http://x/", "hunter2"),
    "environment": ("env DB_PASS=hunter2 run", "hunter2"),
    "its arguments": ("-u me:hunter2 http://x/", "hunter2"),
    "escaped assignment": ("password%3Dhunter2", "hunter2"),
}


def looks(*names: str) -> None:
    for name in names:
        text, secret = LOOKS[name]
        clean = BLIND.text(text)
        assert secret not in clean, name
        assert MASK in clean, name
        assert BLIND.text(clean) == clean, f"{name}: what is clean stays as it is"


@pytest.mark.requirement("003/secrets/bearer")
def test_a_bearer_token_is_removed() -> None:
    looks("bearer", "bearer, lower")


@pytest.mark.requirement("003/secrets/jwt")
def test_a_jwt_is_removed() -> None:
    looks("jwt")


@pytest.mark.requirement("003/secrets/pem")
def test_a_private_key_is_removed_whole_escaped_or_cut_off() -> None:
    looks("pem", "pem, escaped", "pem, cut off")


@pytest.mark.requirement("003/secrets/provider-keys")
def test_keys_of_known_providers_are_removed() -> None:
    looks("sk", "stripe", "github", "github app", "github fine", "aws", "slack")


@pytest.mark.requirement("003/secrets/url-userinfo")
def test_the_user_info_of_a_url_is_removed() -> None:
    looks("userinfo", "userinfo with @")


@pytest.mark.requirement("003/secrets/query-tokens")
def test_tokens_in_a_query_are_removed() -> None:
    looks("query", "query, signature", "query, key")


def test_an_unknown_secret_is_found_by_how_it_looks() -> None:
    looks(*LOOKS)


def test_an_unknown_secret_is_found_wherever_it_stands_in_a_value() -> None:
    for name, (text, secret) in LOOKS.items():
        value: JsonValue = {"first": "x", "text": text, "list": ["y", text, {"deep": text}], "n": 1}
        assert secret not in repr(BLIND.value(value)), name
        assert secret not in repr(BLIND.value([text])), name
        assert secret not in BLIND.text(f"one text\0{text}\0another"), name


@pytest.mark.parametrize("flag", ["-u", "--user", "--password", "--api-key"])
def test_a_secret_that_follows_its_flag_in_a_list_is_masked(flag: str) -> None:
    shown = BLIND.value({"argv": ["curl", flag, "bob:hunter22", "https://example.org"]})
    assert shown == {"argv": ["curl", flag, MASK, "https://example.org"]}


def test_a_flag_that_names_a_user_hides_nothing_else() -> None:
    argv: JsonValue = ["python", "-u", "run.py", "--user", "bob"]
    assert BLIND.value(argv) == argv


def test_an_unknown_secret_split_anywhere_is_still_caught() -> None:
    for name, (text, secret) in LOOKS.items():
        whole = f"start of it\n{text}"
        for split in range(len(whole)):
            stream = BLIND.stream()
            shown = stream.feed(whole[:split]) + stream.feed(whole[split:]) + stream.close()
            assert secret not in shown, (name, split)
        stream = BLIND.stream()
        shown = "".join(stream.feed(character) for character in whole) + stream.close()
        assert secret not in shown, name


def test_every_pattern_is_shown_by_an_example() -> None:
    seen = {span.kind for text, _ in LOOKS.values() for span in NOTHING_KNOWN.find(text)}
    assert seen == set(PATTERNS)


@pytest.mark.parametrize(
    "text",
    [
        "task-management-system risk-assessment disk-usage-report",
        "max_tokens: 12, prompt_tokens=5",
        "the token bucket is full and the secret garden is closed",
        "https://example.com/path?page=2&sort=name",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "mail me@example.com about c:\\new\\table 100%25 of it",
        "requests/req_123/tool_result.json run_01jcq3w7m2a8v5k9x4t6r0e1zy",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert BLIND.text(text) == text
    assert REDACTOR.text(text) == text


def test_bytes_that_are_no_utf8_are_searched_all_the_same() -> None:
    for secret in SECRETS[:40]:
        clean = REDACTOR.bytes(b"\xff\xfe " + secret.encode() + b" \x80 Bearer abcdef0123456789")
        assert secret.encode() not in clean
        assert b"abcdef0123456789" not in clean
        assert clean.startswith(b"\xff\xfe ")


def test_a_secret_is_known_until_it_is_forgotten_as_often_as_it_was_learnt() -> None:
    patterns = SecretPatterns()
    redactor = patterns.redactor()
    assert redactor.text("swordfish") == "swordfish"
    patterns.learn("swordfish")
    patterns.learn("swordfish")
    assert redactor.text("swordfish") == MASK
    patterns.forget("swordfish")
    assert redactor.text("swordfish") == MASK
    patterns.forget("swordfish")
    patterns.forget("swordfish")
    assert redactor.text("swordfish") == "swordfish"


def test_a_secret_too_short_to_be_removed_is_refused_and_none_is_nothing() -> None:
    patterns = SecretPatterns()
    patterns.learn("")
    with pytest.raises(Invalid):
        patterns.learn("abc")
    assert "swordfish" not in repr(SecretPatterns(["swordfish"]))


def test_a_hostile_text_takes_linear_time() -> None:
    for text in ("a" * 300_000, "%" * 300_000, "eyJ" * 100_000, "\\" * 300_000, "bearer " * 40_000):
        REDACTOR.text(text)


class TestLogs:
    def lines(self, log: Callable[[logging.Logger], None]) -> str:
        out = StringIO()
        handler = logging.StreamHandler(out)
        handler.setFormatter(
            logging.Formatter("%(levelname)s %(message)s %(extra)s", defaults={"extra": ""})
        )
        handler.addFilter(RedactingFilter(REDACTOR))
        logger = logging.Logger("test")  # noqa: LOG001 -- one that only this test knows
        logger.addHandler(handler)
        log(logger)
        return out.getvalue()

    @pytest.mark.requirement("003/secrets/audit-events-logs")
    def test_secrets_in_message_arguments_extras_and_tracebacks_are_masked(self) -> None:
        secret = SECRETS[0]

        def log(logger: logging.Logger) -> None:
            logger.info("said %s", secret)
            logger.info("plain", extra={"extra": {"note": secret}})
            try:
                raise ValueError(secret)
            except ValueError:
                logger.exception("failed")
            logger.info("stack", stack_info=True)

        text = self.lines(log)
        assert secret not in text
        assert f"said {MASK}" in text
        assert "ValueError" in text
        assert text.count("\n") > 6

    def test_a_line_that_cannot_be_formatted_is_replaced(self) -> None:
        text = self.lines(lambda logger: logger.info("%d %d", SECRETS[0]))
        assert UNCHECKED in text
        assert SECRETS[0] not in text


@pytest.mark.parametrize(
    ("begins", "ends"), [("Cookie: ", "\n"), ('password: "', '"\n'), ("token = 'a", "' b\n")]
)
def test_a_secret_with_spaces_in_it_is_hidden_to_its_end_however_long_it_is(
    begins: str, ends: str
) -> None:
    stream = BLIND.stream()
    shown = stream.feed(begins)
    for _ in range(20):
        shown += stream.feed("some; words of it " * 400)
    shown += stream.feed(f"hunter2; more{ends}") + stream.feed("shown\n") + stream.close()
    assert "hunter2" not in shown
    assert "words" not in shown
    assert shown.endswith("shown\n")


def test_a_password_after_a_flag_after_a_nul_is_hidden_wherever_the_pieces_are_split() -> None:
    text = "x\0-u me:hunter2 y\n"
    for cut in range(len(text)):
        stream = BLIND.stream()
        shown = stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.close()
        assert shown == f"x\0-u me:{MASK} y\n"


def test_a_secret_whose_bytes_are_escaped_one_by_one_is_found() -> None:
    secret = "pässwörter-geheim"
    redactor = SecretPatterns([secret]).redactor()
    assert redactor.text(f"sent {secret.encode()!r}.") == f"sent b'{MASK}'."


def test_more_known_secrets_than_the_search_has_memory_for_are_searched_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patterns_re2, "SEARCH_MEMORY", 8 << 20)
    known = make_secrets(4000)
    redactor = SecretPatterns(known).redactor()
    assert redactor.text("nothing to hide") == "nothing to hide"
    assert redactor.text(f"it is {known[1234]}, then") == f"it is {MASK}, then"


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_known_secret_in_wrapped_base64_is_not_shown_however_small_its_pieces(size: int) -> None:
    secret = "for the butler and nobody else 7c41a90be2"
    for lead in (0, 3, 7, 30, 44, 57, 71):
        stream = SecretPatterns([secret]).known_stream()
        wrapped = base64.encodebytes(f"{'x' * lead}{secret} and more of it".encode() * 2).decode()
        text = f"it came as\n{wrapped}, I think"
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        shown = "".join([*map(stream.feed, pieces), stream.close()])
        assert (shown[:11], shown[-9:]) == ("it came as\n", ", I think"), lead
        for form in forms(secret):
            assert form not in shown.replace("\n", ""), lead
        assert shown.count(MASK) == 2, lead
