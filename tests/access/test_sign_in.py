"""Sessions of the console: what opens one, what a cookie proves, and what ends it."""

import pytest

from toolgate.access.sign_in import (
    CODE_MS,
    ENDED,
    FAILURES_A_MINUTE,
    SESSION_MS,
    SignIn,
    TooManyAttempts,
)
from toolgate.core.errors import Refused
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> MemoryJournal:
    return MemoryJournal(clock=clock, bus=LocalBus())


def make(clock: FakeClock, journal: MemoryJournal, token: str = "the token") -> SignIn:
    return SignIn(token, clock, journal)


def test_the_operators_token_opens_a_session_and_another_does_not(
    clock: FakeClock, journal: MemoryJournal
) -> None:
    sign_in = make(clock, journal)
    assert sign_in.is_open(sign_in.open(token="the token"))
    with pytest.raises(Refused):
        sign_in.open(token="another")
    with pytest.raises(Refused):
        sign_in.open()


def test_a_code_opens_one_session_and_no_more(clock: FakeClock, journal: MemoryJournal) -> None:
    sign_in = make(clock, journal)
    code = sign_in.new_code()
    assert sign_in.is_open(sign_in.open(code=code))
    with pytest.raises(Refused):
        sign_in.open(code=code)


def test_a_code_is_too_old_after_an_hour(clock: FakeClock, journal: MemoryJournal) -> None:
    sign_in = make(clock, journal)
    code = sign_in.new_code()
    clock.advance(CODE_MS + 1)
    with pytest.raises(Refused):
        sign_in.open(code=code)


def test_a_session_survives_a_restart_and_ends_with_the_token_or_its_time(
    clock: FakeClock, journal: MemoryJournal
) -> None:
    cookie = make(clock, journal).open(token="the token")
    assert make(clock, journal).is_open(cookie)
    assert not make(clock, journal, token="a new token").is_open(cookie)
    clock.advance(SESSION_MS + 1)
    assert not make(clock, journal).is_open(cookie)


def test_a_cookie_that_was_touched_opens_nothing(clock: FakeClock, journal: MemoryJournal) -> None:
    sign_in = make(clock, journal)
    cookie = sign_in.open(token="the token")
    expires, _, rest = cookie.partition(".")
    assert not sign_in.is_open(f"{int(expires) + 1}.{rest}")
    assert not sign_in.is_open(cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))
    assert not sign_in.is_open("")
    assert not sign_in.is_open("é..")


async def test_a_session_that_was_ended_stays_ended_after_a_restart(
    clock: FakeClock, journal: MemoryJournal
) -> None:
    sign_in = make(clock, journal)
    cookie, other = sign_in.open(token="the token"), sign_in.open(token="the token")
    await sign_in.end(cookie)
    assert not sign_in.is_open(cookie)
    again = make(clock, journal)
    await again.load()
    assert not again.is_open(cookie)
    assert again.is_open(other)


def test_whoever_guesses_has_to_wait(clock: FakeClock, journal: MemoryJournal) -> None:
    sign_in = make(clock, journal)
    for _ in range(FAILURES_A_MINUTE):
        with pytest.raises(Refused):
            sign_in.open(token="a guess")
    with pytest.raises(TooManyAttempts):
        sign_in.open(token="the token")
    clock.advance(60_001)
    assert sign_in.open(token="the token")


def test_whoever_guesses_does_not_lock_the_operator_out(
    clock: FakeClock, journal: MemoryJournal
) -> None:
    sign_in = make(clock, journal)
    code = sign_in.new_code()
    for _ in range(FAILURES_A_MINUTE):
        with pytest.raises(Refused):
            sign_in.open(token="a guess", by="192.0.2.1")
    with pytest.raises(TooManyAttempts):
        sign_in.open(token="a guess", by="192.0.2.1")
    assert sign_in.open(token="the token", by="127.0.0.1")
    assert sign_in.open(code=code, by="192.0.2.1")  # nobody guesses a code


async def test_a_session_that_was_ended_on_two_nodes_stays_ended(
    clock: FakeClock, journal: MemoryJournal
) -> None:
    here, there = make(clock, journal), make(clock, journal)
    cookie = here.open(token="the token")
    await here.end(cookie)
    await there.end(cookie)
    assert not here.is_open(cookie)
    assert not there.is_open(cookie)
    clock.advance(SESSION_MS + 1)
    await make(clock, journal).load()
    assert await journal.scan(ENDED) == []
