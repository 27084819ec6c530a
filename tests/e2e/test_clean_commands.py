"""Commands that a rule allows by their words, in the installed program: earlier ones change nothing."""

from pathlib import Path

from tests.e2e.test_paths_in_the_policy import under

POLICY = """\
version: 1
name: clean
default: deny
rules:
  - {id: anything, allow: bash.exec, match: any, reason: As if a person had approved it}
  - id: reading
    allow: [shell, exec]
    match: {command: ["ls *", "git status", "env", "test *"]}
    reason: It only reads
"""
PREPARE = (
    "mkdir bin; printf '#!/bin/sh\\necho evil\\n' > bin/ls; chmod +x bin/ls; "
    "git init -q; git config core.fsmonitor 'touch /tmp/evil;:'; "
    "export PATH=$PWD/bin:$PATH COLOUR=blue; ls() { echo evil; }; export -f ls"
)


async def test_state_and_configuration_do_not_reach_a_command_that_a_rule_allows(
    tmp_path: Path,
) -> None:
    async with under(POLICY, tmp_path) as (_, executor):
        prepared = await executor.run("bash.exec", cmd=PREPARE)
        assert prepared["ok"], prepared
        approved = await executor.run("bash.exec", cmd="ls; echo $COLOUR")
        assert approved["tool_result"]["stdout"] == "evil\nblue\n"  # PATH lasts, and no function
        calls = (
            ("shell", {"command": "ls"}),
            ("exec", {"command": "ls", "params": []}),
            ("shell", {"command": "git status"}),
            ("exec", {"command": "git", "params": ["status"]}),
        )
        for tool, args in calls:
            answer = await executor.run(tool, **args)
            assert answer["ok"], answer
            assert "evil" not in answer["tool_result"]["stdout"], (tool, args)
        left = await executor.run("bash.exec", cmd="test -e /tmp/evil; echo $? $COLOUR")
        assert left["tool_result"]["stdout"] == "1 blue\n"
        refused = await executor.run("shell", command="test -v 'a[$(touch /tmp/evil)]'")
        assert not refused["ok"]
