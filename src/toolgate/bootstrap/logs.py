"""Log lines: one per thing that happened, key=value or JSON, on stderr.

A message is `event key=value ...`; whatever passes through here goes through the redactor first.
"""

import json
import logging
import re
import sys
import time
from typing import Final

from toolgate.secrets.log_filter import RedactingFilter
from toolgate.secrets.redaction import Redactor

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

# What would begin another line, act on a terminal or turn the direction of writing.
_STEERING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


# They log each connection and each bad frame; what matters of that we log ourselves. But what they
# caught, as nobody else did, is a mistake of ours that must be known.
_NOISY: Final = ("picows", "uvicorn", "aiohttp", "asyncio")


class _NoNoise(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in _NOISY or bool(record.exc_info)


class _Lines(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_text:
            text = f"{text} error={record.exc_text!r}"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        at = f"{moment}.{int(record.msecs):03d}Z"
        level = record.levelname.lower()
        if self._as_json:
            return json.dumps({"at": at, "level": level, "logger": record.name, "message": text})
        line = f"at={at} level={level} logger={record.name} {text}"
        return _STEERING.sub(lambda found: repr(found[0])[1:-1], line)


def configure(*, level: str, as_json: bool, redactor: Redactor) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_NoNoise())  # before the next, which makes text of what failed
    handler.addFilter(RedactingFilter(redactor))
    handler.setFormatter(_Lines(as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for noisy in _NOISY:
        library = logging.getLogger(noisy)
        library.setLevel(logging.ERROR)
        library.handlers.clear()  # one of its own would write secrets as they are
        library.propagate = True
    # Its listeners' failures are logged with what was asked for: see `asgi`.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
