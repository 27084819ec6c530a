"""The READMEs' block for an MCP client, in the hands of a stock client that knows nothing else."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.tasks.site import Site

ROOT = Path(__file__).parents[2]


def block(readme: str) -> dict[str, Any]:
    """What a user copies into the client's configuration."""
    found = re.search(r"```json\n(.*?)```", (ROOT / readme).read_text(encoding="utf-8"), re.DOTALL)
    assert found
    configuration = json.loads(found[1])
    assert isinstance(configuration, dict)
    return configuration


def test_both_readmes_have_the_same_block() -> None:
    assert block("README.md") == block("README.zh-CN.md")


async def test_a_stock_client_with_the_block_runs_a_batch_and_reads_its_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server,) = block("README.md")["mcpServers"].values()
    # As the README says: .venv/bin is in the PATH, and the data is the user's.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    configured = StdioServerParameters(**server, cwd=tmp_path, env={"HOME": str(tmp_path)})
    site = Site()
    try:
        async with Client(configured) as client:
            urls = [site.url(f"/n/{number}") for number in range(5)]
            ran = await client.call_tool(
                "run_task_template", {"templateId": "batch_extract_pages", "inputs": {"urls": urls}}
            )
            assert not ran.is_error, ran.structured_content
            finished = ran.structured_content
            titles = [item["title"] for item in finished["result"]["items"]]
            assert titles == [f"Page {number}" for number in range(5)]
            (artifact_id,) = finished["artifactIds"]
            content, more = b"", True
            while more:  # in small chunks, as a careful client does
                asked = {"artifactId": artifact_id, "offset": len(content), "length": 400}
                chunk = (await client.call_tool("get_artifact", asked)).structured_content
                content += chunk["data"].encode()
                more = not chunk["complete"]
            assert json.loads(content) == finished["result"]
    finally:
        site.close()
    assert (tmp_path / ".local" / "share" / "toolgate" / "browser" / "stdio-0").is_dir()
