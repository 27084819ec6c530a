"""The result of a call of an MCP server, cut to a largest size."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from toolgate.core.tools import JsonValue, ToolOutput

MAX_TEXT: Final = 256 * 1024  # characters of one text
MAX_OUTPUT: Final = 512 * 1024  # characters of all that a call brought


class Result(msgspec.Struct, frozen=True, rename="camel"):
    """The protocol's CallToolResult; whatever is in it is passed on as it is."""

    content: list[dict[str, Any]]
    structured_content: Any = msgspec.UNSET
    is_error: bool = False
    result_type: str = "complete"


decode_result: Final = msgspec.json.Decoder(Result).decode


def output_of(result: Result) -> ToolOutput:
    """The result as JSON, no larger than there is room for."""
    content, cut = _capped(result.content)
    data: dict[str, JsonValue] = {"content": content, "isError": result.is_error}
    structured = result.structured_content
    if structured is not msgspec.UNSET and structured is not None:
        if len(str(structured)) <= MAX_OUTPUT:
            data["structuredContent"] = structured
        else:
            cut = True
    if cut:
        data["truncated"] = True
    texts = "\n".join([str(part["text"]) for part in content if "text" in part])
    return ToolOutput(
        exit_code=1 if result.is_error else 0,
        stdout="" if result.is_error else texts,
        stderr=texts if result.is_error else "",
        data=data,
        truncated=cut,
    )


def _capped(parts: Iterable[Mapping[str, Any]]) -> tuple[list[Any], bool]:
    kept: list[Any] = []
    left, cut = MAX_OUTPUT, False
    for part in parts:
        shown = {name: value for name, value in part.items() if value is not None}
        text = shown.get("text")
        rest = {**shown, "text": ""} if isinstance(text, str) else shown
        size = len(msgspec.json.encode(rest))
        if size > left:
            cut = True
            continue
        left -= size
        if isinstance(text, str):
            room = min(MAX_TEXT, left)
            cut = cut or len(text) > room
            shown["text"] = text[:room]
            left -= len(shown["text"])
        kept.append(shown)
    return kept, cut
