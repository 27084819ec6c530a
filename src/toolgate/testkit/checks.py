"""Checks of one seed against someone's end: what a check is, how checks run, what they find.

This room is written from the seeds alone. It imports nothing else of Toolgate, so that it can tell
when both of our ends misread a seed in the same way.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import aiohttp

P = TypeVar("P")
J = TypeVar("J")
Judge = Callable[[P], Awaitable[None]]

LONGEST_S: Final = 60.0  # of one check
QUOTED: Final = 300  # characters of a peer's answer in a finding
NETWORK: Final = (aiohttp.ClientError, OSError, TimeoutError, EOFError)


class DoesNotHold(Exception):
    """The end under test does otherwise than the seed says."""


class NotChecked(Exception):
    """The check needs something that was not given, or that this end does not have."""


class Unreachable(Exception):
    """Nobody answers at the address under test."""


@dataclass(frozen=True, slots=True)
class SeedCheck(Generic[P]):
    name: str
    seed: str
    place: str  # in the seed: `§4.1`, or a heading
    quote: str  # the seed's own words
    holds: str  # what holds if the check passes
    judge: Judge[P]


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    seed: str
    place: str
    quote: str
    holds: str
    result: str  # ok | no | skipped
    detail: str = ""


@dataclass(slots=True)
class Kit(Generic[P]):
    """The checks of one kind of end, in the order in which they run."""

    seed: str
    checks: list[SeedCheck[P]] = field(default_factory=list)

    def check(self, place: str, quote: str, holds: str) -> Callable[[Judge[P]], Judge[P]]:
        def add(judge: Judge[P]) -> Judge[P]:
            name = getattr(judge, "__name__", "")
            self.checks.append(SeedCheck(name, self.seed, place, quote, holds, judge))
            return judge

        return add

    async def run(self, peer: P, done: Callable[[int, int], None]) -> list[CheckResult]:
        """Raises Unreachable if the first check that connects cannot."""
        found: list[CheckResult] = []
        for number, check in enumerate(self.checks, 1):
            result, detail = await _judged(check, peer, is_first=number == 1)
            found.append(
                CheckResult(
                    check.name, check.seed, check.place, check.quote, check.holds, result, detail
                )
            )
            done(number, len(self.checks))
        return found


async def _judged(check: SeedCheck[P], peer: P, *, is_first: bool) -> tuple[str, str]:
    try:
        async with asyncio.timeout(LONGEST_S):
            await check.judge(peer)
    except NotChecked as skipped:
        return "skipped", str(skipped)
    except DoesNotHold as fails:
        return "no", str(fails)
    except TimeoutError:
        return "no", f"no answer within {LONGEST_S:g} s"
    except (aiohttp.ClientConnectorError, ConnectionError, FileNotFoundError) as silent:
        if is_first:
            raise Unreachable(str(silent)) from silent
        return "no", f"it does not answer any more: {silent}"
    except (LookupError, TypeError, ValueError, AttributeError) as odd:
        return "no", f"an answer has another form than the seed's: {type(odd).__name__}: {odd}"
    except NETWORK as broken:
        return "no", f"{type(broken).__name__}: {broken}"
    return "ok", ""


def need(holds: object, otherwise: str) -> None:
    if not holds:
        raise DoesNotHold(otherwise)


def member(value: Any, name: str, kind: type[J], *, of: str = "the answer") -> J:
    """A member of a JSON object, of this type; `int` is no `bool`."""
    if not isinstance(value, dict):
        raise DoesNotHold(f"{of} is no object: {quoted(value)}")
    found = value.get(name)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise DoesNotHold(f"`{name}` of {of} is not of type {kind.__name__}: {quoted(found)}")
    return found


def quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]  # their names in small letters
    text: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.text)
        except ValueError:
            raise DoesNotHold(
                f"the answer ({self.status}) is no JSON: {quoted(self.text)}"
            ) from None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


async def ask(
    http: aiohttp.ClientSession, method: str, url: str, body: Any = None, **headers: str
) -> HttpAnswer:
    """One request; a `_` in a header's name stands for `-`. A body is sent as JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items() if value}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        named = {"content-type": "application/json", **named}
    async with http.request(method, url, data=data, headers=named, allow_redirects=False) as answer:
        received = {name.lower(): value for name, value in answer.headers.items()}
        return HttpAnswer(answer.status, received, await answer.text(errors="replace"))


def read_secret(path: str) -> str:
    """The token in a file; empty without a path."""
    return Path(path).read_text(encoding="utf-8").strip() if path else ""
