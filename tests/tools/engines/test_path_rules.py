"""File tools under rules about paths, in a real sandbox; once also in a container and over HTTP."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.engines import sandbox_of
from tests.tools.engines.test_transfers import behind_http
from toolgate.core.enums import Level, Outcome
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.policy.compile import compile_policy
from toolgate.policy.policies import Policies
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.sandbox.sessions import Sessions
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.engines.path_rules import PathRules
from toolgate.tools.engines.sandbox import SandboxEngine

PARSE = TreeSitterShellParser()
ANY = {"allow": "file.*", "match": "any"}
PREPARE = (
    "mkdir -p public/sub/deep secrets/deep; "
    "touch public/note public/sub/note public/sub/deep/note secrets/key secrets/deep/key; "
    "ln -s ../secrets public/way"
)
EVERYTHING = {
    "public",
    "public/note",
    "public/sub",
    "public/sub/deep",
    "public/sub/deep/note",
    "public/sub/note",
    "public/way",
    "secrets",
    "secrets/deep",
    "secrets/deep/key",
    "secrets/key",
}
PUBLIC = {each for each in EVERYTHING if each.startswith("public")}


def under(*rules: Any, engine: Engine) -> PathRules:
    numbered: Any = [{"id": f"r{at}", "reason": "why", **rule} for at, rule in enumerate(rules)]
    policy = compile_policy({"version": 1, "rules": numbered}, name="policy.default")
    return PathRules(engine, Policies(lambda _: policy, PARSE, lambda _: Level.READ))


def call(tool: str, **args: Any) -> ToolRequest:
    return ToolRequest("req_1", tool, args, Caller("t_1", "w_1", session="s_1"))


def names(output: ToolOutput) -> set[str]:
    assert output.ok, output.stderr
    return {each["path"] for each in json.loads(output.stdout)}


@pytest.fixture
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    where = getattr(request, "param", "bwrap")
    backend = "bwrap" if where == "runner" else where
    async with sandbox_of(backend, request) as sandbox, AsyncExitStack() as stack:
        sessions = Sessions(sandbox, clock=SystemClock())
        stack.push_async_callback(sessions.close)
        target: Engine = SandboxEngine(sessions)
        if where == "runner":
            target = await stack.enter_async_context(behind_http(target))
        await target.run(call("bash.exec", cmd=PREPARE))
        yield target


LISTINGS: Sequence[tuple[Sequence[Any], dict[str, Any], set[str]]] = [
    ([ANY], {}, EVERYTHING),
    ([ANY, {"deny": "file.*", "match": {"path": "secrets/**"}}], {}, PUBLIC),
    ([ANY, {"deny": "file.*", "match": {"path": "secrets/**"}}], {"path": "/workspace"}, PUBLIC),
    ([ANY, {"deny": "file.*", "match": {"path": "/workspace/secrets/**"}}], {}, PUBLIC),
    ([ANY, {"deny": "file.list", "match": {"arguments": {"path": "secrets*"}}}], {}, PUBLIC),
    # Without `**` the rule names the directory alone; what is in it is not walked all the same.
    ([ANY, {"deny": "file.*", "match": {"path": "secrets"}}], {}, PUBLIC),
    ([ANY, {"deny": "file.*", "match": {"path": "**/key"}}], {}, PUBLIC | {"secrets", "secrets/deep"}),
    ([ANY, {"deny": "file.read", "match": {"path": "secrets/**"}}], {}, EVERYTHING),
    # What asks is named in the listing of its directory, and not walked.
    ([ANY, {"ask": "file.*", "match": {"path": "secrets/**"}}], {}, PUBLIC | {"secrets"}),
    ([{"ask": "file.*", "match": {"path": "**"}}], {"path": "."}, EVERYTHING),
    (
        [
            {"ask": "file.*", "match": {"path": "**"}, "for": {"workspace": "w_1"}},
            {"deny": "file.*", "match": {"path": "secrets/**"}},
        ],
        {"path": "."},
        PUBLIC,
    ),
    # A directory that may be listed shows its names, and those of no other.
    ([{"allow": "file.*", "match": {"path": "."}}], {"path": "."}, {"public", "secrets"}),
    ([{"allow": "file.*", "match": {"path": "public/**"}}], {"path": "public"}, PUBLIC - {"public"}),
    (
        [{"allow": "file.*", "match": {"path": "/workspace/public/**"}}],
        {"path": "/workspace/public"},
        PUBLIC - {"public"},
    ),
    (
        [{"allow": "file.*", "match": {"path": ["public", "public/sub"]}}],
        {"path": "public"},
        PUBLIC - {"public", "public/sub/deep/note"},
    ),
]  # fmt: skip


async def test_a_recursive_listing_shows_what_the_caller_could_have_listed(place: Engine) -> None:
    for rules, args, shown in LISTINGS:
        listed = await under(*rules, engine=place).run(call("file.list", recursive=True, **args))
        assert names(listed) == shown, rules


async def test_a_listing_of_one_directory_leaves_out_what_a_rule_denies(place: Engine) -> None:
    rules = under(ANY, {"deny": "file.*", "match": {"path": "public/note"}}, engine=place)
    listed = names(await rules.run(call("file.list", path="public")))
    assert listed == {"public/sub", "public/way"}


@pytest.mark.parametrize("place", ["bwrap", "docker", "runner"], indirect=True)
async def test_a_link_is_refused_by_a_rule_of_any_effect_and_followed_without_one(
    place: Engine,
) -> None:
    for rule in (
        {"deny": "file.*", "match": {"path": "secrets/**"}},
        {"ask": "file.*", "match": {"path": "secrets/**"}},
        {"allow": "file.*", "match": {"path": "public/**"}},
    ):
        rules = under(ANY, rule, engine=place)
        for attempt in (
            call("file.read", path="public/way/key"),
            call("file.read", path="/workspace/public/way/key"),
            call("file.write", path="public/way/key", content="x"),
            call("file.list", path="public/way"),
        ):
            refused = await rules.run(attempt)
            assert not refused.ok
            assert "link" in refused.stderr
    free = under(ANY, {"deny": "shell", "match": {"path": "secrets/**"}}, engine=place)
    assert (await free.run(call("file.read", path="public/way/key"))).ok
    assert names(await free.run(call("file.list", path="public/way"))) == {
        "public/way/deep",
        "public/way/key",
    }


async def test_a_command_is_run_where_a_link_leads_unless_a_rule_looks_at_where_it_runs(
    place: Engine,
) -> None:
    for rule in (
        {"deny": "*.exec", "match": {"cwd": "secrets/**"}},
        {"ask": "*.exec", "match": {"cwd": "secrets/**"}},
        {"allow": "*.exec", "match": {"cwd": "public/**"}},
    ):
        rules = under(rule, engine=place)
        for cwd in ("public/way", "/workspace/public/way", "public/way/deep"):
            for attempt in (
                call("bash.exec", cmd="ls", cwd=cwd),
                call("python.exec", code="print(1)", cwd=cwd),
            ):
                refused = await rules.run(attempt)
                assert (refused.ok, refused.outcome) == (False, Outcome.NOT_STARTED)
                assert "link" in refused.stderr
        for cwd in ("public/sub", "", "."):
            assert (await rules.run(call("bash.exec", cmd="ls", cwd=cwd))).ok
    free = under({"deny": "*.exec", "match": {"path": "secrets/**"}}, engine=place)
    assert (await free.run(call("bash.exec", cmd="ls", cwd="public/way"))).stdout == "deep\nkey\n"


class Says:
    """An engine with one answer, which it also tells on the way."""

    ref = "says"

    def __init__(self, stdout: str, exit_code: int = 0) -> None:
        self._output = ToolOutput(exit_code, stdout=stdout)

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        update(self._output.stdout)
        return self._output


@pytest.mark.parametrize("said", ["", "mock-runner:file.list", "{}", "[1]", '["secrets/key"]'])
async def test_an_answer_that_cannot_be_read_is_shown_of_one_directory_and_not_of_what_lies_below(
    said: str,
) -> None:
    told: list[str] = []
    rules = under(ANY, {"deny": "file.*", "match": {"path": "secrets/**"}}, engine=Says(said))
    assert (await rules.run(call("file.list"))).stdout == said
    refused = await rules.run(call("file.list", recursive=True), update=told.append)
    assert (refused.ok, refused.stdout, refused.outcome) == (False, "", Outcome.EXECUTED)
    assert told == []
    shown = await under(ANY, engine=Says(said)).run(call("file.list"), update=told.append)
    assert (shown.stdout, told) == (said, [said])


async def test_an_entry_whose_path_cannot_be_told_is_not_shown_where_something_is_denied() -> None:
    said = json.dumps([{"path": "a\nb"}, {"path": 7}, {}, {"path": "../x"}, {"path": "plain"}])
    rules = under(ANY, {"deny": "file.*", "match": {"path": ["7", "None"]}}, engine=Says(said))
    assert names(await rules.run(call("file.list"))) == {"plain"}
