"""The shape of a policy file: its JSON Schema, and what a document has wrong by it.

An `errorMessage` of the schema is the text of its error; editors know the keyword, too.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

EMPTY: Final = "is empty; say `match: any` if you mean every call"
NO_REASON: Final = "needs a reason: people will read it"
_SECTIONS: Final = frozenset({"rules", "egress"})


def schema_text() -> str:
    """The schema as it ships, for editors."""
    return resources.files("toolgate.policy").joinpath("policy.schema.json").read_text("utf-8")


@cache
def _validator() -> Any:
    return Draft202012Validator(json.loads(schema_text()))


def shape_problems(document: Any) -> list[str]:
    """Everything that the schema refuses, each with its place."""
    if not isinstance(document, dict):
        return ["the document is not a mapping"]
    found = _validator().iter_errors(document)
    return [problem for error in found for problem in _problems(error, document)]


def _problems(error: Any, document: Any) -> Iterator[str]:
    path, schema = tuple(error.absolute_path), error.schema
    match error.validator:
        case "additionalProperties":
            known = ", ".join(schema["properties"])
            for name in error.instance:
                if name not in schema["properties"]:
                    yield f"{_place((*path, name), document)}: unknown key (known: {known})"
        case "required":
            for name in schema["required"]:
                if name not in error.instance and name in error.message.partition(" ")[0]:
                    yield _missing((*path, name), schema["properties"][name], document)
        case "minProperties":
            yield f"{_place(path, document)}: {EMPTY}"
        case "maxItems":
            yield f"{_place(path, document)}: more than {schema['maxItems']}"
        case _ if isinstance(error.instance, str) and "propertyNames" in error.absolute_schema_path:
            yield f"{_place((*path, error.instance), document)}: {schema['errorMessage']}"
        case _:
            yield f"{_place(path, document)}: {schema.get('errorMessage', error.message)}"


def _missing(path: Sequence[Any], wanted: Any, document: Any) -> str:
    if path[-1] == "reason":
        return f"{_place(path[:-1], document)}: {NO_REASON}"
    while "$ref" in wanted:
        wanted = _validator().schema["$defs"][wanted["$ref"].rpartition("/")[2]]
    return f"{_place(path, document)}: {wanted['errorMessage']}"


def _place(path: Sequence[Any], document: Any) -> str:
    """`rules[0] (the-id).match.url`; a problem of the id itself does not name it."""
    spot = ""
    for depth, step in enumerate(path):
        if isinstance(step, int):
            spot += f"[{step}]"
            if depth == 1 and path[0] in _SECTIONS and path[2:3] != ("id",):
                entry = document[path[0]][step]
                named = entry.get("id") if isinstance(entry, dict) else None
                spot += f" ({named})" if path[0] == "rules" and isinstance(named, str) else ""
        else:
            spot += f".{step}" if spot else str(step)
    return spot
