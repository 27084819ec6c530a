"""How a role is served: what is put away where its ready line reaches nobody."""

import io

import pytest

from toolgate.bootstrap.installation import Installation
from toolgate.cli.serving import serve
from toolgate.settings import Settings


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_what_was_started_is_stopped_where_its_ready_line_reaches_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[str] = []

    async def start(_: Settings) -> Installation:
        installation = Installation(urls={"gateway": "http://127.0.0.1:1"})
        installation.on_stop_soon(lambda: stopped.append("sandboxes"))
        return installation

    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):
        serve(start, Settings())
    assert stopped == ["sandboxes"]
