"""The durable commits of one call of an agent that a person approves.

Each is a sync of the disk that somebody waits for. The count is exact: who adds one changes it
here, and says why.
"""

from pathlib import Path

import pytest

from tests.e2e.harness import ANY_PORT, Client, hang_up
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.journal.journal import Append, Event, Operation
from toolgate.journal.sqlite.journal import SqliteJournal

POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: ask, ask: echo, match: any, reason: For the test}
"""
COMMITS = 8  # turn, ask, paused, decision, start, running, result, end


class Commits:
    """The durable commits that a journal has made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Operation, ...]] = []
        commit = SqliteJournal.commit

        async def noted(
            journal: SqliteJournal, *operations: Operation, durable: bool = True
        ) -> list[Event]:
            events = await commit(journal, *operations, durable=durable)  # a conflict is none
            if durable:
                self.made.append(operations)
            return events

        patch.setattr(SqliteJournal, "commit", noted)

    def about(self, call_id: str) -> list[str]:
        """What each of those that name this call has written."""
        return [_outline(one) for one in self.made if call_id in repr(one)]


def _outline(operations: tuple[Operation, ...]) -> str:
    appended = (one for one in operations if isinstance(one, Append))
    return ", ".join(
        f"{one.stream.partition('/')[0]}: {'+'.join(new.type for new in one.events)}"
        for one in appended
    )


async def test_an_approved_call_of_an_agent_takes_eight_durable_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    given = {"TOOLGATE_HOME": str(tmp_path / "home"), "POLICY_FILE": str(policy), "HEARTBEAT": ""}
    installation = await start_everything(table.load({**ANY_PORT, **given}, environment={}))
    commits = Commits(monkeypatch)
    try:
        client = await Client.connect(installation.urls["ingress_ws"])
        await client.invoke('[[tool:echo {"text": "x"}]]', agent="script")
        asked = (await client.hear_until("approval_required"))[-1]
        ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
        await client.say("approval_decision", decision="approve", **ids)
        await client.hear_until("done")
    finally:
        await hang_up()
        await installation.stop()
    made = commits.about(asked["tool_call_id"])
    assert len(made) == COMMITS, "\n".join(made)
