"""An approver sees everything but what the test has planted; the disk sees nothing of that either."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.calls import (
    HASH,
    KNOWN,
    PLAIN,
    RUN,
    TOKENS,
    Known,
    Piece,
    Token,
    cases,
    hidden,
    secrets_of,
    seen,
    written,
)
from toolgate.core.tools import JsonValue
from toolgate.secrets.approver_view import ApproverView, summary_of
from toolgate.secrets.patterns import SecretPatterns

PATTERNS = SecretPatterns({secret: name for name, secret in KNOWN.items()})
VIEW = ApproverView(PATTERNS)
# What may stand beside a secret, without becoming a part of it.
EDGE = st.sampled_from(
    [" ", "\n", "'", '"', ";", "$(", ")", "|", "&", "<", "\u200b ", ": ", "{", ","]
)
TEXTS = st.one_of(
    st.sampled_from(
        [*PLAIN[:24], HASH, RUN, "https://x.example/?token=", "-----BEGIN PRIVATE KEY-----\n",
         "Authorization: Bearer ", "cookie: a=b; c=d", "password=", "--token ", "-u me:", "sha256:",
         "/var/lib/docker/overlay2/", "feature/JIRA-1234", "2026-11-18T12:00:00Z", "%3B", "&amp;",
         "\\u0041", "secret: '", 'api_key="', "export ", "\u202e", "\u00a0", "\x1b[2J"]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cn", "Mn"]), max_size=12),
)  # fmt: skip
PLANTED = st.one_of(
    st.sampled_from([Known(name) for name in KNOWN]),
    st.sampled_from([Token(text) for text in TOKENS]),
)


@st.composite
def texts(draw: st.DrawFn) -> list[Piece]:
    pieces: list[Piece] = [draw(TEXTS)]
    for _ in range(draw(st.integers(0, 4))):
        pieces += [draw(EDGE), draw(PLANTED), draw(EDGE), draw(TEXTS)]
    return pieces


@given(texts())
def test_all_but_the_planted_secrets_is_seen_and_none_of_them_is_stored(
    pieces: list[Piece],
) -> None:
    given_args: dict[str, JsonValue] = {
        "command": written(pieces),
        "more": [{"deep": written(pieces)}, 7, None, True],
    }
    shown = VIEW.show(given_args)
    assert shown.args == {"command": seen(pieces), "more": [{"deep": seen(pieces)}, 7, None, True]}
    assert shown.hidden == 2 * hidden(pieces)
    revealed = VIEW.show(given_args, reveal=True)
    assert revealed.args["command"] == seen(pieces, revealed=True)
    stored = json.dumps(VIEW.store(given_args), ensure_ascii=False)
    assert [secret for secret in secrets_of(pieces) if secret in stored] == []


def test_two_calls_that_differ_never_look_alike() -> None:
    texts = [written(pieces) for pieces in cases()]
    texts += [
        "<U+200B>",
        "\u200b",
        "[secret: API_KEY]",
        KNOWN["API_KEY"],
        "[hidden: 40 characters]",
    ]
    views = [summary_of("shell", VIEW.show({"command": text}).args) for text in texts]
    hides = [VIEW.show({"command": text}).hidden for text in texts]
    decided_on_sight = [
        view for view, hides_some in zip(views, hides, strict=True) if not hides_some
    ]
    assert len(set(decided_on_sight)) == len(decided_on_sight)
    names = VIEW.show({TOKENS[0]: 1, TOKENS[0][:-1] + "x": 2})
    assert len(names.args) == 2


def test_the_stored_copy_masks_values_and_keeps_commands() -> None:
    for text, stored in (
        ("password=hunter2", "password=[redacted]"),
        ("true authorization: x ; touch PWN", "true authorization: [redacted] ; touch PWN"),
        ('export api_key="$(cmd)"', 'export api_key="$(cmd)"'),
        ("cookie: a=b; c=d", "cookie: [redacted]; c=[redacted]"),
        ("curl https://u:hunter2@x/?token=abc&b=1", "curl https://[redacted]@x/?token=[redacted]&b=1"),
        ("--password hunter2 ; touch PWN", "--password [redacted] ; touch PWN"),
        (f"-----BEGIN PRIVATE KEY-----\n{RUN}\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\nab==\n-----END"
         " PRIVATE KEY-----", f"-----BEGIN PRIVATE KEY-----\n{RUN}\n[redacted]\n-----END"
         " PRIVATE KEY-----"),
    ):  # fmt: skip
        assert VIEW.store({"command": text}) == {"command": stored}
    assert VIEW.store(
        {"password": "hunter2; touch PWN", "pin": 1234, "headers": [["Cookie", "a"]]}
    ) == {
        "password": "[redacted]; touch PWN",
        "pin": "[redacted]",
        "headers": [["Cookie", "[redacted]"]],
    }


def test_a_known_secret_in_an_encoding_is_counted_and_two_names_are_never_the_same() -> None:
    encoded = KNOWN["API_KEY"].encode().hex()
    shown = VIEW.show({"command": f"echo {encoded} | xxd -r -p"})
    assert shown.args == {"command": f"echo [hidden: {len(encoded)} characters] | xxd -r -p"}
    assert shown.hidden == len(encoded)
    patterns = SecretPatterns()
    patterns.learn("the first of them", "target far")
    patterns.learn("the second of them", "target far")
    args = {"command": "the first of them, the second of them"}
    expected = {"command": "[secret: target far], [secret: target far 2]"}
    assert ApproverView(patterns).show(args).args == expected
