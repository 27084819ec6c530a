"""What each message means in each state of a connection: no socket, no task."""

import json
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.people import keyed
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import CloseCode, ConnectionState, ErrorCode
from toolgate.surfaces.ingress.conversation import Close, Conversation, Forward, Open, Send

requirement = pytest.mark.requirement
NOW = 1_700_000_000_000
HELLO = b'{"type":"hello","ts":1,"user_id":"u1","api_key":"right"}'
INVOKE = (
    b'{"type":"agent_invoke","ts":1,"request_id":"q","agent_id":"echo",'
    b'"message":{"role":"user","content":"x"}}'
)
CANCEL = b'{"type":"cancel_run","ts":1,"run_id":"run_1","request_id":"q"}'


def active() -> Conversation:
    conversation = Conversation(keyed("right").client)
    conversation.receive(HELLO, now=NOW)
    conversation.opened("sess_1", resumed=False, seq=0, epoch="ep", now=NOW)
    return conversation


def error_of(effects: list[Any]) -> wire.Error:
    assert isinstance(effects[0], Send)
    message = effects[0].message
    assert isinstance(message, wire.Error)
    return message


@requirement(
    "001/connection/created",
    "001/connection/authenticating",
    "001/connection/active",
    "001/connection/closed",
    "001/connection/state-names",
)
def test_a_connection_goes_from_created_over_authenticating_to_active() -> None:
    conversation = Conversation(keyed("right").client)
    states = [conversation.state]
    assert [type(one) for one in conversation.receive(HELLO, now=NOW)] == [Open]
    states.append(conversation.state)
    (ack,) = conversation.opened("sess_1", resumed=False, seq=0, epoch="ep", now=NOW)
    assert ack == Send(wire.HelloAck(ts=NOW, session_id="sess_1", resumed=False, seq=0, epoch="ep"))
    states.append(conversation.state)
    assert states == ["CREATED", "AUTHENTICATING", "ACTIVE"]
    assert list(ConnectionState) == [*states, "CLOSED"]


@requirement("001/handshake/hello-wrong-key", "001/connection/closed")
def test_a_wrong_key_is_told_and_closed() -> None:
    conversation = Conversation(keyed("other").client)
    effects = conversation.receive(HELLO, now=NOW)
    assert error_of(effects).code == ErrorCode.AUTH_FAILED
    assert effects[1:] == [Close(CloseCode.UNAUTHENTICATED, "auth_failed")]
    assert conversation.state is ConnectionState.CLOSED
    assert conversation.receive(HELLO, now=NOW) == []
    assert conversation.receive_binary(now=NOW) == []


def test_without_a_key_of_ours_any_key_will_do() -> None:
    assert [type(one) for one in Conversation(keyed("").client).receive(HELLO, now=NOW)] == [Open]


@requirement("001/handshake/before-hello")
@pytest.mark.parametrize("message", [INVOKE, CANCEL])
def test_before_hello_every_command_is_session_not_found(message: bytes) -> None:
    error = error_of(Conversation(keyed("").client).receive(message, now=NOW))
    assert (error.code, error.request_id) == (ErrorCode.SESSION_NOT_FOUND, "q")


def test_hello_is_said_once() -> None:
    assert error_of(active().receive(HELLO, now=NOW)).code == ErrorCode.INVALID_MESSAGE


def test_a_session_that_cannot_be_had_leaves_room_for_another_hello() -> None:
    conversation = Conversation(keyed("").client)
    conversation.receive(HELLO, now=NOW)
    conversation.refused(ErrorCode.SESSION_NOT_FOUND, "no", request_id="", now=NOW)
    assert [type(one) for one in conversation.receive(HELLO, now=NOW)] == [Open]


@requirement("001/handshake/hello-in-time")
def test_an_overdue_hello_closes_only_who_has_not_said_it() -> None:
    overdue = Close(CloseCode.UNAUTHENTICATED, "no hello in time")
    assert Conversation(keyed("").client).hello_overdue() == [overdue]
    assert active().hello_overdue() == []


