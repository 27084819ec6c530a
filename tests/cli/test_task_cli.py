"""`toolgate task`, against a running installation."""

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner, Result

from tests.e2e.harness import Program, running
from toolgate.cli.main import main

SAMPLE = "http://pages.toolgate.example/"


def invoke(program: Program, *words: str) -> Result:
    at = ("--home", str(program.home), "--url", program.urls["gateway"])
    return CliRunner().invoke(main, ["task", *words, *at], catch_exceptions=False)


async def test_a_task_is_run_to_its_end_and_its_artifact_fetched(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program:

        def all_of_it() -> None:
            assert "no browser task" in invoke(program, "list").stdout
            assert "urls" in invoke(program, "templates").stdout
            given = json.dumps({"url": SAMPLE})
            done = invoke(program, "run", "screenshot_page", "--inputs", given, "--json")
            assert done.exit_code == 0, done.output
            found = json.loads(done.stdout)
            assert found["result"]["title"] == "The gate"
            output = tmp_path / "shot.png"
            got = invoke(program, "get", found["result"]["artifactId"], "-o", str(output))
            assert got.exit_code == 0
            assert output.read_bytes().startswith(b"\x89PNG")
            assert found["runId"] in invoke(program, "list").stdout
            inside = json.dumps({"url": "http://127.0.0.1/"})
            refused = invoke(program, "run", "screenshot_page", "--inputs", inside)
            assert refused.exit_code == 1
            assert "TRUST_LEVEL_NOT_ALLOWED" in refused.stderr
            unknown = invoke(program, "run", "nonsense")
            assert unknown.exit_code == 1
            assert "nonsense" in unknown.stderr
            assert invoke(program, "run", "screenshot_page", "--inputs", "{").exit_code == 2

        await asyncio.to_thread(all_of_it)
