"""A tool's output as it may be shown and stored: without secrets, and within its limits."""

from typing import Final

import msgspec

from toolgate.core.tools import JsonValue, ToolOutput
from toolgate.secrets.redaction import Redactor

MAX_TEXT: Final = 512 * 1024  # characters of stdout and of stderr
MAX_DATA_BYTES: Final = 1024 * 1024


def clean_output(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    out, err, isolation = readable(output.stdout), readable(output.stderr), output.isolation
    texts = f"{out}\0{err}\0{isolation}"
    if redactor.text(texts) != texts:
        out, err, isolation = map(redactor.text, (out, err, isolation))
    if output.truncated:
        out, err = redactor.cut(out), redactor.cut(err)
    stdout, stdout_cut = _capped(out)
    stderr, stderr_cut = _capped(err)
    data, data_cut = _bounded(output.data, redactor, cut=output.truncated)
    unchanged = stdout is output.stdout and stderr is output.stderr
    if unchanged and data is None and isolation == output.isolation:
        return output
    return output._replace(
        stdout=stdout,
        stderr=stderr,
        data=data,
        isolation=isolation,
        truncated=output.truncated or stdout_cut or stderr_cut or data_cut,
    )


def readable(text: str) -> str:
    """What an engine took from bytes may hold halves of characters, which no JSON can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _capped(text: str) -> tuple[str, bool]:
    if len(text) <= MAX_TEXT:
        return text, False
    return f"{text[:MAX_TEXT]}\n[cut: {MAX_TEXT} of {len(text)} characters]\n", True


def _bounded(data: JsonValue, redactor: Redactor, *, cut: bool) -> tuple[JsonValue, bool]:
    """Structured data without secrets; a note in its place where there is too much of it."""
    if data is None:
        return None, False
    clean = redactor.value(data)
    try:
        if cut:
            clean = redactor.cut_value(clean)
        fits = len(msgspec.json.encode(clean)) <= MAX_DATA_BYTES
    except (TypeError, ValueError, RecursionError):
        return {"unreadable": True}, True
    return (clean, False) if fits else ({"truncated": True}, True)
