"""Command patterns, and the reading of plain texts without a grammar."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.policy.shell import (
    CommandPattern,
    Script,
    TooComplex,
    Unknown,
    every_command,
    plain_commands,
    script_of,
)


def pattern(text: str) -> CommandPattern:
    return CommandPattern(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "command", "expected"),
    [
        ("git status", "git status", True),
        ("git status", "git status -s", False),
        ("git status", "git", False),
        ("git status*", "git status", True),
        ("git status*", "git status -s x", True),
        ("git status*", "git statusx", True),
        ("git status *", "git status", True),
        ("git status *", "git status -s x", True),
        ("git status *", "git statusx", False),
        ("git log -n ?", "git log -n 5", True),
        ("git log -n ?", "git log -n", False),
        ("git log -n ?", "git log -n 5 x", False),
        ("docker * ps", "docker x ps", True),
        ("docker * ps", "docker ps", False),
        ("rm ** -*r*", "rm -rf", True),
        ("rm ** -*r*", "rm a b -vr c", True),
        ("rm ** -*r*", "rm a b c", False),
        ("kill ** -1", "kill -9 -1", True),
        ("kill ** -1", "kill -1 5", False),
        ("echo 'a b'", "echo 'a b'", True),
        ("echo 'a b'", "echo a b", False),
        ("ls [a]", "ls a", False),
        ("ls [a]", "ls '[a]'", True),
    ],
)
def test_a_pattern_is_compared_word_by_word(text: str, command: str, expected: bool) -> None:
    assert pattern(text).matches(tuple(shlex.split(command))) is expected
    assert pattern(text).may_match(tuple(shlex.split(command))) is expected


def test_for_a_deny_the_program_counts_wherever_it_lies_and_for_an_allow_only_as_named() -> None:
    assert pattern("rm *").may_match(("/usr/bin/rm", "x"))
    assert pattern("rm *").may_match(("../rm", "x"))
    assert not pattern("rm *").matches(("/usr/bin/rm", "x"))


@pytest.mark.parametrize(
    ("text", "command", "expected"),
    [
        ("rm -rf *", (Unknown(""), "x"), True),
        ("rm -rf *", ("rm", Unknown("")), True),
        ("rm -rf *", ("rm", Unknown("-"), "/"), True),
        ("rm -rf *", ("rm", Unknown("/tmp/")), False),
        ("rm -rf / now", ("rm", Unknown("")), True),
        ("rm ** -r", ("rm", "x", Unknown("-")), True),
        ("rm ** -r f", ("rm", "x", Unknown("-")), True),
        ("rm ** -r", ("rm", "x", Unknown("y")), False),
        ("rm -rf *", ("ls", Unknown("")), False),
    ],
)
def test_a_word_that_only_the_shell_knows_may_be_any_that_begins_as_it_does(
    text: str, command: tuple[str | Unknown, ...], expected: bool
) -> None:
    assert pattern(text).may_match(command) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls", (("ls",),)),
        ("  ls\t-la ", (("ls", "-la"),)),
        ("ls; cat 'a b' \"c d\"e", (("ls",), ("cat", "a b", "c de"))),
        ("a && b || c | d\ne", (("a",), ("b",), ("c",), ("d",), ("e",))),
        ("", None),
        ("   ", None),
        ("; ls", None),
        ("ls &", None),
        ("ls $x", None),
        ('ls "$x"', None),
        ("ls *", None),
        ("ls ~", None),
        ("ls 'a", None),
        ("ls é", None),
        ("ls\\ x", None),
        ("ls #x", None),
    ],
)
def test_only_plain_texts_are_read_without_a_grammar(
    text: str, expected: tuple[tuple[str, ...], ...] | None
) -> None:
    assert plain_commands(text) == expected


@given(st.text(alphabet="ab =./'\"-\t", max_size=20))
def test_a_plain_command_is_split_as_the_standard_library_splits_it(text: str) -> None:
    """A gateway's exec splits its text and runs it without a shell; both must mean the same."""
    read = plain_commands(text)
    if read is not None and len(read) == 1:
        assert list(read[0]) == shlex.split(text)


def test_what_a_wrapper_would_run_is_a_command_as_well() -> None:
    inner = Script((("rm", "-rf", "/"),), None, "")
    script = Script((("sudo", "-u", "x", "bash", "-c", "rm -rf /"),), None, "")
    assert ("rm", "-rf", "/") in every_command(script, lambda _: inner)
    assert ("bash", "-c", "rm -rf /") in every_command(script, lambda _: inner)


def test_commands_inside_commands_without_end_are_too_complex() -> None:
    endless = Script((("bash", "-c", "x y"),), None, "")
    with pytest.raises(TooComplex):
        every_command(endless, lambda _: endless)


def test_a_reading_is_static_only_where_the_parser_and_the_plain_reading_agree() -> None:
    listed: tuple[tuple[str, ...], ...] = (("ls",),)
    assert script_of(listed, plain=listed).argvs == listed
    assert script_of(listed, plain=(("rm",),)).argvs is None
    assert script_of(listed, plain=None).argvs is None
    assert script_of(listed, plain=listed, obstacle="a redirect").argvs is None
    assert script_of((("time", "ls"),), plain=(("time", "ls"),)).argvs is None
