"""How many bare tokens of vendors are found, and how many lines without one are touched."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.secrets.benign import library_lines, made_lines
from tests.secrets.vendors import RECOGNISABLE, RECORDED_AS_HEX, make
from toolgate.secrets.patterns import SecretPatterns

RECALL = 0.95  # at least, of all tokens; docs/security/secrets.md has the figures
TOUCHED = 0.005  # at most, of the lines without a token
REDACTOR = SecretPatterns().redactor()
PLACES = [
    "{}",
    "the old one was {} until May",
    "2026-11-18T20:30:10Z INFO sent {} to the other side",
    'print("{}")',
    "value: {}",
    "https://example.org/v1/{}/items?page=2",
    "- {} (the second of three)",
    '{{"id": 12, "note": "{}"}}',
    "+    x = f('{}')",
    "3 files changed, {}, 2 insertions",
]


def tokens(each: int) -> Iterator[tuple[str, str, str]]:
    """Vendor, token, and the token in a line."""
    chance = random.Random(20261118)
    for vendor, forms in RECOGNISABLE.items():
        for form in forms:
            for number in range(each):
                token = make(form, chance)
                yield vendor, token, PLACES[number % len(PLACES)].format(token)


def test_bare_tokens_of_vendors_are_found(record_property: Callable[[str, object], None]) -> None:
    found, made = defaultdict[str, int](int), defaultdict[str, int](int)
    for vendor, token, line in tokens(each=20):
        made[vendor] += 1
        found[vendor] += token[-12:] not in REDACTOR.text(line)
    recall = sum(found.values()) / sum(made.values())
    record_property("recall", recall)
    missed = {vendor: f"{found[vendor]} of {made[vendor]}" for vendor in made}
    weak = {vendor: missed[vendor] for vendor in made if found[vendor] < 0.7 * made[vendor]}
    assert len(made) >= 67
    assert recall >= RECALL, (recall, weak)
    assert weak == {}


def test_lines_without_a_token_are_left_alone(
    record_property: Callable[[str, object], None],
) -> None:
    lines = [*library_lines(200), *made_lines(random.Random(20261118), 10_000)]
    touched = [line for line in lines if REDACTOR.text(line) != line]
    record_property("touched", len(touched) / len(lines))
    assert len(lines) > 20_000
    assert len(touched) / len(lines) <= TOUCHED, touched[:20]


@pytest.mark.parametrize("form", RECORDED_AS_HEX)
def test_plain_hex_and_uuids_are_found_near_a_telling_name_only(form: str) -> None:
    chance = random.Random(7)
    for _ in range(50):
        token = make(form, chance)
        assert token in REDACTOR.text(f"checked {token} of it")
        assert token not in REDACTOR.text(f"DATADOG_API_KEY={token}")
        assert token not in REDACTOR.text(f"the secret is {token}, he said")
        assert token not in REDACTOR.text(f"api key {token}")
