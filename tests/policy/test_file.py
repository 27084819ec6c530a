"""The policy as a file: read strictly, reloaded safely."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.support.policies import PARSE, open_policy
from toolgate.core.enums import Level
from toolgate.core.errors import Conflict, Refused
from toolgate.core.tools import ToolRequest
from toolgate.policy.compile import default_allow_policy
from toolgate.policy.decide import decide
from toolgate.policy.file import (
    MAX_BYTES,
    default_policy_text,
    load_policy,
    parse_document,
)
from toolgate.policy.model import Effect, InvalidPolicy, Policy

GOOD = """
version: 1
rules:
  - {id: a, allow: kv.get, match: any, reason: It only reads}
"""
BETTER = GOOD.replace("kv.get", "[kv.get, kv.set]")


def allows(policy: Policy, tool: str) -> bool:
    call = ToolRequest("r", tool, {})
    return decide(policy, call, level=Level.READ, parse_shell=PARSE).effect is Effect.ALLOW


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "does not hold a mapping"),
        ("- a", "does not hold a mapping"),
        ("just words", "does not hold a mapping"),
        ("version: [1", "line"),
        ("version: 1\n  name: x", "line 2"),
        ("version: 1\n\tname: x", "line 2"),
        ("version: 1\nversion: 1", "line 2: the key version is there twice"),
        ("version: 1\nrules:\n  - {id: a, id: b}", "line 3: the key id is there twice"),
        ("version: 1\ngroups: &g {a: []}", "line 2: anchors and aliases are not taken"),
        ("a: &a [x]\nb: [*a, *a]", "anchors and aliases"),
        ("version: 1\n<<: {name: x}", "keys must be plain names"),
        ("? [a]\n: b", "keys must be plain names"),
        ("version: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("version: !!binary aGk=", "version: is a bytes"),
        ("version: 1\nname: 2026-11-15", "name: is a date"),
        ("version: 1\nname: .inf", "name: must be a finite number"),
        ("version: 1\n5: x", "the key 5 is not text"),
        ("version: 1\nrules: [{id: a, when: {args.n: {yes: 1}}}]", "the key True is not text"),
        ("x: " + "[" * 40 + "]" * 40, "nested more than"),
        ("x: " + "[a, " * 5000 + "a" + "]" * 5000, "nested more than"),
        ("x: [" + "a," * 250_000 + "]", "more than 200000 parts"),
        ("x: " + "y" * MAX_BYTES, "larger than"),
        ("version: 1\n---\nversion: 1", "line 2"),
        ("version: 1\nname: \x07", "not YAML"),
        ("version: 1\nrulez: []", "rulez: unknown key"),
    ],
)
def test_a_file_that_is_broken_is_refused_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        load_policy(text, parse_shell=PARSE)
    assert problem in str(refused.value)


def test_an_alias_bomb_is_refused_before_it_unfolds() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(InvalidPolicy):
        parse_document("\n".join(["l0: &l0 [x]", *levels]), name="bomb")


def test_a_file_whose_own_tests_fail_is_refused() -> None:
    text = GOOD + "tests:\n  - {call: kv.set, expect: allow}\n"
    with pytest.raises(InvalidPolicy) as refused:
        load_policy(text, parse_shell=PARSE)
    assert "tests[0]: kv.set expected allow, got deny by default_deny" in str(refused.value)


def test_a_test_that_names_another_rule_than_the_one_that_decides_fails() -> None:
    text = GOOD + "tests:\n  - {call: kv.set, expect: deny, rule: a}\n"
    with pytest.raises(InvalidPolicy):
        load_policy(text, parse_shell=PARSE)


async def test_without_a_file_the_shipped_policy_is_in_force() -> None:
    file = await open_policy(None)
    assert allows(file.current, "echo")
    assert not allows(file.current, "kv.set")
    assert file.text == default_policy_text()


async def test_a_ref_finds_the_active_policy_or_one_with_a_name_and_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    open_one = default_allow_policy(name="policy.open")
    file = await open_policy(path, named={"policy.open": open_one})
    assert file.find("policy.default") is file.current
    assert file.find("policy.open") is open_one
    assert file.find("policy.none") is None


async def test_a_start_with_a_broken_file_fails(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 9")
    with pytest.raises(InvalidPolicy):
        await open_policy(path)
    with pytest.raises(FileNotFoundError):
        await open_policy(tmp_path / "absent.yaml")


async def test_a_changed_file_comes_into_force_and_a_broken_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    assert not await file.refresh()

    path.write_text(BETTER)
    assert await file.refresh()
    assert allows(file.current, "kv.set")

    path.write_text("version: 1\nrules: [")
    assert not await file.refresh()
    assert not await file.refresh()
    assert allows(file.current, "kv.set")
    assert file.error

    path.write_text(BETTER)
    await file.refresh()
    assert file.error == ""


async def test_a_file_that_vanishes_leaves_the_last_good_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    aside = path.rename(tmp_path / "aside")
    assert not await file.refresh()
    assert file.error
    assert allows(file.current, "kv.get")
    aside.rename(path)
    await file.refresh()
    assert file.error == ""


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (MAX_BYTES + 1)])
async def test_a_file_that_is_no_text_or_too_large_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    path.write_bytes(content)
    assert not await file.refresh()
    assert file.error
    assert allows(file.current, "kv.get")


async def test_the_same_text_with_another_time_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    before = file.current
    os.utime(path, ns=(1, 1))
    assert not await file.refresh()
    assert file.current is before


async def test_watching_takes_up_a_change_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    watching = asyncio.create_task(file.watch(poll_seconds=0.01))
    path.write_text(BETTER)
    async with asyncio.timeout(10):
        while not allows(file.current, "kv.set"):
            await asyncio.sleep(0.01)
    watching.cancel()


async def test_a_file_that_is_still_being_written_is_not_taken_up(tmp_path: Path) -> None:
    """Each part of a copy may be a policy as well: one without the denials at its end."""
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    await file.look()
    opened = "version: 1\nrules:\n  - {id: all, allow: '*', match: any, reason: So far}\n"
    path.write_text(opened)
    await file.look()
    assert not allows(file.current, "kv.set")
    path.write_text(opened + "  - {id: never, deny: kv.set, match: any, reason: Never}\n")
    await file.look()
    assert not allows(file.current, "echo")
    await file.look()
    assert allows(file.current, "echo")
    assert not allows(file.current, "kv.set")


async def test_a_file_that_cannot_be_written_is_said_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "policy.yaml"
    path.parent.mkdir()
    path.write_text(GOOD)
    file = await open_policy(path)
    before = file.current
    shutil.rmtree(path.parent)
    with pytest.raises(Refused, match=r"policy\.yaml cannot be written: No such file"):
        await file.replace(BETTER)
    assert (file.current, file.text) == (before, GOOD)


async def test_a_link_to_the_policy_stays_one_where_another_is_put_in_force(tmp_path: Path) -> None:
    kept, path = tmp_path / "team" / "policy.yaml", tmp_path / "policy.yaml"
    kept.parent.mkdir()
    kept.write_text(GOOD)
    path.symlink_to(kept)
    file = await open_policy(path)
    await file.replace(BETTER)
    assert path.is_symlink()
    assert kept.read_text() == BETTER
    assert not await file.refresh()


async def test_a_text_can_be_put_in_the_file_and_in_force(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    path.chmod(0o640)
    file = await open_policy(path)
    await file.replace(BETTER)
    assert path.read_text() == BETTER == file.text
    assert path.stat().st_mode & 0o777 == 0o640
    assert allows(file.current, "kv.set")
    assert not await file.refresh()


async def test_a_text_that_was_put_in_the_file_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    synced: list[tuple[Path, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        what = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((what, path.read_text() == BETTER))
        sync(descriptor)

    policies = await open_policy(path)
    monkeypatch.setattr(os, "fsync", noted)
    await policies.replace(BETTER)
    assert synced[-1] == (tmp_path, True)


async def test_a_bad_text_is_not_put_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    file = await open_policy(path)
    with pytest.raises(InvalidPolicy):
        await file.replace("version: 2")
    assert path.read_text() == GOOD
    assert [each.name for each in tmp_path.iterdir()] == ["policy.yaml"]
    with pytest.raises(InvalidPolicy):
        await (await open_policy(None)).replace(GOOD)


async def test_of_two_changes_to_one_version_the_second_is_told_that_it_came_late(
    tmp_path: Path,
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    policy = await open_policy(path)
    seen = policy.current.version
    ended = await asyncio.gather(
        policy.replace(BETTER, over=seen),
        policy.replace(GOOD.replace("kv.get", "kv.list"), over=seen),
        return_exceptions=True,
    )
    assert isinstance(ended[0], Policy)
    assert isinstance(ended[1], Conflict)
    assert path.read_text() == BETTER
    assert policy.text == BETTER
