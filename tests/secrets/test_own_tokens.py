"""The tokens that Toolgate makes say what they are, and a scanner can check them offline."""

import zlib

import pytest

from toolgate.secrets.own_tokens import ALPHABET, TokenKind, new_token
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import MASK

BLIND = SecretPatterns().redactor()


def crc_of(text: str) -> int:
    """The number that the last six characters of a token write in base 62."""
    value = 0
    for character in text[-6:]:
        value = value * 62 + ALPHABET.index(character)
    return value


@pytest.mark.parametrize("kind", TokenKind)
def test_a_token_has_its_prefix_32_random_bytes_and_the_crc_of_them(kind: TokenKind) -> None:
    token = new_token(kind)
    body = token.removeprefix(kind)
    assert body != token
    assert len(body) == 43 + 6
    assert crc_of(body) == zlib.crc32(body[:-6].encode())
    assert new_token(kind) != token


@pytest.mark.parametrize("kind", TokenKind)
@pytest.mark.parametrize("text", ["{}", "at /x/{}?a=b", '{{"a": "{}"}}', "a={};", "({}),", "{}\n"])
def test_a_token_that_nobody_has_learnt_is_known_by_its_form(kind: TokenKind, text: str) -> None:
    for _ in range(20):
        token = new_token(kind)
        assert BLIND.text(text.format(token)) == text.format(MASK)
