"""Whatever a schema says, a check of it ends, and in sentences."""

from typing import Any

import pytest

from toolgate.core.json_schema import schema_errors

DOUBLING: dict[str, Any] = {
    f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(40)
} | {"d40": {"type": "string"}}


def test_what_does_not_fit_is_said_with_its_place() -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "pattern": "^[a-z]+$"}},
        "patternProperties": {"^n_": {"type": "integer"}},
        "required": ["title"],
    }
    assert schema_errors({"title": "gate", "n_1": 1, "other": "x"}, schema) == []
    [title, number] = sorted(schema_errors({"title": "Gate", "n_1": "x"}, schema))
    assert title.startswith("$.n_1: ") or number.startswith("$.n_1: ")
    assert len(schema_errors({}, schema)) == 1


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("a" * 5000 + "b", {"pattern": "^(a+)+$"}),
        ({"a" * 5000 + "b": 1}, {"patternProperties": {"(a|aa)+$": False}, "minProperties": 2}),
        ("x", {"pattern": "(?=x)y"}),
        ("x", {"$defs": DOUBLING, "$ref": "#/$defs/d0"}),
        (1, {"$ref": "#"}),
        (1, {"$ref": "#/nowhere"}),
        (1, {"$ref": "https://example.com/schema"}),
        (1, {"$dynamicRef": "#nowhere"}),
        (float("inf"), {"multipleOf": 0.1}),
        (1, {"type": "nothing"}),
        (1, {"description": "x" * 70_000}),
    ],
)
def test_a_schema_that_cannot_be_applied_is_said_to_be_so(value: Any, schema: Any) -> None:
    assert len(schema_errors(value, schema)) == 1
