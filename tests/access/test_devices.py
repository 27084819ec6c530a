"""Pairing requests and scopes, without any door."""

import pytest

from toolgate.access.devices import (
    CODE_ALPHABET,
    MAX_PENDING,
    PENDING_MS,
    Contact,
    Pending,
    Scope,
    TooManyPending,
    ask,
    code_of,
    named_session,
    session_of,
)
from toolgate.core.enums import CommandKind, Level
from toolgate.core.errors import Refused


def waiting(number: int, *, ip: str = "10.0.0.1") -> Pending:
    return Pending(f"d{number}", "AAAAAA", 0, PENDING_MS, f"{ip}{number}", "")


def test_a_request_is_made_once_and_ends_by_itself() -> None:
    first = ask(Contact("d", "10.0.0.1", "x" * 1000), [], now=0, chance=12345)
    assert (first.expires_at, len(first.user_agent)) == (PENDING_MS, 256)
    assert ask(Contact("d", "10.0.0.2"), [first], now=PENDING_MS - 1, chance=9) is first
    assert ask(Contact("d", "10.0.0.2"), [first], now=PENDING_MS, chance=9) is not first


@pytest.mark.requirement("002/pairing/pending-limited")
def test_no_more_wait_than_there_is_room_for() -> None:
    crowd = [waiting(number) for number in range(MAX_PENDING)]
    with pytest.raises(TooManyPending) as full:
        ask(Contact("one-more", "10.9.9.9"), crowd, now=1000, chance=1)
    assert full.value.retry_ms == PENDING_MS - 1000


def test_a_code_is_six_letters_that_no_one_mistakes() -> None:
    assert len(code_of(0)) == 6
    assert {code_of(n) for n in range(100)} != {code_of(0)}
    assert not set("IO01") & set(CODE_ALPHABET)


def test_a_scope_grants_tools_to_a_level_and_kinds_by_name() -> None:
    scope = Scope(Level.WRITE, system=True)
    assert scope.refusal(CommandKind.TOOL, Level.WRITE) == ""
    assert scope.refusal(CommandKind.TOOL, Level.SIGN)
    assert scope.refusal(CommandKind.SYSTEM, Level.WRITE) == ""
    assert scope.refusal(CommandKind.MCP, Level.READ)
    assert scope.refusal(CommandKind.AGENT, Level.READ)


def test_no_two_devices_can_name_the_same_session() -> None:
    names = ("a", "a:b", "a:b:c", "b:c", "service", "service:a", "a%3Ab", "a%", "b", "c", "")
    asked = [(device, name) for device in names if device for name in names]
    sessions = {session_of(device, name) for device, name in asked}
    assert len(sessions) == len(asked)
    for device, name in asked:
        assert named_session(device, session_of(device, name)) == name
        for other in names:
            if other and other != device:
                assert named_session(other, session_of(device, name)) == ""


def test_nobody_from_elsewhere_gets_a_key_of_theirs_under_a_code_that_is_anothers() -> None:
    plain = ask(Contact("phone", "10.0.0.1"), [], now=0, chance=1)
    keyed = ask(Contact("phone", "10.0.0.1", public_key="mine"), [plain], now=1, chance=2)
    assert (keyed.code, keyed.public_key) == (plain.code, "mine")
    assert ask(Contact("phone", "10.0.0.9", public_key="mine"), [keyed], now=2, chance=3) is keyed
    for waits, key in ((plain, "theirs"), (keyed, "theirs"), (keyed, "")):
        with pytest.raises(Refused):
            ask(Contact("phone", "10.0.0.9", public_key=key), [waits], now=2, chance=3)
    assert ask(Contact("phone", "10.0.0.9"), [plain], now=2, chance=3) is plain


def test_two_keys_from_one_address_do_not_share_a_code() -> None:
    """Behind one proxy all come from one address; on one machine too."""
    mine = Contact("phone", "10.0.0.1", public_key="mine")
    waits = ask(mine, [], now=0, chance=1)
    with pytest.raises(Refused):
        ask(Contact("phone", "10.0.0.1", public_key="theirs"), [waits], now=1, chance=2)
    assert ask(mine, [waits], now=2, chance=3) is waits
