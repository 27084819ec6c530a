"""Cron lines: what they mean, and which are none."""

from datetime import UTC, datetime

import pytest

from toolgate.core.errors import Invalid
from toolgate.schedules.cron import parse

START = int(datetime(2024, 1, 31, 23, 59, 30, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("* * * * *", "2024-02-01 00:00"),
        ("*/15 * * * *", "2024-02-01 00:00"),
        ("5,10 3 * * *", "2024-02-01 03:05"),
        ("0 9-17/4 * * *", "2024-02-01 09:00"),
        ("0 0 29 2 *", "2024-02-29 00:00"),
        ("0 0 1 jan *", "2025-01-01 00:00"),
        ("30 8 * * mon", "2024-02-05 08:30"),
        ("0 0 * * 7", "2024-02-04 00:00"),
        ("0 0 13 * fri", "2024-02-02 00:00"),
        ("@hourly", "2024-02-01 00:00"),
        ("@daily", "2024-02-01 00:00"),
        ("@weekly", "2024-02-04 00:00"),
        ("@monthly", "2024-02-01 00:00"),
        ("@yearly", "2025-01-01 00:00"),
        ("0 0 31 12/1 *", "2024-12-31 00:00"),
    ],
)
def test_the_next_time_of_a_line(line: str, expected: str) -> None:
    due = parse(line).next_after(START)
    assert due is not None
    assert f"{datetime.fromtimestamp(due / 1000, UTC):%Y-%m-%d %H:%M}" == expected


def test_every_so_often() -> None:
    assert parse("@every 30s").next_after(START) == START + 30_000
    assert parse("@every 2h").next_after(START) == START + 7_200_000


def test_a_day_that_never_comes_is_never_due() -> None:
    assert parse("0 0 30 2 *").next_after(START) is None


@pytest.mark.parametrize(
    "line",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *",
     "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "1,,2 * * * *", "@every", "@every 0s",
     "@sometimes", "-1 * * * *", "٣ * * * *"],
)  # fmt: skip
def test_what_is_no_cron_line_is_invalid(line: str) -> None:
    with pytest.raises(Invalid):
        parse(line)
