"""Every line of the READMEs' table of doors, run as it stands there; every link leads somewhere."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import click
import pytest
import pytest_asyncio

from tests.e2e.harness import PATIENCE, Program, environment, running
from toolgate.cli.main import main

ROOT: Final = Path(__file__).parents[2]
MADE: Final = {"API_KEY": "", "INTERNAL_TOKEN": ""}  # and so kept in the home
READMES: Final = ("README.md", "README.zh-CN.md")
PAGES: Final = (
    *READMES,
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*/README.md")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "how-to").glob("*.md")),
)
EXPECTED: Final = {  # what its answer must hold, by how a line begins
    "toolgate chat": "42",
    "python examples/": "Hello, brave new world",
    "internal.token": "script",
    "operator.token /runs": '"items"',
    "executor.token": '"exit_code":0',
    "token make /mcp": "toolgate-browser",
    "toolgate console": "#code=",
    "toolgate evidence": "verified",
    "toolgate policy": "ask",
    "toolgate doctor": "python",
    "toolgate testkit": "0 no",
}


def doors(readme: str) -> list[str]:
    text = (ROOT / readme).read_text(encoding="utf-8")
    return re.findall(r"^\|.*\| `([^`]+)` \|$", text, re.MULTILINE)


def expected(line: str) -> str:
    for start, answer in EXPECTED.items():
        if all(word in line for word in start.split()):
            return answer
    raise AssertionError(f"what does this answer? {line}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("readme") / ".toolgate"
    async with running(home, **MADE) as started:
        yield started


async def run(line: str, program: Program) -> tuple[int | None, str]:
    """As it stands, but for the ports, which here are any that are free."""
    urls = program.urls
    for port, door in {"8787": "gateway", "8081": "orchestrator", "8090": "ingress_ws"}.items():
        at = urls[door].partition("://")[2].removesuffix("/ws")
        line = line.replace(f"127.0.0.1:{port}", at)
    ports = {
        name: urls[door].removesuffix("/ws").rpartition(":")[2]
        for name, door in {"WS_PORT": "ingress_ws", "GATEWAY_PORT": "gateway"}.items()
    }
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        line.replace("examples/", f"{shlex.quote(str(ROOT))}/examples/"),
        cwd=program.home.parent,
        env={**environment({**ports, **MADE}), "PATH": here},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        stdin=asyncio.subprocess.DEVNULL,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("line", doors("README.md"))
async def test_each_door_of_the_readme_opens(line: str, program: Program) -> None:
    code, output = await run(line, program)
    assert expected(line) in output
    assert code == 0


def test_both_readmes_have_the_same_doors() -> None:
    assert len(doors("README.md")) == len(EXPECTED)
    assert doors("README.md") == doors("README.zh-CN.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def commands(page: Path) -> list[str]:
    """The lines of its shell blocks that call our program."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = (line.strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if re.match(r"(\.venv/bin/)?toolgate ", line)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_is_there_with_its_options(page: str) -> None:
    for line in commands(ROOT / page):
        words = shlex.split(line, comments=True)[1:]
        words = words[: next((n for n, w in enumerate(words) if w in {"&", ">", "|"}), len(words))]
        at: click.Command = main
        context = click.Context(main)
        while isinstance(at, click.Group):
            found = at.get_command(context, words.pop(0))
            assert found is not None, line
            at = found
        options = {option for parameter in at.params for option in parameter.opts}
        said = words[: words.index("--")] if "--" in words else words
        given = {word.partition("=")[0] for word in said if word.startswith("-")}
        assert given <= options, line


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_are_short(name: str) -> None:
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 40


@pytest.mark.asyncio(loop_scope="module")
async def test_an_mcp_client_lists_and_calls_the_tools(program: Program) -> None:
    line = (
        "python examples/mcp_client.py http://127.0.0.1:8787/mcp"
        ' "$(toolgate token make me --kind agent --tools write --mcp)"'
    )
    code, output = await run(line, program)
    assert code == 0, output
    assert "run_task_template" in output
    assert "http://pages.toolgate.example/ The gate" in output


@pytest.mark.asyncio(loop_scope="module")
async def test_an_agent_of_ones_own_is_talked_to(program: Program) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        ROOT / "examples" / "own_agent.py",
        program.urls["orchestrator"],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=program.home.parent,
    )
    assert agent.stdout is not None
    try:
        registered = await asyncio.wait_for(agent.stdout.readline(), PATIENCE)
        assert b"parrot" in registered
        code, output = await run("toolgate chat --agent parrot hello there", program)
    finally:
        agent.terminate()
        await agent.wait()
    assert (code, output.strip()) == (0, "hello! there!")
