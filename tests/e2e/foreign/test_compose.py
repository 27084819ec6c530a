"""The seed's compose block as it stands: its ports, environment and health check, with our image."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.foreign.compose_network import ROOT, image, seeds_block

ALONE = ["unshare", "--net", "--mount"]


@pytest.mark.requirement("001/compose/seed-block")
def test_the_seeds_block_works_beside_a_foreign_orchestrator(tmp_path: Path) -> None:
    asked = subprocess.run([*ALONE, "true"], capture_output=True, check=False)
    if asked.returncode != 0:
        pytest.skip(f"NOT TESTED, a network of its own needs root: {asked.stderr.decode()}")
    ended = subprocess.run(
        [*ALONE, sys.executable, "-m", "tests.e2e.foreign.compose_network", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout)
    assert {name: result for name, result in found.items() if result != "ok"} == {}


@pytest.mark.requirement("001/compose/seed-block")
def test_our_image_has_what_the_block_needs() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    exposed = dockerfile.partition("EXPOSE ")[2].partition("\n")[0].split()
    assert {port.partition(":")[2] for port in seeds_block()["ports"]} <= set(exposed)
    assert seeds_block()["healthcheck"]["test"][1] == "curl"
    assert " curl " in dockerfile
    assert image()[0] == ["up"]
