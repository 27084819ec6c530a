"""Paths by their components."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.policy.paths import BadPath, PathPattern, components


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (".", ()),
        ("a//b/./c/", ("a", "b", "c")),
        ("a/../b", ("b",)),
        ("/", ("/",)),
        ("/a/../b", ("/", "b")),
        ("a/..", ()),
    ],
)
def test_a_path_is_its_components(text: str, parts: tuple[str, ...]) -> None:
    assert components(text) == parts


@pytest.mark.parametrize(
    "text",
    ["", "..", "../a", "a/../../b", "/..", "~", "~root/x", "a\\b", "a\x00b", "a\nb", "x" * 5000],
)
def test_a_path_that_cannot_be_told_is_bad(text: str) -> None:
    with pytest.raises(BadPath):
        components(text)


@given(st.text(alphabet="ab./", min_size=1, max_size=15))
def test_components_are_what_the_standard_library_makes_of_a_path(text: str) -> None:
    try:
        parts = components(text)
    except BadPath:
        normal = posixpath.normpath(text).lstrip("/")
        assert normal.startswith("..") or text.startswith("/")
        return
    joined = "/".join(parts).replace("//", "/") or "."
    assert joined == posixpath.normpath(text).replace("//", "/")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**", "a/b", True),
        ("**", ".", True),
        ("**", "/a", False),
        ("*", "/", False),
        ("src/**", "src/a/b", True),
        ("src/**", "src", True),
        ("src/**", "srcx/a", False),
        ("src/**", "src/../etc", False),
        ("**/.env", ".env", True),
        ("**/.env", "a/b/.env", True),
        ("**/.env", "a/.env/b", False),
        ("notes/*.md", "notes/x.md", True),
        ("notes/*.md", "notes/x/y.md", False),
        ("/etc/**", "/etc/passwd", True),
        ("/etc/**", "etc/passwd", False),
        ("a/**/b/**/c", "a/x/b/y/z/c", True),
        ("a/**/b/**/c", "a/x/y/z/c", False),
    ],
)
def test_a_pattern_is_compared_component_by_component(
    pattern: str, path: str, expected: bool
) -> None:
    assert PathPattern(pattern).matches(components(path)) is expected


def test_for_a_deny_an_absolute_path_counts_as_one_in_the_workspace_too() -> None:
    assert PathPattern("**/.env").may_match(components("/srv/app/.env"))
    assert not PathPattern("**/.env").matches(components("/srv/app/.env"))


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("secrets/**", "/workspace/secrets/key", True),
        ("secrets/**", "/workspace/./x/../secrets/key", True),
        ("secrets/*", "/home/me/project/secrets/key", True),
        ("secrets/*", "/workspace/secrets/a/key", False),
        ("*", "/workspace/a", True),
        ("secrets/**", "/workspace/public/key", False),
        ("/workspace/secrets/**", "secrets/key", True),
        ("/workspace/**", "secrets/key", True),
        ("/etc/**", "secrets/key", False),
        ("/etc/**", "/srv/etc/x", False),
        ("a/*/b", f"/{'a/' * 2000}b", True),
    ],
)
def test_for_a_deny_the_workspace_may_be_spelt_out(pattern: str, path: str, expected: bool) -> None:
    assert PathPattern(pattern).may_match(components(path)) is expected
