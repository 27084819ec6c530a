"""Each document that a browser asks for: refused where it would send a form, noted where it came.

Chromium pauses every request for a document, redirects and answers included, until the guard of its
process lets it go on; a page has no way around that. A service worker would answer for its pages before
the guard sees their requests, so none is installed. What scripts request by themselves is not looked at.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec

from toolgate.browser.browser import DocumentAnswer, NavigationRefused
from toolgate.secrets.addresses import without_password

log = logging.getLogger(__name__)

PATTERNS: Final = [
    {"urlPattern": "*", "resourceType": kind, "requestStage": stage}
    for kind, stage in (
        ("Document", "Request"),
        ("Document", "Response"),
        ("Other", "Request"),  # the script of a service worker, among others
    )
]
SAFE: Final = frozenset({"GET", "HEAD"})
BY_POST: Final = "formSubmissionPost"  # a reason of Page.frameRequestedNavigation
DEEPEST: Final = 20  # frames in frames and pop-ups of pop-ups; beyond, the tab is not looked for
LONGEST_URL: Final = 300
MOST_ANSWERS: Final = 30  # of one visit; Chromium follows 20 redirects


class TabDocuments:
    """The documents of one tab: whether its run may send forms, what was refused, what came."""

    def __init__(self) -> None:
        self.submits = False
        self.refused = ""  # the first navigation that was refused in this visit
        self.answers: list[DocumentAnswer] = []  # of this visit, redirects among them
        self._arrived = False

    def leave(self) -> None:
        """A visit begins: until its page has come, the page before is still there."""
        self.refused = ""
        self.answers = []
        self._arrived = False

    def arrive(self) -> None:
        self._arrived = True

    def answered(self, answer: DocumentAnswer) -> None:
        if len(self.answers) < MOST_ANSWERS:
            self.answers.append(answer)

    def answers_to(self, url: str) -> tuple[DocumentAnswer, ...]:
        """All answers up to the one that the page at this URL came with; none if no server sent it."""
        bare = url.partition("#")[0]
        last = max((at for at, one in enumerate(self.answers) if one.url == bare), default=-1)
        return tuple(self.answers[: last + 1])

    def requested(self, *, reason: str, url: str) -> None:
        """A frame of the page is about to navigate; its page says so before what it answers next."""
        if reason == BY_POST and not self.submits:
            self.note(spelt("POST", url))

    def note(self, what: str) -> None:
        if self._arrived and not self.refused:
            self.refused = what

    def check(self) -> None:
        """Raise NavigationRefused if the page tried to send a form."""
        if self.refused:
            raise NavigationRefused(
                f"the page sends a form ({self.refused}), which a template that only reads may not;"
                " submit_and_verify may"
            )


class Send(Protocol):
    async def __call__(self, method: str, params: dict[str, Any]) -> Any:
        """Send one command to the browser itself; returns its result as JSON values."""
        ...


class _Header(msgspec.Struct):
    name: str
    value: str


class _Request(msgspec.Struct):
    method: str
    url: str
    headers: dict[str, str] = {}


class Paused(msgspec.Struct, rename="camel"):
    request_id: str
    request: _Request
    frame_id: str = ""
    response_status_code: int = 0  # none in a request that has not been sent
    response_error_reason: str = ""
    response_headers: list[_Header] = []

    @property
    def is_answered(self) -> bool:
        return bool(self.response_status_code or self.response_error_reason)

    @property
    def mime_type(self) -> str:
        for header in self.response_headers:
            if header.name.lower() == "content-type":
                return header.value.partition(";")[0].strip().lower()
        return ""


class DocumentGuard:
    """The guard of one browser process."""

    def __init__(self, send: Send, *, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._send = send
        self._spawn = spawn
        self._tabs: dict[str, TabDocuments] = {}  # by the id of the main frame
        self._parents: dict[str, str] = {}  # of frames, by their ids

    async def enable(self) -> None:
        await self._send("Fetch.enable", {"patterns": PATTERNS})

    def enter(self, frame_id: str, tab: TabDocuments) -> None:
        self._tabs[frame_id] = tab

    def leave(self, frame_id: str) -> None:
        self._tabs.pop(frame_id, None)
        gone = {frame_id}
        while gone:
            children = {child for child, parent in self._parents.items() if parent in gone}
            for child in children:
                del self._parents[child]
            gone = children

    def attached(self, frame_id: str, parent_id: str) -> None:
        """A frame came into another, or a pop-up was opened by one: it is gone before one can ask."""
        self._parents[frame_id] = parent_id

    def paused(self, paused: Paused) -> None:
        if paused.response_status_code and (tab := self._tabs.get(paused.frame_id)) is not None:
            url, status = paused.request.url, paused.response_status_code
            tab.answered(DocumentAnswer(url, status, paused.mime_type))
        self._spawn(self._answer(paused))

    async def _answer(self, paused: Paused) -> None:
        refuse = _is_service_worker(paused.request)
        if paused.request.method not in SAFE and not paused.is_answered:
            tab = await self._tab_of(paused.frame_id)
            refuse = tab is None or not tab.submits
            if refuse:
                what = spelt(paused.request.method, paused.request.url)
                log.info("submission_refused method=%s", paused.request.method)
                if tab is not None:
                    tab.note(what)
        method = "Fetch.failRequest" if refuse else "Fetch.continueRequest"
        how = {"errorReason": "Aborted"} if refuse else {}  # the page stays as it is
        with contextlib.suppress(Exception):  # its frame is gone, or the browser
            await self._send(method, {"requestId": paused.request_id, **how})

    async def _tab_of(self, frame_id: str) -> TabDocuments | None:
        """The tab that a frame or a pop-up belongs to; None where that is not known."""
        for _ in range(DEEPEST):
            if not frame_id or frame_id in self._tabs:
                break
            frame_id = self._parents.get(frame_id) or await self._opener_of(frame_id)
        return self._tabs.get(frame_id)

    async def _opener_of(self, frame_id: str) -> str:
        """The frame that opened a pop-up, or that holds a frame of another process."""
        try:
            async with asyncio.timeout(1):
                found = await self._send("Target.getTargetInfo", {"targetId": frame_id})
        except Exception:  # noqa: BLE001 - no such target: refused
            return ""
        info = found["targetInfo"]
        for name in ("openerFrameId", "parentFrameId", "openerId"):
            if other := str(info.get(name, "")):
                return other
        return ""


def _is_service_worker(request: _Request) -> bool:
    return any(name.lower() == "service-worker" for name in request.headers)


def spelt(method: str, url: str) -> str:
    """A request for people; what follows the path may be a secret."""
    return f"{method} {without_password(url).partition('?')[0][:LONGEST_URL]}"
