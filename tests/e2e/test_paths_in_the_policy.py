"""Rules about paths, in the installed program: no link walks around them, here or behind a runner."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import Program, running
from tests.e2e.test_files_through_artifacts import Executor, toolgate
from tests.e2e.test_runner_check import RUNNER_TOKEN, runner
from tests.support.engines import need

DENIED = """\
version: 1
name: paths
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
  - {id: files, allow: "file.*", match: any, reason: For the check}
  - {id: secrets, deny: "file.*", match: {path: "secrets/**"}, reason: They are secret}
"""
ALLOWED = """\
version: 1
name: paths
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
  - {id: public, allow: "file.*", match: {path: "public/**"}, reason: For the check}
"""
NONE = """\
version: 1
name: paths
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
  - {id: files, allow: "file.*", match: any, reason: For the check}
"""
COMMANDS = """\
version: 1
name: paths
default: deny
rules:
  - id: commands
    allow: [bash.exec, python.exec, exec]
    match: {cwd: [., "public/**"]}
    reason: For the check
"""
PREPARE = (
    "mkdir -p secrets/deep public/sub; echo hidden > secrets/key; echo shown > public/note; "
    "ln -s ../secrets public/way; ln -s ../secrets/key public/innocent; ln -s note public/alias"
)
WAYS = (
    ("file.read", {"path": "public/innocent"}),
    ("file.read", {"path": "public/way/key"}),
    ("file.read", {"path": "public/sub/../way/key"}),
    ("file.read", {"path": "public/innocent", "artifact": True}),
    ("file.write", {"path": "public/innocent", "content": "changed"}),
    ("file.write", {"path": "public/way/key", "content": "changed"}),
    ("file.write", {"path": "public/way/new/file", "content": "changed"}),
    ("file.list", {"path": "public/way"}),
    ("file.list", {"path": "public/way/deep", "recursive": True}),
)


@contextlib.asynccontextmanager
async def under(policy: str, tmp_path: Path) -> AsyncIterator[tuple[Program, Executor]]:
    need("bwrap")
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    async with (
        running(tmp_path / "home", POLICY_FILE=str(file)) as program,
        aiohttp.ClientSession() as http,
    ):
        yield program, Executor(program, http)


async def walk(executor: Executor) -> list[Any]:
    prepared = await executor.run("bash.exec", cmd=PREPARE)
    assert prepared["ok"], prepared
    answers = [await executor.run(tool, **args) for tool, args in WAYS]
    after = await executor.run("bash.exec", cmd="cat secrets/key; ls secrets")
    answers.append(after["tool_result"]["stdout"])
    return answers


@pytest.mark.parametrize("where", ["local", "runner"])
@pytest.mark.parametrize("policy", [DENIED, ALLOWED])
async def test_no_link_walks_around_a_rule_about_paths(
    where: str, policy: str, tmp_path: Path
) -> None:
    async with (
        under(policy, tmp_path) as (program, executor),
        contextlib.AsyncExitStack() as ending,
    ):
        if where == "runner":
            url = await ending.enter_async_context(runner(home=tmp_path / "runner"))
            token = tmp_path / "token"
            token.write_text(RUNNER_TOKEN)
            at = ("--home", str(program.home), "--url", program.urls["gateway"])
            await toolgate(
                "targets", "set", "lab", "--endpoint", url, "--token-file", str(token),
                "--default", *at,
            )  # fmt: skip
        *answers, left = await walk(executor)
        for (tool, args), answer in zip(WAYS, answers, strict=True):
            assert not answer["ok"], (tool, args)
            assert "link" in answer["tool_result"]["stderr"], answer
            assert "hidden" not in json.dumps(answer)
        assert left == "hidden\ndeep\nkey\n"
        plain = await executor.run("file.read", path="public/note")
        assert plain["tool_result"]["stdout"] == "shown\n"
        listed = await executor.run("file.list", path="public", recursive=True)
        names = {each["path"] for each in json.loads(listed["tool_result"]["stdout"])}
        assert names == {f"public/{each}" for each in ("alias", "innocent", "note", "sub", "way")}


READS_NOTE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bash.exec", {"cmd": "cat note"}),
    ("python.exec", {"code": "print(open('note').read())"}),
    ("exec", {"command": "cat", "params": ["note"]}),
)


async def test_no_link_walks_around_a_rule_about_where_a_command_runs(tmp_path: Path) -> None:
    async with under(COMMANDS, tmp_path) as (_, executor):
        await executor.run("bash.exec", cmd=f"{PREPARE}; echo hidden > secrets/note", cwd=".")
        for tool, args in READS_NOTE:
            refused = await executor.run(tool, cwd="public/way", **args)
            assert not refused["ok"]
            assert "link" in refused["tool_result"]["stderr"], refused
            assert "hidden" not in json.dumps(refused)
            shown = await executor.run(tool, cwd="public", **args)
            assert "shown" in shown["tool_result"]["stdout"], shown


async def test_where_no_rule_is_about_paths_links_are_followed(tmp_path: Path) -> None:
    async with under(NONE, tmp_path) as (_, executor):
        *answers, left = await walk(executor)
        assert [answer["ok"] for answer in answers] == [True] * len(WAYS)
        assert left == "changeddeep\nkey\nnew\n"


async def test_a_listing_shows_nothing_that_a_rule_denies(tmp_path: Path) -> None:
    async with under(DENIED, tmp_path) as (_, executor):
        await executor.run("bash.exec", cmd=PREPARE)
        for args in ({}, {"path": "."}, {"path": "/workspace"}, {"path": "public/.."}):
            listed = await executor.run("file.list", recursive=True, **args)
            assert "public/note" in listed["tool_result"]["stdout"].replace("public/../", "")
            assert "secrets" not in json.dumps(listed), args
