"""A file from the user's disk into a sandbox and out again, with the installed program alone."""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.forked import fork
from tests.e2e.harness import Program, environment, running
from tests.e2e.test_runner_check import RUNNER_TOKEN, runner
from tests.support.engines import need

POLICY = """\
version: 1
name: files
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
  - {id: files, allow: [file.read, file.write], match: {path: "work/**"}, reason: For the check}
"""


async def toolgate(*words: str) -> str:
    process = await fork(*words, env=environment({}), stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0, words
    return said.decode()


class Executor:
    def __init__(self, program: Program, http: aiohttp.ClientSession) -> None:
        self.url = program.urls["gateway"]
        token = (program.home / "executor.token").read_text().strip()
        self._headers = {"authorization": f"Bearer {token}"}
        self._http = http
        self._calls = 0

    async def run(self, tool: str, **args: Any) -> Any:
        self._calls += 1
        body = {
            "request_id": f"r{self._calls}",
            "tool_id": tool,
            "args": args,
            "ctx": {"run_id": "run_of_the_check"},
        }
        async with self._http.post(
            self.url + "/tool/run", json=body, headers=self._headers
        ) as answer:
            return await answer.json()

    async def artifact(self, ref: str) -> tuple[int, bytes, str]:
        async with self._http.get(
            self.url + "/artifact/get", params={"ref": ref}, headers=self._headers
        ) as answer:
            return answer.status, await answer.read(), answer.content_type

    async def put(self, content: bytes, *, authorized: bool = True) -> tuple[int, Any]:
        headers = self._headers if authorized else {}
        async with self._http.post(
            self.url + "/artifact/put", data=content, headers=headers
        ) as answer:
            return answer.status, await answer.json()


async def there_and_back(program: Program, http: aiohttp.ClientSession, home: Path) -> None:
    given, back = home / "given.bin", home / "back.bin"
    given.write_bytes(os.urandom(300_000))
    digest = hashlib.sha256(given.read_bytes()).hexdigest()
    at = ("--home", str(program.home), "--url", program.urls["gateway"])
    ref = (await toolgate("artifact", "put", str(given), *at)).strip()
    assert ref == f"files/{digest}"
    executor = Executor(program, http)
    written = await executor.run("file.write", path="work/in.bin", artifact=ref)
    assert written["ok"], written
    command = "sha256sum < work/in.bin; { cat work/in.bin; printf end; } > work/out.bin"
    assert (await executor.run("bash.exec", cmd=command))["tool_result"]["stdout"].startswith(
        digest
    )
    read = await executor.run("file.read", path="work/out.bin", artifact=True)
    told = json.loads(read["tool_result"]["stdout"])
    await toolgate("artifact", "get", told["artifact"], "-o", str(back), *at)
    assert back.read_bytes() == given.read_bytes() + b"end"
    status, content, kind = await executor.artifact(told["artifact"])
    assert (status, content, kind) == (200, back.read_bytes(), "application/octet-stream")

    # The evidence of the call names the file by its content.
    result_ref = next(ref for ref in read["evidence_refs"] if ref.endswith("tool_result.json"))
    _, evidence, _ = await executor.artifact(result_ref)
    assert hashlib.sha256(back.read_bytes()).hexdigest() in evidence.decode()

    # The policy decides on the path, whichever way the content comes.
    for tool, artifact in (("file.write", ref), ("file.read", True)):
        refused = await executor.run(tool, path="elsewhere", artifact=artifact)
        assert refused["policy_check"]["decision"] == "deny"
    internal = await executor.run("file.put", path="work/x", content="eA==")
    assert internal["policy_check"]["decision"] == "deny"
    assert (await executor.run("bash.exec", cmd="ls work"))["tool_result"]["stdout"] == (
        "in.bin\nout.bin\n"
    )


@pytest.mark.parametrize("where", ["local", "runner"])
async def test_a_file_goes_in_and_out_and_leaves_evidence(where: str, tmp_path: Path) -> None:
    need("bwrap")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with (
        running(tmp_path / "home", POLICY_FILE=str(policy)) as program,
        aiohttp.ClientSession() as http,
    ):
        if where == "local":
            await there_and_back(program, http, tmp_path)
            return
        async with runner(home=tmp_path / "runner") as url:
            token = tmp_path / "token"
            token.write_text(RUNNER_TOKEN)
            at = ("--home", str(program.home), "--url", program.urls["gateway"])
            shown = await toolgate(
                "targets", "set", "lab", "--endpoint", url, "--token-file", str(token),
                "--default", *at,
            )  # fmt: skip
            assert "lab" in shown
            listed = await toolgate("targets", "list", "--json", *at)
            assert RUNNER_TOKEN not in shown + listed
            assert [one["targetId"] for one in json.loads(listed)] == [
                "target_local_default",
                "lab",
            ]
            await there_and_back(program, http, tmp_path)
            assert "removed" in await toolgate("targets", "remove", "lab", *at)


async def test_an_upload_needs_the_bearer_has_a_size_and_holds_no_secret(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program, aiohttp.ClientSession() as http:
        executor = Executor(program, http)
        assert (await executor.put(b"x", authorized=False))[0] == 401
        token = (program.home / "operator.token").read_bytes()
        status, body = await executor.put(b"\xff" + token)
        assert status == 400
        assert token.decode() not in json.dumps(body)
        large = tmp_path / "large"
        with large.open("wb") as file:
            file.truncate(32 * 1024 * 1024 + 1)
        with large.open("rb") as file:
            status, _ = await executor.put(file)  # type: ignore[arg-type]
        assert status == 413
        for ref in ("files/" + "0" * 64, "files/x"):
            assert (await executor.artifact(ref))[0] in (400, 404)
        kept = b"".join(
            path.read_bytes()
            for path in program.home.rglob("*")
            if path.is_file() and path.suffix != ".token"
        )
        assert token not in kept
