"""The durable commits of one call that a person approves: of an agent, of a command.

Each is a sync of the disk that somebody waits for. The count is exact: who adds one changes it
here, and says why.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, Client, hang_up
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything
from toolgate.journal.journal import Append, Event, Operation, Overwrite, Put
from toolgate.journal.sqlite.journal import SqliteJournal

POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: ask, ask: echo, match: any, reason: For the test}
"""
OPERATOR = "operator-of-this-test"
COMMITS = 5  # turn, ask, decision, start, result


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


@contextlib.asynccontextmanager
async def asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Installation, Commits]]:
    """A Toolgate whose policy asks, and its commits from now on."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    given = {
        "TOOLGATE_HOME": str(tmp_path / "home"),
        "POLICY_FILE": str(policy),
        "HEARTBEAT": "",
        "OPERATOR_TOKEN": OPERATOR,
    }
    installation = await start_everything(table.load({**ANY_PORT, **given}, environment={}))
    try:
        yield installation, Commits(monkeypatch)
    finally:
        await hang_up()
        await installation.stop()


async def test_an_approved_call_of_an_agent_takes_five_durable_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path, monkeypatch) as (installation, commits):
        client = await Client.connect(installation.urls["ingress_ws"])
        await client.invoke('[[tool:echo {"text": "x"}]]', agent="script")
        asked = (await client.hear_until("approval_required"))[-1]
        ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
        await client.say("approval_decision", decision="approve", **ids)
        await client.hear_until("done")
    made = commits.about(asked["tool_call_id"])
    assert len(made) == COMMITS, "\n".join(made)


async def test_an_approval_and_the_command_that_waits_for_it_are_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two commits would leave an approval that no command waits for."""
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    device = {"X-Device-Id": "laptop", "Idempotency-Key": "k"}
    body = {"payload": {"name": "echo", "args": {"text": "x"}}}
    async with (
        asking(tmp_path, monkeypatch) as (installation, commits),
        aiohttp.ClientSession(installation.urls["gateway"]) as http,
    ):
        await http.get("/status", headers=device)
        pair = http.post("/pairing/approve", json={"deviceId": "laptop"}, headers=operator)
        device["X-Device-Token"] = (await pair).headers["X-Device-Token"]
        answer = await (await http.post("/command/tool", json=body, headers=device)).json()
        approval_id = answer["data"]["approvalId"]
        decide = f"/approvals/{approval_id}/decide"
        approve = http.post(decide, json={"decision": "approve"}, headers=operator)
        assert (await approve).status == 200
        state = f"/command/{answer['data']['requestId']}?wait=20"
        ended = await (await http.get(state, headers=device)).json()
        assert ended["data"]["answer"]["ok"] is True, ended
    call_id = approval_id.removeprefix("apr_")
    made = commits.about(call_id)
    assert len(made) == 4, "\n".join(made)  # ask, decision, start, result
    (ask,) = [one for one in commits.made if _puts(one, "approvals", expected=0)]
    assert {"executions", "open_commands", "idempotency"} <= {
        put.collection for put in ask if isinstance(put, Put | Overwrite)
    }


def _puts(operations: tuple[Operation, ...], collection: str, *, expected: int) -> bool:
    return any(
        isinstance(one, Put) and (one.collection, one.expected) == (collection, expected)
        for one in operations
    )
