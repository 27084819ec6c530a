"""Checks values against a JSON Schema that somebody gave, within a bound on its size and its work."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import re2  # type: ignore[import-untyped]

MAX_SCHEMA: Final = 65_536
MAX_TOLD: Final = 10
MAX_REFERENCES: Final = 10_000  # followed in one check; two to a level double with each level

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any]]


class Unusable(Exception):
    """The schema cannot be applied."""


def schema_errors(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """What is wrong with the value, or with the schema; empty where nothing is."""
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        return [f"the schema is larger than {MAX_SCHEMA} bytes"]
    # Imported late: it takes 50 ms, and few tasks need it.
    from jsonschema.exceptions import (  # type: ignore[import-untyped]  # noqa: PLC0415
        SchemaError,
    )
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        found = sorted(compiled(schema)(value), key=lambda error: list(map(str, error.path)))
    except SchemaError as wrong:
        return [f"the schema is not one: {wrong.message}"]
    except Unresolvable as wrong:
        return [f"the schema refers to what is not in it: {wrong.ref}"]
    except RecursionError:
        return ["the schema refers to itself without end"]
    except (Unusable, OverflowError) as wrong:
        return [f"the schema cannot be applied: {wrong}"]
    return [f"{error.json_path}: {error.message[:200]}" for error in found[:MAX_TOLD]]


def compiled(schema: Mapping[str, Any]) -> Callable[[Any], Iterator[Any]]:
    """What finds the errors of a value, for any number of values; SchemaError where it is no schema.

    While it looks for them it raises Unusable, Unresolvable, RecursionError, OverflowError.
    """
    from jsonschema import (  # type: ignore[import-untyped]  # noqa: PLC0415 -- as above
        Draft202012Validator,
        ValidationError,
        validators,
    )
    from referencing import Registry  # noqa: PLC0415

    followed = 0

    def counted(follow: Keyword) -> Keyword:
        def keyword(validator: Any, ref: Any, instance: Any, schema: Any) -> Iterator[Any]:
            nonlocal followed
            followed += 1
            if followed > MAX_REFERENCES:
                raise Unusable(f"it follows more than {MAX_REFERENCES} references")
            yield from follow(validator, ref, instance, schema)

        return keyword

    def pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not _is_in(instance, pattern):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    def properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[Any]:
        for pattern, inner in patterns.items() if isinstance(instance, dict) else ():
            for name, member in instance.items():
                if _is_in(name, pattern):
                    yield from validator.descend(member, inner, path=name, schema_path=pattern)

    Draft202012Validator.check_schema(schema)
    known = Draft202012Validator.VALIDATORS
    bounded = validators.extend(
        Draft202012Validator,
        {
            "$ref": counted(known["$ref"]),
            "$dynamicRef": counted(known["$dynamicRef"]),
            "pattern": pattern,
            "patternProperties": properties,
        },
    )
    validator = bounded(schema, registry=Registry())  # fetches nothing

    def errors(value: Any) -> Iterator[Any]:
        nonlocal followed
        followed = 0
        yield from validator.iter_errors(value)

    return errors


def _is_in(text: str, pattern: str) -> bool:
    """By RE2: Python's own `re` may take longer than anyone waits, and holds the process."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.search(pattern, text.encode("utf-8", "replace").decode(), options) is not None
    except re2.error as wrong:
        raise Unusable(f"the pattern {pattern[:100]!r} is not one of RE2's") from wrong
