"""The console's files: small, complete in both languages, and under a policy of their own."""

import re
from importlib import resources

import pytest

from toolgate.surfaces.console.pages import content_policy, read_files

PLACEHOLDERS = ("https://mcp.example.com", "http://pages.toolgate.example")
BUDGET = 150 * 1024
WORDS = re.compile(r'\bt\("((?:[^"\\]|\\.)*)"')
TABLES = re.compile(r'\[?"((?:[A-Z{][^"]*))", "(?:calm|busy|ask|good|bad)"\]')


def scripts() -> dict[str, str]:
    files = {name: file.content.decode() for name, file in read_files().items()}
    return {name: text for name, text in files.items() if name.endswith(".js")}


def test_script_and_style_stay_within_their_budget() -> None:
    total = sum(
        len(file.content) for name, file in read_files().items() if name.endswith((".js", ".css"))
    )
    assert total <= BUDGET


def test_every_word_of_the_pages_is_there_in_chinese() -> None:
    chinese = scripts()["lang-zh.js"]
    known = set(re.findall(r'"((?:[^"\\]|\\.)*)": "', chinese))
    used = {
        word
        for name, text in scripts().items()
        if name != "lang-zh.js"
        for word in WORDS.findall(text) + TABLES.findall(text)
    }
    assert not {word for word in used if word not in known}


@pytest.mark.parametrize("name", sorted(scripts()))
def test_no_script_parses_html_or_evaluates_text(name: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden, scripts()[name])


def test_no_file_asks_another_host_for_anything() -> None:
    for name, file in read_files().items():
        urls = set(re.findall(r"https?://[^\s\"'`)]+", file.content.decode()))
        outside = {
            url
            for url in urls
            if not url.startswith(("http://www.w3.org/", "http://127.0.0.1", *PLACEHOLDERS))
        }
        assert not outside, name


def test_the_policy_lets_in_our_own_files_and_the_chat_alone() -> None:
    policy = content_policy("gate.example:8787", chat_port=8090)
    assert "default-src 'none'" in policy
    assert "ws://gate.example:8090" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("host", ["", "evil; script-src *", "a b", "x'y"])
def test_a_strange_host_header_does_not_reach_the_policy(host: str) -> None:
    policy = content_policy(host, chat_port=8090)
    assert "ws://127.0.0.1:8090" in policy
    assert "*" not in policy


def test_the_files_ship_with_the_package() -> None:
    root = resources.files("toolgate.surfaces.console").joinpath("static")
    assert root.joinpath("index.html").is_file()
    assert root.joinpath("views", "approvals.js").is_file()
