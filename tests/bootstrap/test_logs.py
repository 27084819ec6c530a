"""Log lines: one per thing that happened, whatever it is about."""

import asyncio
import logging
import sys
from collections.abc import Iterator

import pytest

from toolgate.bootstrap import logs
from toolgate.secrets.patterns import SecretPatterns

FORGED = "bad\nat=now level=error forged\x1b[2J\u202e\x9b1m"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    found = logging.getLogger()
    handlers, level = list(found.handlers), found.level
    yield found
    found.handlers[:] = handlers
    found.setLevel(level)
    for name in ("picows", "uvicorn", "uvicorn.error", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


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


@pytest.mark.parametrize("where", ["picows.server", "asyncio", "aiohttp.client", "uvicorn"])
def test_a_failure_that_only_a_library_caught_is_in_the_log_without_its_secrets(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    secret = "kept-from-every-log-line"
    library = logging.getLogger(where.partition(".")[0])
    library.addHandler(logging.StreamHandler())  # as uvicorn gives itself one unless told not to
    library.propagate = False
    logs.configure(level="info", as_json=False, redactor=SecretPatterns([secret]).redactor())
    logging.getLogger(where).error("bad frame from 10.0.0.1")  # as of each stranger
    logging.getLogger(where).warning("slow")
    assert capsys.readouterr().err == ""
    try:
        raise ZeroDivisionError(f"unforeseen {secret}")
    except ZeroDivisionError:
        logging.getLogger(where).exception("listener failed")
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "unforeseen" in said
    assert secret not in said


async def test_what_fails_in_a_callback_of_the_loop_is_in_the_log(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(level="info", as_json=False, redactor=SecretPatterns().redactor())
    done = asyncio.Event()

    def fails() -> None:
        done.set()
        raise ZeroDivisionError

    asyncio.get_running_loop().call_soon(fails)
    await done.wait()
    await asyncio.sleep(0)
    assert "ZeroDivisionError" in capsys.readouterr().err
