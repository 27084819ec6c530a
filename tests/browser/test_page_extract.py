"""What a page's side says of it: as long as a page can make it, and no longer than is kept."""

import msgspec
import pytest

from toolgate.browser.browser import PageError
from toolgate.browser.page_extract import LONGEST, decode_looked


def said(title: str) -> str:
    looked = {
        "url": "http://a/",
        "title": title,
        "pageType": "page",
        "elementCount": 0,
        "topSections": [],
        "restless": False,
    }
    return msgspec.json.encode(looked).decode()


def test_a_page_that_says_more_than_any_page_holds_is_not_kept() -> None:
    assert decode_looked(said("x" * 500)).title == "x" * 500
    with pytest.raises(PageError):
        decode_looked(said("x" * LONGEST))
