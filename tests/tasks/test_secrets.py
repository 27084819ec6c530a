"""A run's secrets are taken out of what leaves it, in whatever form they come along."""

import time

import pytest

from toolgate.secrets.redaction import MASK as REDACTED
from toolgate.tasks.secrets import Scrubber


@pytest.mark.requirement("004/sessions/credentials-nowhere")
@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("pass*word!", "pass*word%21"),  # as a form sends it
        ("tilde~ &more", "tilde%7E+%26more"),
        ("p(w)#1 x", "p(w)%231%20x"),  # encodeURIComponent
        ("a/b?c d", "a/b?c%20d"),  # encodeURI
        ("semi;colon@é", "semi%3bcolon%40%c3%a9"),  # small letters, as some servers write it
        ('quo"te\\é', 'quo\\"te\\\\\\u00e9'),
    ],
)
async def test_a_secret_is_removed_however_its_letters_are_written(secret: str, shown: str) -> None:
    text = Scrubber([secret]).text(f"http://host/?password={shown}&next=/")
    assert text == f"http://host/?password={REDACTED}&next=/"


async def test_of_two_secrets_that_begin_alike_the_longer_is_removed_whole() -> None:
    assert Scrubber(["ada", "ada-lovelace"]).text("ada and ada-lovelace") == (
        f"{REDACTED} and {REDACTED}"
    )


async def test_secrets_without_number_or_end_hold_nobody_up() -> None:
    many = [f"{number:040x}" for number in range(1_000)]
    page = "The quick brown fox jumps over the lazy dog. 0123456789abcdef " * 4_000
    began = time.process_time()
    scrubber = Scrubber([*many, "x" * 100_000])
    assert scrubber.text(f"{page}{many[7]}&{'x' * 100_000}") == f"{page}{REDACTED}&{REDACTED}"
    assert time.process_time() - began < 5
