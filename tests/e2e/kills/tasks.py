"""Clients that submit browser tasks: over /mcp with a key, and in the console without one."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Final

from tests.e2e.kills.commands import Client
from tests.e2e.kills.installation import OPERATOR, Installation
from tests.e2e.kills.operations import Operation
from toolgate.tasks.state import TERMINAL

TEMPLATE: Final = "batch_extract_pages"
INPUTS: Final = {"urls": ["http://pages.toolgate.example/"]}
ACCEPTS: Final = {"Accept": "application/json, text/event-stream"}
PROTOCOL: Final = "2025-06-18"
MOST: Final = 4  # tasks between two kills: each starts a program that is no browser


@dataclass
class TaskClient(Client):
    """A task is acknowledged with its run's id; the run comes to one end."""

    async def live(self, at: Installation) -> None:
        await self.connect(at)
        for _ in range(MOST):
            await self._ask(at, self._open or self._begin())

    async def settle(self, at: Installation) -> None:
        await self.connect(at)
        await super().settle(at)

    async def connect(self, at: Installation) -> None:
        """Open a session, where there is one."""

    async def run(self, at: Installation, run_id: str) -> Any:
        raise NotImplementedError

    async def check_again(self, at: Installation, operation: Operation) -> None:
        """The run is there and comes to an end."""
        while (await self.run(at, operation.answer["runId"]))["status"] not in TERMINAL:
            await asyncio.sleep(0.05)

    def next_operation(self) -> Operation:
        return Operation(f"{self.name}-{next(self._numbers)}")


@dataclass
class McpClient(TaskClient):
    """run_task_template with an idempotencyKey: JSON-RPC by hand, a session for each start."""

    _session: dict[str, str] = field(default_factory=dict)
    _ids: Any = field(default_factory=itertools.count)

    async def connect(self, at: Installation) -> None:
        self._session = {}
        client = {"name": "kills", "version": "1"}
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        await self._rpc(at, "initialize", params)
        await self._rpc(at, "notifications/initialized")

    async def _rpc(self, at: Installation, method: str, params: Any = None) -> Any:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message |= {"id": next(self._ids), "params": params}
        headers = {**at.device, **ACCEPTS, **self._session, "MCP-Protocol-Version": PROTOCOL}
        answer = await at.ask("POST", f"{at.gateway}/mcp", message, headers=headers)
        assert answer.status < 300, (method, answer)
        if session := answer.headers.get("mcp-session-id"):
            self._session = {"mcp-session-id": session}
        if params is None:
            return None
        lines = [line for line in answer.body.decode().splitlines() if line.startswith("data:")]
        for body in (line.removeprefix("data:").strip() for line in lines):
            if body and (told := json.loads(body)).get("id") == message["id"]:
                return told["result"]
        if not lines:
            return json.loads(answer.body)["result"]
        raise ConnectionResetError("the stream ended before the answer")

    async def _call(self, at: Installation, tool: str, arguments: dict[str, Any]) -> Any:
        params = {"name": tool, "arguments": arguments}
        return (await self._rpc(at, "tools/call", params))["structuredContent"]

    async def _submit(self, at: Installation, operation: Operation) -> Any:
        options = {"mode": "async", "idempotencyKey": operation.id}
        arguments = {"templateId": TEMPLATE, "inputs": INPUTS, "options": options}
        return await self._call(at, "run_task_template", arguments)

    async def send(self, at: Installation, operation: Operation) -> None:
        run = await self._submit(at, operation)
        operation.acknowledge({"runId": run["runId"]}, ())

    async def check_again(self, at: Installation, operation: Operation) -> None:
        again = await self._submit(at, operation)
        assert again["deduplicated"] is True, f"{operation}, then {again}"
        assert again["runId"] == operation.answer["runId"], f"{operation}, then {again}"
        await super().check_again(at, operation)

    async def run(self, at: Installation, run_id: str) -> Any:
        return await self._call(at, "get_task_run", {"runId": run_id})


@dataclass
class ConsoleClient(TaskClient):
    """POST /tasks, which takes no key: what is not answered is not repeated."""

    has_id: bool = False

    async def _as_operator(self, at: Installation, method: str, path: str, body: Any = None) -> Any:
        bearer = {"Authorization": f"Bearer {OPERATOR}"}
        answer = await at.ask(method, at.program.urls["gateway"] + path, body, headers=bearer)
        assert answer.status == 200, answer
        return answer.told["data"]

    async def send(self, at: Installation, operation: Operation) -> None:
        body = {"templateId": TEMPLATE, "inputs": INPUTS}
        run = await self._as_operator(at, "POST", "/tasks", body)
        operation.acknowledge({"runId": run["runId"]}, ())

    async def run(self, at: Installation, run_id: str) -> Any:
        return await self._as_operator(at, "GET", f"/tasks/{run_id}")


def task_clients() -> list[Client]:
    return [McpClient("mcp-task"), ConsoleClient("console-task")]
