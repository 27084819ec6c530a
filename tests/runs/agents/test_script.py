"""The agent that does what its message spells out: how a message is read."""

import time

import pytest

from toolgate.runs.agents.agent import AgentFailed, Call
from toolgate.runs.agents.script import pieces


def test_a_message_is_text_and_calls_in_their_order() -> None:
    script = 'first [[tool:a.b {"x": "]]"} \n ]] then [[tool:c]]'
    assert list(pieces(script)) == ["first ", Call("a.b", {"x": "]]"}), " then ", Call("c", {})]


@pytest.mark.parametrize("value", [r'"\ud800"', "NaN", "1e999", '"', "[" * 100_000])
def test_arguments_that_could_not_be_written_down_are_no_arguments(value: str) -> None:
    with pytest.raises(AgentFailed) as refused:
        list(pieces(f'[[tool:a {{"x": {value}}}]]'))
    assert refused.value.code == "invalid_script"


def test_a_long_script_is_read_in_a_time_that_grows_as_it_does() -> None:
    began = time.process_time()
    assert len(list(pieces("[[tool:a {}]]" * 70_000))) == 70_000
    assert time.process_time() - began < 1, "the whole process waits for it, each turn"
