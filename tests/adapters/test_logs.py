"""Log lines: one per thing that happened, whatever it is about."""

import logging
import sys
from collections.abc import Iterator

import pytest

from toolgate.adapters import logs
from toolgate.adapters.patterns_re2 import SecretPatterns

FORGED = "bad\nat=now level=error forged\x1b[2J\u202e\x9b1m"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    found = logging.getLogger()
    handlers, level = list(found.handlers), found.level
    yield found
    found.handlers[:] = handlers
    found.setLevel(level)


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_stranger_sent_makes_no_line_of_its_own_and_steers_no_terminal(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    logs.configure(level="info", as_json=as_json, redactor=SecretPatterns().redactor())
    assert isinstance(root.handlers[0], logging.StreamHandler)
    assert root.handlers[0].stream is sys.stderr
    logging.getLogger("toolgate.test").info("refused name=%s", FORGED)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert said.removesuffix("\n").isprintable()
    assert "forged" in said
