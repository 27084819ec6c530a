"""Keeps secrets out of the logs: a filter for every handler, with the same redactor as elsewhere."""

import logging
from typing import Final

from toolgate.core.tools import JsonValue
from toolgate.secrets.redaction import UNCHECKED, Redactor

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_FORMATTER: Final = logging.Formatter()


class RedactingFilter(logging.Filter):
    """Put it on handlers, not on loggers: a logger's filter does not see its children's records."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            self._redact(record)
        except Exception:  # noqa: BLE001 -- a line that cannot be checked is not written as it is
            record.msg, record.args = UNCHECKED, None
            record.exc_info = record.exc_text = record.stack_info = None
        return True

    def _redact(self, record: logging.LogRecord) -> None:
        record.msg, record.args = self._redactor.text(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = _FORMATTER.formatException(record.exc_info)
        record.exc_info = None
        if record.exc_text:
            record.exc_text = self._redactor.text(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redactor.text(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        for name, value in extra.items():
            setattr(record, name, self._redactor.fields({name: _plain(value)}).get(name, UNCHECKED))


def _plain(value: object) -> JsonValue:
    if isinstance(value, bool | int | float | str | list | dict | None):
        return value  # what a list or dict holds is walked, or fails and is replaced
    return str(value)
