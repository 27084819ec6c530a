"""A large result without its large parts: what one answer can carry."""

from typing import Any, Final

import msgspec

_LISTS: Final = ("items", "snapshots", "pages")
_ONE: Final = "page"
_LARGE: Final = ("content", "pageInfo", "main")


def outline_of(result: bytes, artifact_id: str) -> bytes:
    """The same members, the pages' text and elements left out; says where those are."""
    outline: dict[str, Any] = msgspec.json.decode(result)
    for name in _LISTS:
        if name in outline:
            outline[name] = [_without_large(item) for item in outline[name]]
    if _ONE in outline:
        outline[_ONE] = _without_large(outline[_ONE])
    outline["contentArtifactId"] = artifact_id
    return msgspec.json.encode(outline)


def _without_large(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _LARGE}
