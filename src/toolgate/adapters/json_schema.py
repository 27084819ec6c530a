"""Checks values against a JSON Schema that somebody gave, within a bound on its size."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

MAX_SCHEMA: Final = 65_536
MAX_TOLD: Final = 10


def schema_errors(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """What is wrong with the value, or with the schema; empty where nothing is."""
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        return [f"the schema is larger than {MAX_SCHEMA} bytes"]
    # Comes with the MCP SDK, and is needed by few tasks.
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # noqa: PLC0415
    from jsonschema.exceptions import (  # type: ignore[import-untyped]  # noqa: PLC0415
        SchemaError,
    )
    from referencing import Registry  # noqa: PLC0415

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as wrong:
        return [f"the schema is not one: {wrong.message}"]
    validator = Draft202012Validator(schema, registry=Registry())  # fetches nothing
    found = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.path)))
    return [f"{error.json_path}: {error.message[:200]}" for error in found[:MAX_TOLD]]
