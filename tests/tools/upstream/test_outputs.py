"""What an MCP server says of a call, cut to the size there is room for."""

from typing import Any

import msgspec
import pytest

from toolgate.tools.upstream.outputs import MAX_OUTPUT, Result, output_of

LARGE = "x" * (2 * MAX_OUTPUT)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "resource", "resource": {"uri": "file:///a", "text": LARGE}},
        {"type": "image", "data": LARGE, "mimeType": "image/png"},
        {"type": "text", "text": "", "_meta": {"all": [LARGE]}},
    ],
)
def test_a_part_is_cut_wherever_its_size_is(part: dict[str, Any]) -> None:
    output = output_of(Result(content=[part, {"type": "text", "text": "small"}]))
    assert output.truncated
    assert isinstance(output.data, dict)
    assert output.data["content"] == [{"type": "text", "text": "small"}]


def test_many_parts_are_cut_though_each_is_nearly_nothing() -> None:
    output = output_of(Result(content=[{"n": 1}] * MAX_OUTPUT))
    assert output.truncated
    assert len(msgspec.json.encode(output.data)) < 2 * MAX_OUTPUT


def test_what_there_is_room_for_is_whole() -> None:
    part = {"type": "resource", "resource": {"uri": "file:///a", "text": "x" * 1000}}
    output = output_of(Result(content=[part]))
    assert not output.truncated
    assert isinstance(output.data, dict)
    assert output.data["content"] == [part]
