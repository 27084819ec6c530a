"""What the extractor says of a page, read from the JSON it answers with."""

from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

import msgspec

from toolgate.browser.browser import (
    Degraded,
    Extract,
    ExtractOptions,
    FrameText,
    NavigationFailed,
    PageError,
)
from toolgate.browser.documents import TabDocuments
from toolgate.contracts.wire import UNREADABLE

WATCH: Final = files("toolgate.browser").joinpath("page_watch.js").read_text("utf-8")
EXTRACTOR: Final = files("toolgate.browser").joinpath("page_extractor.js").read_text("utf-8")


# Some times what the extractor says of the largest page: only a page that speaks for it says more.
LONGEST: Final = 8 * 1024 * 1024


class _Frame(msgspec.Struct, rename="camel"):
    url: str
    text: str
    is_read: bool


class Looked(msgspec.Struct, rename="camel"):
    url: str
    title: str
    page_type: str
    element_count: int
    top_sections: tuple[str, ...]
    restless: bool
    status: int = 0
    digest: str = ""
    html: str = ""
    is_empty: bool = False
    said: int = 0
    signs: tuple[str, ...] = ()
    frames: tuple["_Frame", ...] = ()
    page_info: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()


_decode: Final = msgspec.json.Decoder(Looked).decode


def decode_looked(said: Any) -> Looked:
    """What the page's side answered: a page can make that into anything."""
    if isinstance(said, str) and len(said) > LONGEST:
        raise PageError("the page says more than can be kept")
    try:
        return _decode(said)
    except (*UNREADABLE, UnicodeEncodeError, TypeError) as wrong:
        raise PageError("the page cannot be understood") from wrong


ERROR_PAGE: Final = "chrome-error:"


def argument_of(options: ExtractOptions, *, quiet_ms: int) -> dict[str, Any]:
    return {
        "pageInfo": options.page_info,
        "content": options.content,
        "sections": True,
        "digest": options.digest,
        "html": options.html,
        "maxElements": options.max_elements,
        "maxContentLength": options.max_content_length,
        "quietMs": quiet_ms,
    }


def extract_of(looked: Looked, documents: TabDocuments) -> Extract:
    """Raises NavigationFailed for the browser's own error page."""
    if looked.url.startswith(ERROR_PAGE):
        raise NavigationFailed("the page cannot be reached: the browser shows an error instead")
    return Extract(
        url=looked.url,
        title=looked.title,
        page_type=looked.page_type,
        element_count=looked.element_count,
        top_sections=looked.top_sections,
        page_info=bytes(looked.page_info) or None,
        content=bytes(looked.content) or None,
        digest=looked.digest,
        answers=documents.answers_to(looked.url),
        html=looked.html,
        is_empty=looked.is_empty,
        said=looked.said,
        signs=looked.signs,
        frames=tuple(FrameText(each.url, each.text, each.is_read) for each in looked.frames),
    )


def marked(extract: Extract, degraded: Degraded) -> Extract:
    return replace(extract, degraded=degraded)
