"""Settings that make no sense together are told at the start, and not by every call."""

from pathlib import Path

import pytest

from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.core.errors import Misconfigured

PORTS = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT")


@pytest.mark.parametrize(
    ("provider", "missing"), [("searxng", "SEARCH_URL"), ("brave", "SEARCH_KEY")]
)
async def test_a_search_provider_that_lacks_what_it_needs_is_refused(
    tmp_path: Path, provider: str, missing: str
) -> None:
    """Without its URL the queries for one's own SearXNG would go to somebody else."""
    settings = table.load(
        {
            **dict.fromkeys(PORTS, "0"),
            "TOOLGATE_HOME": str(tmp_path / "home"),
            "SEARCH_PROVIDER": provider,
        },
        environment={},
    )
    started = None
    try:
        with pytest.raises(Misconfigured, match=missing):
            started = await start_everything(settings)
    finally:
        if started is not None:
            await started.stop()
