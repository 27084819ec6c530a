"""Clients that ask over HTTP and over /v2/ws: each sends one request after the other, with its id."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.harness import PATIENCE
from tests.e2e.kills.installation import DEVICE, EXECUTOR, Answer, Installation
from tests.e2e.kills.operations import Claim, Operation, claim_of
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.enums import Outcome

MOST = 40  # requests of one client between two kills


def script(tool: str, id_: str) -> str:
    """A message that makes the script agent call this tool."""
    return f"[[tool:{tool} {json.dumps({'id': id_})}]]"


@dataclass
class Client:
    """Sends requests until the connection breaks; the open one is sent again after the start."""

    name: str
    operations: list[Operation] = field(default_factory=list)
    checked: int = 0  # operations before this one belong to an earlier phase
    has_id: bool = True
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def next_operation(self) -> Operation:
        id_ = f"{self.name}-{next(self._numbers)}"
        return Operation(id_, effects=(id_,))

    async def live(self, at: Installation) -> None:
        for _ in range(MOST):
            await self._ask(at, self._open or self._begin())

    async def settle(self, at: Installation) -> None:
        """Get the answer of the request that is open."""
        if self._open is not None:
            await self._ask(at, self._open)

    @property
    def _open(self) -> Operation | None:
        last = self.operations[-1] if self.operations else None
        return last if last is not None and self.has_id and not last.is_acknowledged else None

    def _begin(self) -> Operation:
        self.operations.append(self.next_operation())
        return self.operations[-1]

    async def _ask(self, at: Installation, operation: Operation) -> None:
        operation.attempts += 1
        await self.send(at, operation)
        at.acknowledged += 1

    async def send(self, at: Installation, operation: Operation) -> None:
        raise NotImplementedError

    async def check_again(self, at: Installation, operation: Operation) -> None:
        """Send an acknowledged request again: the answer is the same."""


Payload = Callable[[str], dict[str, Any]]


@dataclass
class CommandClient(Client):
    """POST /command/{kind}; approves what waits, and asks until there is an answer."""

    kind: str = "tool"
    payload: Payload = field(default=lambda _: {})
    names: tuple[str, ...] = ("",)  # endings of the effects' ids
    keyed: bool = True

    def __post_init__(self) -> None:
        self.has_id = self.keyed

    def next_operation(self) -> Operation:
        id_ = f"{self.name}-{next(self._numbers)}"
        return Operation(id_, tuple(f"{id_}{name}" for name in self.names))

    async def post(self, at: Installation, operation: Operation) -> Answer:
        headers = {**at.device, **({"Idempotency-Key": operation.id} if self.keyed else {})}
        body = {"requestId": operation.id, "payload": self.payload(operation.id)}
        return await at.ask("POST", f"{at.gateway}/command/{self.kind}", body, headers=headers)

    async def send(self, at: Installation, operation: Operation) -> None:
        answer = await self.post(at, operation)
        while answer.status == 202:
            await self._until_done(at, operation, answer.told["data"])
            answer = await self.post(at, operation)
        claims = self._claims(answer.told, len(operation.effects))
        operation.is_stored = answer.told["ok"] or Claim.ABSENT not in claims
        operation.acknowledge(answer.body, claims)

    async def _until_done(self, at: Installation, operation: Operation, state: Any) -> None:
        while state["status"] != wire.CommandStatus.DONE:
            if asked := state.get("approvalId"):
                assert operation.approval_id in ("", asked), "asked twice"
                operation.approval_id = asked
                await at.decide(asked)
            state = await self._state(at, operation, "?wait=0.2")

    async def _state(self, at: Installation, operation: Operation, query: str = "") -> Any:
        url = f"{at.gateway}/command/{operation.id}{query}"
        answer = await at.ask("GET", url, headers=at.device)
        assert answer.status == 200, f"{operation}: {answer}"
        return answer.told["data"]

    def _claims(self, told: Any, count: int) -> list[Claim]:
        """By the answer alone."""
        if not told["ok"]:
            return [_refusal(told["error"])] * count
        match self.kind:
            case "tool":
                return [
                    claim_of(ok=result["success"], outcome=result.get("outcome"))
                    for result in told["data"]["results"]
                ]
            case "system":
                return [claim_of(ok=told["data"]["exitCode"] == 0, outcome=None)]
            case "agent":
                return [claim_of(ok="counted" in told["data"]["output"], outcome=None)]
            case _:
                return [Claim.THERE]

    async def check_again(self, at: Installation, operation: Operation) -> None:
        state = await self._state(at, operation)
        assert state["status"] == wire.CommandStatus.DONE, str(operation)
        if self.keyed:
            again = await self.post(at, operation)
            assert again.headers.get(wire.HEADER_IDEMPOTENT_REPLAYED) == "true", (
                f"{operation}, then {again}"
            )
            assert again.body == operation.answer, f"{operation}, then {again}"
        assert state["answer"] == json.loads(operation.answer), f"{operation}, state {state}"


@dataclass
class SocketClient(Client):
    """`command.tool` over /v2/ws."""

    async def live(self, at: Installation) -> None:
        async with self._connected(at) as socket:
            self._socket = await self._hello(socket, at)
            await super().live(at)

    async def settle(self, at: Installation) -> None:
        if self._open is not None:
            async with self._connected(at) as socket:
                self._socket = await self._hello(socket, at)
                await super().settle(at)

    def _connected(self, at: Installation) -> Any:
        return at.http.ws_connect(f"{at.gateway}{wire.V2_PATH}")

    async def _hello(self, socket: Any, at: Installation) -> Any:
        await _frame(socket)  # the challenge
        auth = {"token": at.device["X-Device-Token"]}
        connect = {"type": "connect", "deviceId": DEVICE, "clientType": "test", "capabilities": []}
        await socket.send_json({**connect, "auth": auth})
        assert (await _frame(socket))["ok"]
        return socket

    async def _request(self, socket: Any, operation: Operation) -> Any:
        params = {
            "requestId": operation.id,
            "payload": {"name": "mcp.till.add", "args": {"id": operation.id}},
        }
        request = {"type": "req", "id": operation.id, "method": "command.tool", "params": params}
        await socket.send_json({**request, "idempotencyKey": operation.id})
        while (answer := await _frame(socket))["type"] != "res":
            pass
        assert answer["id"] == operation.id
        return answer

    async def send(self, at: Installation, operation: Operation) -> None:
        answer = await self._request(self._socket, operation)
        answer.pop("replayed", None)
        if answer["ok"]:
            (result,) = answer["data"]["results"]
            claim = claim_of(ok=result["success"], outcome=result.get("outcome"))
        else:
            claim = _refusal(answer["error"])
        operation.is_stored = answer["ok"] or claim is not Claim.ABSENT
        operation.acknowledge(answer, [claim])

    async def check_again(self, at: Installation, operation: Operation) -> None:
        async with self._connected(at) as socket:
            again = await self._request(await self._hello(socket, at), operation)
        assert again.pop("replayed") is True
        assert again == operation.answer, f"{operation}, then {again}"


def _refusal(error: Mapping[str, Any]) -> Claim:
    """An error without an outcome refuses a command before it begins."""
    return claim_of(ok=False, outcome=error.get("outcome", Outcome.NOT_STARTED))


async def _frame(socket: Any) -> Any:
    message = await socket.receive(timeout=PATIENCE)
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionResetError(str(message.type))
    return json.loads(message.data)


@dataclass
class ExecutorClient(Client):
    """POST /tool/run with a request_id of its own; one that waits is approved and sent again."""

    tool: str = "mcp.till.add"

    async def _post(self, at: Installation, operation: Operation) -> Answer:
        body = {"request_id": operation.id, "tool_id": self.tool, "args": {"id": operation.id}}
        headers = {"Authorization": f"Bearer {EXECUTOR}"}
        return await at.ask("POST", f"{at.gateway}/tool/run", body, headers=headers)

    async def send(self, at: Installation, operation: Operation) -> None:
        told = (await self._post(at, operation)).told
        while told.get("policy_check", {}).get("rule_id") == "approval_required":
            await at.decide(await _waiting_for(at, operation))
            told = (await self._post(at, operation)).told
        assert "ok" in told, told
        operation.acknowledge(told, [claim_of(ok=told["ok"], outcome=told.get("outcome"))])

    async def check_again(self, at: Installation, operation: Operation) -> None:
        again = (await self._post(at, operation)).told
        assert again == operation.answer, f"{operation}, then {again}"


async def _waiting_for(at: Installation, operation: Operation) -> str:
    page = await at.operator("GET", "/approvals?limit=50")
    asked = [one for one in page["data"]["items"] if one.get("requestId") == operation.id]
    assert len(asked) == 1, (operation, asked)
    operation.approval_id = str(asked[0]["approvalId"])
    return operation.approval_id


def call(tool: str) -> Payload:
    return lambda id_: {"name": tool, "args": {"id": id_}}


def action(name: str) -> Payload:
    return lambda id_: {"capabilityId": "mcp.till", "action": name, "args": {"id": id_}}


def several(id_: str) -> dict[str, Any]:
    """A read and two writes in one command."""
    calls = (("look", "-look"), ("add", "-one"), ("add", "-two"))
    return {
        "toolCalls": [
            {"id": name, "name": f"mcp.till.{tool}", "arguments": {"id": f"{id_}{name}"}}
            for tool, name in calls
        ]
    }


def command_clients() -> list[Client]:
    return [
        CommandClient("write", payload=call("mcp.till.add")),
        CommandClient("read", payload=call("mcp.till.look")),
        CommandClient(
            "echo", payload=lambda id_: {"name": "echo", "args": {"text": id_}}, keyed=False
        ),
        CommandClient("unkeyed-read", kind="mcp", payload=action("look"), keyed=False),
        CommandClient("several", payload=several, names=("-look", "-one", "-two")),
        CommandClient("approval", payload=call("mcp.till.pay")),
        CommandClient(
            "system-exec",
            kind="system",
            payload=lambda id_: {"action": "exec", "args": {"cmd": f"echo {id_}"}},
        ),
        CommandClient(
            "bash-exec",
            payload=lambda id_: {"name": "bash.exec", "args": {"cmd": f"echo {id_}"}},
        ),
        CommandClient("mcp", kind="mcp", payload=action("add")),
        *(
            CommandClient(
                f"agent-{mode}",
                kind="agent",
                payload=lambda id_, mode=mode, tool=tool: {  # type: ignore[misc]
                    "agentId": "script",
                    "message": script(tool, id_),
                    "mode": mode,
                },
            )
            for mode, tool in (("sync", "mcp.till.add"), ("async", "mcp.till.pay"))
        ),
        SocketClient("v2"),
        ExecutorClient("tool-run"),
        ExecutorClient("tool-run-approval", tool="mcp.till.pay"),
    ]
