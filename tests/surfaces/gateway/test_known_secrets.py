"""What the operator gave us as a secret is not shown or written down, after a restart neither."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything

OPERATOR = "operator-token-of-the-tests"
OF_A_TARGET, OF_A_SERVER, OF_A_HEADER, OF_THE_FILE = (
    f"plain-words-of-the-{whose}" for whose in ("target", "server", "header", "file")
)
ALL_OF_THEM = (OF_A_TARGET, OF_A_SERVER, OF_A_HEADER, OF_THE_FILE)
NO_SECRET = "/usr/share/plain-words"
POLICY = """
version: 1
name: team
default: deny
rules:
  - {id: small, allow: echo, match: any, reason: Reads}
"""


@contextlib.asynccontextmanager
async def running(home: Path) -> AsyncIterator[Any]:
    settings = table.load(
        {
            "TOOLGATE_HOME": str(home / "home"),
            **{f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")},
            "OPERATOR_TOKEN": OPERATOR,
            "POLICY_FILE": str(home / "team.yaml"),
            "MCP_FILE": str(home / "mcp.json"),
            "LOG_LEVEL": "error",
        },
        environment={},
    )
    running = await start_everything(settings)
    try:
        async with aiohttp.ClientSession() as http:

            async def ask(method: str, path: str, body: Any, *, token: str = OPERATOR) -> Any:
                headers = {"Authorization": f"Bearer {token}"}
                url = running.urls["gateway"] + path
                async with http.request(method, url, json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    return (await answer.json())["data"]

            yield ask
    finally:
        await running.stop()


async def test_what_was_given_as_a_secret_is_masked_then_and_after_a_restart(
    tmp_path: Path,
) -> None:
    (tmp_path / "team.yaml").write_text(POLICY)
    environment = {"DOCS_API_KEY": OF_THE_FILE, "DOCS_ROOT": NO_SECRET}
    servers = {"docs": {"command": "true", "env": environment}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    text = " ".join((*ALL_OF_THEM, NO_SECRET))
    echo = {"payload": {"name": "echo", "args": {"text": text}}}
    heard = []
    async with running(tmp_path) as ask:
        target = {
            "tenantId": "t_default",
            "kind": "docker-runner",
            "endpoint": "https://runner.example",
            "authToken": OF_A_TARGET,
        }
        await ask("PUT", "/execution-targets/there", target)
        terms = {"scope": "mcp", "level": "write"}
        program = {"command": "true", "env": {"API_TOKEN": OF_A_SERVER}}
        at = {"url": "https://docs.example", "headers": {"Authorization": f"Bearer {OF_A_HEADER}"}}
        for name, server in (("mcp.program", program), ("mcp.url", at)):
            body = {**terms, "capabilityId": name, "server": server}
            await ask("POST", "/capabilities/register", body)
        script = (await ask("POST", "/tokens", {"name": "ci"}))["token"]
        heard.append(await ask("POST", "/command/tool", echo, token=script))
    async with running(tmp_path) as ask:
        heard.append(await ask("POST", "/command/tool", echo, token=script))
    for answer in heard:
        said = json.dumps(answer)
        assert NO_SECRET in said
        assert [secret for secret in ALL_OF_THEM if secret in said] == []
