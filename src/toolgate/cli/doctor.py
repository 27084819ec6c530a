"""`toolgate doctor`: what works here, and how to get what does not."""

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from typing import Final

import click

from toolgate.adapters.sandbox_choice import BWRAP, DOCKER, DOCKER_URL, make_sandbox
from toolgate.cli.options import EXIT_FAILED
from toolgate.domain.errors import Unavailable

HINTS: Final = {
    BWRAP: "as root on Debian: apt-get install bubblewrap; needs cgroups with memory, pids and cpu",
    DOCKER: "as root on Debian: apt-get install docker.io; the user must reach its socket",
}


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    detail: str
    hint: str = ""


async def check_backend(name: str, *, docker_url: str = DOCKER_URL) -> Finding:
    """Open a sandbox and try it; nothing is left behind."""
    sandbox = make_sandbox(name, docker_url=docker_url)
    try:
        await sandbox.check()
    except Unavailable as unavailable:
        return Finding(f"sandbox {name}", ok=False, detail=str(unavailable), hint=HINTS[name])
    finally:
        await sandbox.close()
    return Finding(f"sandbox {name}", ok=True, detail="isolates")


async def _examine(docker_url: str) -> list[Finding]:
    return [await check_backend(name, docker_url=docker_url) for name in (BWRAP, DOCKER)]


@click.command()
@click.option("--docker-url", default=DOCKER_URL, show_default=True, help="The Docker engine.")
@click.option("--json", "as_json", is_flag=True, help="Say it in JSON.")
def command(*, docker_url: str, as_json: bool) -> None:
    """Try what this machine offers. Fails where no sandbox works."""
    findings = asyncio.run(_examine(docker_url))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            click.echo(f"{'ok  ' if finding.ok else 'no  '} {finding.name}: {finding.detail}")
            if finding.hint:
                click.echo(f"       {finding.hint}")
    if not any(finding.ok for finding in findings):
        sys.exit(EXIT_FAILED)