@pytest.mark.parametrize("message", [INVOKE, CANCEL])
def test_commands_of_an_open_session_go_on(message: bytes) -> None:
    assert [type(one) for one in active().receive(message, now=NOW)] == [Forward]


@requirement("001/messages/binary-frame")
def test_binary_is_no_message() -> None:
    assert error_of(active().receive_binary(now=NOW)).code == ErrorCode.INVALID_MESSAGE


KNOWN: dict[str, dict[str, Any]] = {
    "agent_invoke": {
        "request_id": "q", "agent_id": "a", "message": {"role": "u", "content": "c"},
    },
    "tool_result": {"run_id": "r", "tool_call_id": "t", "ok": True},
    "approval_decision": {"run_id": "r", "approval_id": "a", "decision": "approve"},
    "cancel_run": {"run_id": "r"},
}  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """A message of ours with one member gone or of some other kind."""
    kind = draw(st.sampled_from(sorted(KNOWN)))
    message: dict[str, Any] = {"type": kind, "ts": 1, **KNOWN[kind]}
    member = draw(st.sampled_from(sorted(message)))
    if draw(st.booleans()):
        del message[member]
    else:
        message[member] = draw(json_values)
    return json.dumps(message).encode()


@st.composite
def cut_short(draw: st.DrawFn) -> bytes:
    whole = draw(st.sampled_from([HELLO, INVOKE, CANCEL]))
    at = draw(st.integers(0, len(whole) - 1))
    return whole[:at] + draw(st.binary(max_size=3))


garbage = (
    st.binary(max_size=200)
    | st.text(alphabet=string.printable).map(str.encode)
    | json_values.map(lambda value: json.dumps(value).encode())
    | nearly_right()
    | cut_short()
    | st.integers(1, 3000).map(lambda depth: b"[" * depth)
)


@requirement(
    "001/messages/bad-json",
    "001/messages/not-an-object",
    "001/messages/unknown-type",
    "001/messages/missing-field",
    "001/messages/wrong-type",
    "001/messages/invalid-utf8",
    "001/messages/connection-survives",
)
@given(garbage)
def test_a_malformed_frame_is_answered_and_the_next_good_one_is_served(text: bytes) -> None:
    assert_survives(text)


@requirement("001/messages/bad-json", "001/messages/connection-survives")
@given(st.randoms(use_true_random=False))
def test_10_000_damaged_frames_are_answered_and_the_next_good_one_is_served(
    chance: random.Random,
) -> None:
    for _ in range(250):
        frame = bytearray(chance.choice([HELLO, INVOKE, CANCEL]))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(frame))
            match chance.randrange(4):
                case 0:
                    frame[at] = chance.randrange(256)
                case 1:
                    del frame[at : at + chance.randint(1, 9)]
                case 2:
                    frame[at:at] = chance.choice(
                        [b'"', b"{", b"[", b"null", b"\xff", b"\\u", b"1e999"]
                    )
                case _:
                    frame = frame[:at] + frame[chance.randrange(len(frame)) :]
            if not frame:
                break
        assert_survives(bytes(frame))


def assert_survives(text: bytes) -> None:
    conversation = active()
    effects = conversation.receive(text, now=NOW)
    assert len(effects) == 1
    if isinstance(effects[0], Forward):
        return  # it happened to be right
    if isinstance(effects[0], Close):
        assert effects[0].code is CloseCode.NOT_UTF8
        with pytest.raises(UnicodeDecodeError):
            text.decode()
        return
    error = error_of(effects)
    assert error.code in {ErrorCode.INVALID_MESSAGE, ErrorCode.SESSION_NOT_FOUND}
    assert error.ts == NOW
    assert error.message
    wire.encode(error)
    assert conversation.state is ConnectionState.ACTIVE
    assert [type(one) for one in conversation.receive(INVOKE, now=NOW)] == [Forward]
