"""A call that waits for a person is answered with one text at every surface.

`test_every_way_in.py` checks the same for a call that is refused.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.architecture.ways_in import (
    COMMANDS,
    EXECUTOR,
    INPUTS,
    OF_UPSTREAM,
    OPERATOR,
    RUN_TASK,
    SUBMITTED,
    TASK,
    Toolgate,
    begin_program,
    command,
    console,
    console_task,
    denying_everything,
    mcp_call,
    mcp_client,
    mcp_task,
    program,
    script,
    socket_command,
    tool_run,
)
from tests.e2e.harness import PATIENCE, Client
from toolgate.policy.model import Effect
from toolgate.policy.refusal_texts import refusal_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK_ALL: Final = """\
version: 1
name: ask-all
default: deny
rules:
  - {id: ask-all, ask: "*", match: any, reason: For the test}
"""
Hear = Callable[[Toolgate], Awaitable[object]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolgate]:
    """An installation that has denied one call, and asks about every call from now on."""
    async with denying_everything(tmp_path_factory.mktemp("asked")) as started:
        await tool_run(started)
        await started.operator("PUT", "/policy", {"text": ASK_ALL})
        yield started


async def answer(gate: Toolgate, call: Callable[[Toolgate], Awaitable[Any]]) -> object:
    return (await call(gate)).answer


async def websocket(gate: Toolgate, tool: str, offers: tuple[str, ...] = ()) -> object:
    client = await Client.connect(gate.urls["ingress_ws"], client_meta={"tools": list(offers)})
    await client.invoke(script(tool, {"text": "x"}), agent="script")
    heard = await client.hear_until("approval_required")
    await client.close()
    return heard


async def tool_run_events(gate: Toolgate) -> object:
    """`POST /tool/run` whose answer is a stream of events."""
    body = {"request_id": gate.fresh("request"), "tool_id": "echo", "args": {"text": "x"}}
    headers = {"Authorization": f"Bearer {EXECUTOR}", "Accept": "text/event-stream"}
    url = f"{gate.urls['gateway']}/tool/run"
    async with gate.http.post(url, json=body, headers=headers) as stream:
        return await stream.text()


async def schedule(gate: Toolgate) -> object:
    """The events, once the job of a schedule waits."""
    url, headers = gate.urls["gateway"], {"Authorization": f"Bearer {OPERATOR}"}
    since, heard = 0, ""
    async with asyncio.timeout(PATIENCE):
        while "tool pending" not in heard:
            path = f"{url}/events/poll?since={since}&wait=1"
            _, page = await gate.ask("GET", path, headers=headers)
            since = page["cursor"]
            heard += "\n".join(event["message"] for event in page["events"])
    return heard


async def mcp_run(gate: Toolgate) -> object:
    """The run, as `get_task_run` shows it under a policy that lets it be read."""
    started: Any = (await mcp_call(gate, RUN_TASK, TASK)).answer
    reading = (
        ASK_ALL + "  - {id: read, allow: browser.get_task_run, match: any, reason: It reads}\n"
    )
    reading = reading.replace('ask: "*"', 'ask: "browser.*_page"')
    await gate.operator("PUT", "/policy", {"text": reading})
    try:
        async with mcp_client(gate, "http") as client:
            shown = await client.call_tool("get_task_run", {"runId": started["runId"]})
    finally:
        await gate.operator("PUT", "/policy", {"text": ASK_ALL})
    return shown.structured_content


async def console_run(gate: Toolgate) -> object:
    """The page of a task, as the console reads it under a policy that lets it be read."""
    started: Any = (await console_task(gate)).answer
    reading = ASK_ALL.replace('ask: "*"', 'ask: "browser.*_page"')
    reading += "  - {id: read, allow: browser.get_task_run, match: any, reason: It reads}\n"
    await gate.operator("PUT", "/policy", {"text": reading})
    try:
        return (await console(gate, f"/tasks/{started['runId']}", method="GET"))[1]
    finally:
        await gate.operator("PUT", "/policy", {"text": ASK_ALL})


async def task_command(gate: Toolgate) -> object:
    """`toolgate task run` says on stderr what it waits for, until it is interrupted."""
    reading = ASK_ALL.replace('ask: "*"', 'ask: "browser.*_page"')
    reading += "  - {id: read, allow: 'browser.*_task_run', match: any, reason: It reads}\n"
    await gate.operator("PUT", "/policy", {"text": reading})
    words = ("task", "run", "screenshot_page", "--inputs", json.dumps(INPUTS))
    where = ("--home", str(gate.home / "home"), "--url", gate.urls["gateway"])
    process = await begin_program(gate, *words, *where)
    assert process.stderr is not None
    try:
        heard = ""
        async with asyncio.timeout(PATIENCE):
            while "Waiting for approval" not in heard:
                line = await process.stderr.readline()
                assert line, heard
                heard += line.decode()
        process.send_signal(signal.SIGINT)
        await process.communicate()
    finally:
        await gate.operator("PUT", "/policy", {"text": ASK_ALL})
    return heard


async def explain(gate: Toolgate) -> object:
    policy = gate.home / "ask.yaml"
    policy.write_text(ASK_ALL)
    return await program(gate, "policy", "explain", str(policy), "--tool", "echo")


async def simulate(gate: Toolgate) -> object:
    return await gate.operator("POST", "/policy/simulate", {"text": ASK_ALL})


async def console_simulate(gate: Toolgate) -> object:
    status, told = await console(gate, "/policy/simulate", {"text": ASK_ALL})
    assert status == 200, told
    return told


SURFACES: Final[dict[str, tuple[str, Hear]]] = {  # the tool that is called, and the call
    "/tool/run": ("echo", partial(answer, call=tool_run)),
    "/tool/run as events": ("echo", tool_run_events),
    "/mcp": (SUBMITTED, partial(answer, call=partial(mcp_call, tool=RUN_TASK, arguments=TASK))),
    "/mcp/sse": (
        SUBMITTED,
        partial(answer, call=partial(mcp_call, tool=RUN_TASK, arguments=TASK, transport="sse")),
    ),
    "/mcp get_task_run": (SUBMITTED, mcp_run),
    "/mcp task of 2025-11-25": (SUBMITTED, partial(answer, call=mcp_task)),
    "console browser task": (SUBMITTED, partial(answer, call=console_task)),
    "console's page of a task": (SUBMITTED, console_run),
    "toolgate task": (SUBMITTED, task_command),
    "schedule of a tool": ("math.add", schedule),
    "toolgate policy explain": ("echo", explain),
    "POST /policy/simulate": ("echo", simulate),
    "console's simulation": ("echo", console_simulate),
    "WebSocket agent": ("echo", partial(websocket, tool="echo")),
    "client tool of a session": (
        "desk.open",
        partial(websocket, tool="desk.open", offers=("desk.open",)),
    ),
    **{
        f"/command/{kind}": (
            COMMANDS[kind][0],
            partial(answer, call=partial(command, kind=kind, payload=COMMANDS[kind][1])),
        )
        for kind in ("tool", "system", "mcp")
    },
    "/command/mcp of an upstream server": (
        "mcp.test.echo",
        partial(answer, call=partial(command, kind="mcp", payload=OF_UPSTREAM)),
    ),
    **{
        f"/v2/ws command.{kind}": (
            COMMANDS[kind][0],
            partial(answer, call=partial(socket_command, kind=kind, payload=COMMANDS[kind][1])),
        )
        for kind in ("tool", "system", "mcp")
    },
}


@pytest.mark.requirement("002/codes/one-text-asked")
@pytest.mark.parametrize("name", SURFACES)
async def test_a_call_that_waits_is_answered_with_the_one_text(gate: Toolgate, name: str) -> None:
    await check(gate, *SURFACES[name])


async def check(gate: Toolgate, tool: str, hear: Hear) -> None:
    heard = str(await hear(gate))
    found = re.search(r"Waiting for approval (\S+):", heard)
    approval_id = found[1] if found else ""
    expected = refusal_text(
        tool=tool,
        rule_id="ask-all",
        reason="For the test",
        effect=Effect.ASK,
        approval_id=approval_id,
    )
    assert expected in heard
    if approval_id:
        waiting = (await gate.operator("GET", "/approvals?limit=500"))["items"]
        assert approval_id in [one["approvalId"] for one in waiting]


async def test_a_tool_that_only_reads_is_refused_where_a_person_would_be_asked(
    gate: Toolgate,
) -> None:
    told = await mcp_call(gate, "list_task_runs", {})
    assert told.refused
    assert "nobody is asked about browser.list_task_runs [rule ask-all]" in str(told.answer)


async def test_the_operator_confirms_a_task_of_their_own_and_the_record_says_so(
    gate: Toolgate,
) -> None:
    started: Any = (await console_task(gate)).answer
    run_id = started["runId"]
    decide = f"/console/api/approvals/apr_{run_id}/decide"
    status, decided = await console(gate, decide, {"approve": True})
    assert (status, decided["confirmation"]) == (200, "self")
    assert (await console(gate, decide, {"approve": True}))[0] == 409
    listed = (await gate.operator("GET", "/approvals?limit=500"))["items"]
    [kept] = [one for one in listed if one["approvalId"] == f"apr_{run_id}"]
    assert (kept["decidedBy"], kept["confirmation"]) == ("operator (console)", "self")
    query = f"/audit/query?action=tool.run&runId={run_id}"
    async with asyncio.timeout(PATIENCE):
        while not (rows := (await gate.operator("GET", query))["items"]):
            await asyncio.sleep(0.02)
    assert [row["metadata"]["decision"] for row in rows] == ["allow"], "the decision counted once"


@pytest.mark.requirement("004/gate/cancel")
async def test_cancelling_a_task_that_waits_ends_its_approval_and_is_recorded_with_its_call(
    gate: Toolgate,
) -> None:
    started: Any = (await console_task(gate)).answer
    run_id = started["runId"]
    reading = ASK_ALL.replace('ask: "*"', 'ask: "browser.*_page"')
    reading += "  - {id: read, allow: browser.cancel_task_run, match: any, reason: It ends}\n"
    await gate.operator("PUT", "/policy", {"text": reading})
    try:
        canceled = (await console(gate, f"/tasks/{run_id}/cancel"))[1]["data"]
    finally:
        await gate.operator("PUT", "/policy", {"text": ASK_ALL})
    assert (canceled["success"], canceled["status"]) == (True, "canceled")
    query = f"/audit/query?action=tool.run&runId={run_id}"
    [row] = (await gate.operator("GET", query))["items"]
    assert (row["resourceId"], row["metadata"]["decision"]) == (SUBMITTED, "deny")
    too_late = await console(gate, f"/console/api/approvals/apr_{run_id}/decide", {"approve": True})
    assert too_late[0] == 409
