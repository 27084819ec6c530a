"""Tokens that Toolgate makes are in the files that hold them, and in no other file of the home."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.harness import Client, running

MARK = {"X-Toolgate-Console": "1"}
TOKEN_FILES = {"operator.token", "executor.token", "internal.token"}


async def test_after_pairing_token_making_sign_in_and_use_no_token_is_in_another_file(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with running(home, LOG_LEVEL="debug") as program, aiohttp.ClientSession() as http:
        operator = (home / "operator.token").read_text()
        gateway, console = program.urls["gateway"], program.urls["console"]

        async def ask(url: str, body: Any = None, **headers: str) -> Any:
            method = "GET" if body is None else "POST"
            async with http.request(method, url, json=body, headers=headers) as answer:
                return await answer.json()

        as_operator = {"Authorization": f"Bearer {operator}"}
        await ask(f"{gateway}/status", **{"X-Device-Id": "phone"})
        scope = {"tools": "write", "agent": True}
        paired = await ask(
            f"{gateway}/pairing/approve", {"deviceId": "phone", "scope": scope}, **as_operator
        )
        device = paired["data"]["deviceToken"]
        made = await ask(f"{gateway}/tokens", {"name": "ci", "scope": scope}, **as_operator)
        service = made["data"]["token"]
        code = (await ask(f"{console}/api/links", {}, **as_operator, **MARK))["code"]
        kept = {device: "tg_dev_", service: "tg_svc_", code: "tg_code_", operator: "tg_op_"}
        assert all(token.startswith(prefix) for token, prefix in kept.items())

        async with http.post(
            f"{console}/api/sign-in", json={"code": code}, headers=MARK
        ) as signed_in:
            (cookie,) = (one.value for one in signed_in.cookies.values())
        said = " ".join([*kept, cookie, (home / "executor.token").read_text()])
        as_device = {"X-Device-Id": "phone", "X-Device-Token": device}
        for number, headers in enumerate((as_device, {"Authorization": f"Bearer {service}"})):
            body = {"payload": {"name": "echo", "args": {"text": said}}}
            key = {"Idempotency-Key": f"k{number}"}
            answer = await ask(f"{gateway}/command/tool", body, **headers, **key)
            assert answer["ok"], answer
        client = await Client.connect(program.urls["ingress_ws"])
        await client.invoke(f"{said} [[tool:echo {json.dumps({'text': said})}]]", agent="script")
        await client.hear_until("done", "error")
        await ask(f"{gateway}/status", **{"X-Device-Id": "phone", "X-Device-Token": service})
        await program.stop()
        log = program.log.read_bytes()
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert any(b"[redacted]" in content for content in files.values()), "looking at nothing"
    for secret in (*kept, cookie):
        assert secret.encode() not in log
        found = {path.name for path, content in files.items() if secret.encode() in content}
        assert found <= TOKEN_FILES
