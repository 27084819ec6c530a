"""The item of a page in a result: what came of it, its main text, or why it is a failure."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from toolgate.browser.browser import Extract, FrameText
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import TaskCode
from toolgate.core.errors import ToolgateError
from toolgate.secrets.addresses import without_password
from toolgate.tasks.document_worker import Found
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import Work, error_of, hint_of

Asked = wire.Extract  # the parts of a page that its item is to have

MAIN_LENGTH: Final = 50_000  # characters of main.text and main.markdown without fullText
PDF: Final = "application/pdf"
UNKNOWN_TYPES: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
SHORT: Final = 1500  # characters; a page that says more is no check for robots
# The titles that the widespread checks for robots have.
ROBOT_TITLES: Final = re.compile(
    r"^(just a moment|attention required|access denied|robot check|are you a (ro)?bot|"
    r"pardon our interruption|please verify you are (a )?human|verify(ing)? you are human|"
    r"security check|ddos-guard|checking your browser|human verification|request unsuccessful)\b",
    re.I,
)
_HINTS: Final = {
    HTTPStatus.UNAUTHORIZED: "The page needs a login: run login_keep_session and use its sessionId",
    HTTPStatus.FORBIDDEN: "The site refuses this: log in first, or use another source",
    HTTPStatus.NOT_FOUND: "Check the address; the page does not exist",
    HTTPStatus.GONE: "The page was removed; use another source",
    HTTPStatus.TOO_MANY_REQUESTS: "Wait, then read fewer pages at a time (concurrency)",
}


async def item_of(url: str, looked: Extract, work: Work, extract: Asked) -> dict[str, Any]:
    """The item of a page that was read: one that is an error page or empty is a failure."""
    item: dict[str, Any] = {"url": url, **_origin(looked)}
    failed = problem_of(looked)
    if failed is not None:
        return {**item, "title": looked.title, "success": False, "error": item_error(failed)}
    if looked.download is not None:
        return {**item, **await _file(looked, work, extract), "success": True}
    item |= {
        "title": looked.title,
        "pageType": looked.page_type,
        "elementCount": looked.element_count,
    }
    if extract.main:
        item["main"] = main_of(await work.documents.read_html(looked.html, url=looked.url)
                               if looked.html else None, looked, extract)  # fmt: skip
    if looked.frames:
        item["frames"] = [_frame(frame) for frame in looked.frames]
    if looked.content is not None:
        item["content"] = msgspec.Raw(looked.content)
    if looked.page_info is not None:
        item["pageInfo"] = msgspec.Raw(looked.page_info)
    item["success"] = True
    if looked.degraded is not None:
        item["degraded"] = True
        item["degradedBy"] = looked.degraded.value
    return item


def failed_item_of(url: str, failed: ToolgateError) -> dict[str, Any]:
    return {"url": url, "success": False, "error": item_error(failed)}


def item_error(failed: ToolgateError) -> dict[str, Any]:
    error = error_of(failed)
    return {
        "errorCode": error.code.value,
        "message": error.message,
        "recoverHint": hint_of(error),
    }


def failure_of(item: dict[str, Any]) -> dict[str, Any]:
    """A failed item in the details of a failed run."""
    return {"url": item["url"], **item["error"]}


def problem_of(looked: Extract) -> TaskFailed | None:
    """The reason why a page that came is no success."""
    status = looked.status
    if status >= HTTPStatus.BAD_REQUEST:
        words = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
        hint = _HINTS.get(HTTPStatus(status), "") if words else ""
        if not hint and status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            hint = "The site has a fault; try again later"
        return _failed(f"the server answered {status} {words}".rstrip(), hint)
    if looked.download is not None:
        return None
    robots = bool(ROBOT_TITLES.match(looked.title.strip())) or "challenge" in looked.signs
    captcha = "captcha" in looked.signs and looked.said < SHORT // 5
    if captcha or (robots and looked.said < SHORT):
        return _failed(
            "the site shows a check for robots instead of the page",
            "Open the page by hand once, log in first, or use another source",
        )
    if looked.is_empty:
        return _failed(
            "the document is empty",
            "The page may need a login, or build itself by scripts that did not run",
        )
    return None


def _failed(message: str, hint: str) -> TaskFailed:
    return TaskFailed(TaskCode.EXECUTION_ERROR, message, hint=hint)


def _origin(looked: Extract) -> dict[str, Any]:
    """Where the page really came from."""
    origin: dict[str, Any] = {"finalUrl": without_password(looked.url)}
    if looked.answers:
        origin["httpStatus"] = looked.status
    if len(looked.answers) > 1:
        origin["redirects"] = [
            {"url": without_password(each.url), "httpStatus": each.status}
            for each in looked.answers[:-1]
        ]
    return origin


async def _file(looked: Extract, work: Work, extract: Asked) -> dict[str, Any]:
    file = looked.download
    assert file is not None
    mime_type = file.mime_type
    if mime_type in UNKNOWN_TYPES and file.content.startswith(b"%PDF-"):
        mime_type = PDF
    artifact_id = await work.keep(file.content, name=file.name, mime_type=mime_type)
    item: dict[str, Any] = {
        "title": file.name,
        "pageType": "download",
        "artifactId": artifact_id,
        "mimeType": mime_type,
        "size": len(file.content),
    }
    if mime_type == PDF:
        item["pageType"] = "pdf"
        found = await work.documents.read_pdf(file.content, url=looked.url)
        if extract.main and found is not None:
            item["main"] = main_of(found, looked, extract)
    return item


def main_of(found: Found | None, looked: Extract, extract: Asked) -> dict[str, Any]:
    """`main`: the extractor's text, else what the page shows, cut unless all was asked for."""
    found = found or Found()
    if not found.text and not found.page_count:
        found.text = _shown(looked)
        found.total_length = len(found.text)
        found.truncated = bool(found.text)  # as content is, by its own limit
    main: dict[str, Any] = {
        "title": found.title or looked.title,
        "byline": found.byline,
        "published": found.published,
        "language": found.language,
        "text": found.text,
        "markdown": found.markdown,
        "tables": found.tables,
        "links": found.links,
        "truncated": found.truncated,
        "totalLength": found.total_length,
    }
    if found.page_count:
        main |= {"pages": found.pages, "pageCount": found.page_count}
    if extract.full_text:
        return main
    for name in ("text", "markdown"):
        if len(main[name]) > MAIN_LENGTH:
            main[name], main["truncated"] = main[name][:MAIN_LENGTH], True
    if found.page_count and sum(map(len, found.pages)) > MAIN_LENGTH:
        main["pages"], main["truncated"] = _first(found.pages, MAIN_LENGTH), True
    return main


def _frame(frame: FrameText) -> dict[str, Any]:
    url = without_password(frame.url)
    return {"url": url, "text": frame.text} if frame.is_read else {"url": url, "read": False}


def _shown(looked: Extract) -> str:
    if looked.content is None:
        return "\n".join(looked.top_sections)
    sections = msgspec.json.decode(looked.content, type=wire.Content).sections
    return "\n".join(section.text for section in sections)


def _first(pages: Sequence[str], limit: int) -> list[str]:
    kept: list[str] = []
    for page in pages:
        if limit <= 0:
            break
        kept.append(page[:limit])
        limit -= len(page)
    return kept
