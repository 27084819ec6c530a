"""A browser: isolated sessions, tabs in them, and what a task does with a tab.

The errors say what happened to the page; which code that is on the wire is for the tasks to say.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from toolgate.core.enums import LocatorMode, TrustLevel
from toolgate.core.errors import ToolgateError


class PageError(ToolgateError):
    """Something went wrong with a page; the tab may be used again unless a subclass says not."""


class NavigationTimedOut(PageError):
    pass


class NavigationFailed(PageError):
    """The page could not be had: no such host, refused, a bad certificate, too many redirects."""


class NavigationRefused(PageError):
    """The guard between the browser and the world said no."""


class DownloadTooLarge(PageError):
    pass


class PageCrashed(PageError):
    """The page's process died; its tab is gone."""


class BrowserGone(PageCrashed):
    """The whole browser died; every session in it is gone."""


class ElementAbsent(PageError):
    pass


class Degraded(StrEnum):
    """How an answer falls short of the live page."""

    STOPPED = "stopped"  # its load or script was stopped, then read
    STATIC = "static"  # only the HTML was read, no script was run


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    page_info: bool = True
    content: bool = True
    max_elements: int = 50
    max_content_length: int = 4000
    digest: bool = False  # of all its text, however little of it is asked for
    html: bool = False  # the document as it is now, for the extraction of its main text


class FrameText(NamedTuple):
    url: str
    text: str
    is_read: bool = True  # False: another site's, which its page does not show us


class DocumentAnswer(NamedTuple):
    """A server's answer to a request for a tab's document."""

    url: str
    status: int
    mime_type: str


@dataclass(frozen=True, slots=True)
class Extract:
    """What one look at a page gives; the two large parts are JSON as the page's side wrote it.

    An address that is a file and no page gives `download`, and the rest is empty.
    """

    url: str
    title: str
    page_type: str
    element_count: int
    top_sections: tuple[str, ...]
    page_info: bytes | None
    content: bytes | None
    degraded: Degraded | None = None
    download: "Download | None" = None
    digest: str = ""  # where it was asked for: the same for the same text
    answers: tuple[DocumentAnswer, ...] = ()  # redirects, then that of the page; none of a file
    html: str = ""  # where it was asked for, and not too large
    is_empty: bool = False  # it shows nothing: no text, picture or control
    said: int = 0  # characters of its text; of a long one, some 2,000
    signs: tuple[str, ...] = ()  # of a check for robots
    frames: tuple[FrameText, ...] = ()  # where the HTML was asked for

    @property
    def status(self) -> int:
        """The HTTP status that the page came with; 0 where no server sent it."""
        return self.answers[-1].status if self.answers else 0


@dataclass(frozen=True, slots=True)
class Locator:
    """An element by CSS selector, or by what a person would call it."""

    mode: LocatorMode
    value: str


@dataclass(frozen=True, slots=True)
class Download:
    name: str
    mime_type: str  # as the server says
    content: bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG; `truncated` where the page is larger than what is drawn of one."""

    content: bytes
    truncated: bool = False


class Reader(Protocol):
    """A tab to read pages in; a page that sends a form raises NavigationRefused."""

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        """Go there and extract, whatever the page does: a hang gives a degraded extract."""
        ...


class Tab(Reader, Protocol):
    @property
    def url(self) -> str: ...

    async def visit(self, url: str, *, timeout_ms: int | None = None) -> None:
        """Go there and wait for DOM content."""
        ...

    async def extract(self, options: ExtractOptions) -> Extract:
        """Extract what is there now, once it is quiet."""
        ...

    async def title(self) -> str: ...

    async def fill(self, locator: Locator, value: str, *, timeout_ms: int) -> None:
        """Put a value into a field; raises ElementAbsent where there is none in time.

        A box is ticked by a word for yes or no; of several, and of choices, the value means one.
        """
        ...

    async def click(self, locator: Locator, *, timeout_ms: int) -> None: ...

    async def press(self, locator: Locator, key: str, *, timeout_ms: int) -> None: ...

    @property
    def status(self) -> int:
        """The HTTP status that the page came with; 0 where no server sent it."""
        ...

    @property
    def unanswered(self) -> str:
        """What the page asked upon the last click or key, was told no, and then stayed; else empty."""
        ...

    async def has(self, locator: Locator) -> bool:
        """Whether there is such an element, visible and enabled, now."""
        ...

    async def wait_any(self, locators: Sequence[Locator], *, timeout_ms: int) -> bool:
        """Whether one of them came in time."""
        ...

    async def wait_selector(self, selector: str, *, timeout_ms: int) -> bool: ...

    async def wait_url(self, part: str, *, timeout_ms: int) -> bool: ...

    async def wait_text(self, text: str, *, timeout_ms: int) -> bool: ...

    async def wait_stable(self, *, timeout_ms: int) -> bool:
        """Whether the page came to rest: loaded, and its body no longer changes."""
        ...

    async def blank_fields(self, secrets: Sequence[str] = ()) -> None:
        """Empty every field, so that a picture of the page shows nothing that was typed.

        A text that says one of the secrets goes too.
        Raises where that cannot be done: then there must be no picture.
        """
        ...

    async def screenshot(self, *, full_page: bool) -> Picture: ...

    async def pdf(self) -> bytes: ...

    async def cookie_count(self) -> int: ...

    def check_refused(self) -> None:
        """Raise NavigationRefused if the page tried to send a form in a run that may not."""
        ...


class BrowserSession(Protocol):
    """Cookies and storage of its own; nothing is shared with another session."""

    def tab(self, *, run_id: str, submits: bool = False) -> AbstractAsyncContextManager[Tab]:
        """A tab to work in, once it is this run's turn; reused or closed afterwards.

        Only a run that `submits` may navigate by another method than GET.
        """
        ...

    def reader(self, *, run_id: str) -> AbstractAsyncContextManager[Reader]:
        """The same for pages that are only read; cheaper where the session was opened for it."""
        ...

    @property
    def is_alive(self) -> bool: ...

    async def close(self) -> None: ...


class Browser(Protocol):
    async def open(
        self, *, trust: TrustLevel, media: bool = False, only_reads: bool = False
    ) -> BrowserSession:
        """A new session. Without `media`, images, fonts, video and sound are not loaded.

        One that `only_reads` may have no tabs to work in.
        """
        ...

    async def close(self) -> None: ...
