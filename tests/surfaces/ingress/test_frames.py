"""Session events as clients get them."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.contracts import ingress_v1 as wire
from toolgate.journal.journal import Event
from toolgate.runs.deliveries import DELTA, STATE, Delivery, frame, tool_update
from toolgate.surfaces.ingress.frames import (
    JOINED_BYTES,
    delivery_of,
    joined,
    message_of,
    single,
    snapshot_frame,
    source_of,
)


def event(seq: int, kind: str = DELTA, run: str = "run_1", text: str = "x") -> Event:
    members = {"run_id": run, "text": text} if kind == DELTA else {"run_id": run, "state": text}
    return Event(seq + 100, "session/s", seq, kind, 1000 + seq, json.dumps(members).encode(), run)


@pytest.mark.requirement("001/events/delta", "001/messages/event-id", "001/messages/seq-rises")
def test_an_event_gets_its_type_time_number_and_id() -> None:
    assert json.loads(frame(event(7))) == {
        "type": "delta", "ts": 1007, "seq": 7, "event_id": "ev_107", "run_id": "run_1", "text": "x",
    }  # fmt: skip
    assert isinstance(message_of(event(7)), wire.Delta)


def test_what_was_pushed_gets_a_time_and_number_of_ours() -> None:
    pushed = wire.State(ts=5, seq=9, event_id="theirs", run_id="r", state="X", detail={"a": 1})
    assert delivery_of(pushed) == Delivery(
        STATE, "r", {"run_id": "r", "state": "X", "detail": {"a": 1}}
    )


def test_a_snapshot_has_no_number() -> None:
    told = json.loads(snapshot_frame(Delivery(STATE, "r", {"run_id": "r", "state": "X"}), now=3))
    assert told == {"type": "state", "ts": 3, "run_id": "r", "state": "X"}


@pytest.mark.requirement(
    "001/resume/lagging-merged", "001/messages/seq-merged", "001/resume/never-dropped"
)
@given(
    st.lists(
        st.tuples(st.sampled_from([DELTA, DELTA, STATE]), st.sampled_from("ab"), st.text()),
        max_size=30,
    )
)
def test_joining_keeps_every_text_and_every_other_event_in_order(
    kinds: list[tuple[str, str, str]],
) -> None:
    events = [event(n, kind, run, text) for n, (kind, run, text) in enumerate(kinds, 1)]
    frames = [json.loads(data) for _, data in joined(events)]
    numbers = [number for number, _ in joined(events)]
    assert numbers == [one["seq"] for one in frames]
    reached = 0
    for one in frames:  # no gap, and what was joined says from where
        assert one.get("first_seq", one["seq"]) == reached + 1
        reached = one["seq"]
    assert reached == len(events)
    for run in "ab":
        said = "".join(text for kind, its, text in kinds if kind == DELTA and its == run)
        assert said == "".join(
            one["text"] for one in frames if one["type"] == DELTA and one["run_id"] == run
        )
    states = [json.loads(data) for _, data in single(events) if json.loads(data)["type"] == STATE]
    assert [one for one in frames if one["type"] == STATE] == states
    pairs = itertools.pairwise(frames)
    assert not any(
        a["type"] == b["type"] == DELTA and a["run_id"] == b["run_id"] for a, b in pairs
    ), "what could be joined was"


@pytest.mark.requirement("001/resume/lagging-merged")
def test_what_is_joined_stays_a_message_that_any_client_takes() -> None:
    texts = [str(n % 10) * 60_000 for n in range(20)] + ["x"] * 200
    frames = [data for _, data in joined(event(n, text=text) for n, text in enumerate(texts, 1))]
    assert "".join(json.loads(data)["text"] for data in frames) == "".join(texts)
    assert max(map(len, frames)) < 500_000
    assert len(frames) < 20
    assert json.loads(frames[-1])["seq"] == len(texts)


def update(seq: int, call: str = "tc_1", text: str = "x") -> Event:
    members = tool_update("run_1", call, text, at=f"at {seq}").members
    return Event(
        seq + 100, "session/s", seq, STATE, 1000 + seq, json.dumps(members).encode(), "run_1"
    )


@pytest.mark.requirement("001/resume/lagging-merged")
def test_updates_of_one_call_are_joined_for_a_reader_that_lags() -> None:
    events = [update(1, text="a"), update(2, text="b"), update(3, "tc_2"), update(4, text="c")]
    frames = [json.loads(data) for _, data in joined([*events, event(5, STATE)])]
    assert [one["seq"] for one in frames] == [2, 3, 4, 5]
    assert frames[0] == {
        "type": "state", "ts": 1002, "seq": 2, "first_seq": 1, "event_id": "ev_102",
        "run_id": "run_1", "state": "RUNNING",
        "detail": {"tool_call_id": "tc_1", "delta": "ab", "at": "at 2"},
    }  # fmt: skip
    assert [json.loads(data)["seq"] for _, data in single(events)] == [1, 2, 3, 4]


def test_a_joined_update_stays_of_a_size_that_clients_take() -> None:
    events = [update(number, text="x" * 100_000) for number in range(1, 7)]
    assert [len(data) < 2 * JOINED_BYTES for _, data in joined(events)] == [True] * 3


@pytest.mark.parametrize("more", [{"more": 1}, {"delta": 5}, {"at": None}])
def test_a_state_that_is_no_update_stands_alone(more: dict[str, object]) -> None:
    detail = {"tool_call_id": "tc_1", "delta": "x", "at": "", **more}
    data = json.dumps({"run_id": "run_1", "state": "RUNNING", "detail": detail}).encode()
    assert source_of(Event(1, "session/s", 1, STATE, 1, data, "run_1")) == ""
