"""Cron lines: minute, hour, day of month, month, day of week, in UTC; and when one is next due.

`*`, lists, ranges and steps; names of months and days; `@hourly` and its like; `@every 30s`. As in
cron, where both days are restricted either one is enough.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from toolgate.core.errors import Invalid

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS: Final = {name: n for n, name in enumerate(
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
)}  # fmt: skip
DAYS: Final = {name: n for n, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_EVERY: Final = re.compile(r"@every (?P<count>[1-9][0-9]{0,5})(?P<unit>s|m|h)")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000}
LOOK_AHEAD_DAYS: Final = 366 * 8  # the 29th of February can be eight years away


@dataclass(frozen=True, slots=True)
class Every:
    ms: int

    def next_after(self, now: int) -> int | None:
        return now + self.ms


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool  # both kinds of day are restricted: one is enough

    def next_after(self, now: int) -> int | None:
        """The first due minute after `now` (Unix ms); None where there never is one."""
        start = datetime.fromtimestamp(now // 1000, UTC).replace(second=0, microsecond=0)
        moment = start + timedelta(minutes=1)
        for _ in range(LOOK_AHEAD_DAYS):
            if self._on(moment):
                found = self._within_day(moment)
                if found is not None:
                    return int(found.timestamp()) * 1000
            moment = (moment + timedelta(days=1)).replace(hour=0, minute=0)
        return None

    def _on(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_week if self.either_day else by_date and by_week

    def _within_day(self, start: datetime) -> datetime | None:
        for hour in sorted(hour for hour in self.hours if hour >= start.hour):
            first = start.minute if hour == start.hour else 0
            later = [minute for minute in self.minutes if minute >= first]
            if later:
                return start.replace(hour=hour, minute=min(later))
        return None


Schedule = Cron | Every


def parse(line: str) -> Schedule:
    """Raises Invalid with what is wrong."""
    text = line.strip().lower()
    every = _EVERY.fullmatch(text)
    if every:
        return Every(int(every["count"]) * _UNIT_MS[every["unit"]])
    fields = MACROS.get(text, text).split()
    if len(fields) != 5:
        raise Invalid(f"{line!r} is no cron line: it has five fields, or is @every <n>s|m|h")
    minutes, hours, days, months, weekdays = fields
    return Cron(
        minutes=_field(minutes, 0, 59, {}),
        hours=_field(hours, 0, 23, {}),
        days=_field(days, 1, 31, {}),
        months=_field(months, 1, 12, MONTHS),
        weekdays=frozenset(day % 7 for day in _field(weekdays, 0, 7, DAYS)),
        either_day=not days.startswith("*") and not weekdays.startswith("*"),
    )


def _field(text: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and (not step.isdecimal() or int(step) < 1):
            raise Invalid(f"{part!r} has no step")
        if span == "*":
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _value(begin, low, high, names)
            last = _value(end, low, high, names) if dash else (high if slash else first)
        if last < first:
            raise Invalid(f"{part!r} ends before it begins")
        values.update(range(first, last + 1, int(step) if slash else 1))
    return frozenset(values)


def _value(text: str, low: int, high: int, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
        raise Invalid(f"{text!r} is not from {low} to {high}")
    return int(text)
