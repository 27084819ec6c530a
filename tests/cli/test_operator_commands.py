"""The operator's commands, against a running installation."""

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from tests.e2e.harness import running
from toolgate.cli.main import main
from toolgate.cli.operator import Operator


def run(*args: str) -> str:
    result = CliRunner().invoke(main, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def knock(url: str, device_id: str) -> None:
    request = urllib.request.Request(f"{url}/status", headers={"X-Device-Id": device_id})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    refused.value.close()


async def test_pair_devices_tokens_capabilities_and_events(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home, HEARTBEAT="@every 1s") as program:
        token_file = home / "operator.token"
        token = token_file.read_text()
        assert token_file.stat().st_mode & 0o777 == 0o600
        assert token not in program.log.read_text()
        url = program.urls["gateway"]
        at = ("--home", str(home), "--url", url)

        def all_of_it() -> None:
            knock(url, "phone")
            (waiting,) = json.loads(run("pair", *at, "--json"))
            assert waiting["deviceId"] == "phone"
            assert waiting["code"] in run("pair", *at)
            device_token = run("pair", "phone", "--tools", "write", "--agent", *at).strip()
            request = urllib.request.Request(
                f"{url}/status", headers={"X-Device-Id": "phone", "X-Device-Token": device_token}
            )
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200
            (device,) = json.loads(run("devices", *at, "--json"))
            assert device["scope"]["tools"] == "write"
            assert device["scope"]["agent"] is True
            assert "revoked" in run("devices", "--revoke", "phone", *at)
            assert json.loads(run("devices", *at, "--json")) == []
            made = run("token", "make", "ci", "--tools", "read", *at).strip()
            assert made.startswith("tg_svc_")
            assert made not in run("token", "list", *at)
            assert "revoked" in run("token", "revoke", "ci", *at)
            run("capabilities", "register", "mcp.docs", "--rate", "5", *at)
            listed = json.loads(run("capabilities", "list", *at, "--json"))
            assert "mcp.docs" in [one["capabilityId"] for one in listed]
            signs = {"capabilityId": "exec", "scope": "system", "level": "sign", "owner": "ops"}
            Operator(url, token.strip()).data("POST", "/capabilities/register", signs)
            changed = json.loads(
                run("capabilities", "register", "exec", "--rate", "5", *at, "--json")
            )
            assert changed.items() >= signs.items()
            again = json.loads(
                run("capabilities", "register", "exec", "--level", "write", *at, "--json")
            )
            assert (again["level"], again["rateLimit"]) == ("write", changed["rateLimit"])
            until = ("capabilities", "register", "exec", "--expires")
            expires = json.loads(run(*until, "2099-01-01T00:00:00Z", *at, "--json"))["expiresAt"]
            assert expires == 4_070_908_800_000
            assert json.loads(run(*until[:3], *at, "--json"))["expiresAt"] == expires
            assert "2099" in run("capabilities", "list", *at)
            assert json.loads(run(*until, "never", *at, "--json"))["expiresAt"] is None
            wrong = CliRunner().invoke(main, [*until, "soon", *at])
            assert wrong.exit_code == 2
            assert "--expires" in wrong.stderr
            assert "mcp.docs is removed" in run("capabilities", "remove", "mcp.docs", *at)
            assert "mcp.docs" not in run("capabilities", "list", *at)
            assert "removed" not in run("capabilities", "remove", "exec", *at)  # but as it was made
            (made,) = [
                one
                for one in json.loads(run("capabilities", "list", *at, "--json"))
                if one["capabilityId"] == "exec"
            ]
            assert made["rateLimit"] is None
            unknown = CliRunner().invoke(main, ["capabilities", "remove", "mcp.docs", *at])
            assert unknown.exit_code == 1
            assert "mcp.docs" in unknown.stderr
            config = {"endpoint": "http://lab:18081/execute", "timeoutMs": 1000}
            made_by_hand = {"tenantId": "t_default", "kind": "docker-runner", "config": config}
            Operator(url, token.strip()).data("PUT", "/execution-targets/lab", made_by_hand)
            (target,) = json.loads(run("targets", "set", "lab", "--timeout-ms", "5", *at, "--json"))
            assert target["config"] == config | {"timeoutMs": 5}
            refused = CliRunner().invoke(main, ["devices", "--revoke", "nobody", *at])
            assert refused.exit_code == 1
            assert "nobody" in refused.stderr
            nowhere = CliRunner().invoke(
                main, ["devices", "--home", str(home), "--url", "http://127.0.0.1:9"]
            )
            assert nowhere.exit_code == 1

        await asyncio.to_thread(all_of_it)
        async with asyncio.timeout(20):
            while "heartbeat" not in await asyncio.to_thread(run, "events", "--no-follow", *at):
                await asyncio.sleep(0.1)
        await program.stop()
        again = await program.start()
        assert token not in program.log.read_text()
        assert again.urls["gateway"]


def test_without_a_token_the_commands_say_where_it_is(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["devices", "--home", str(tmp_path)])
    assert result.exit_code == 2
    assert "OPERATOR_TOKEN" in result.stderr


async def test_every_command_says_where_the_right_token_is_to_who_has_a_wrong_one(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "home") as program:
        gateway, clients = (urlsplit(program.urls[one]).port for one in ("gateway", "ingress_ws"))
        ports = [f"--set=GATEWAY_PORT={gateway}", f"--set=WS_PORT={clients}"]
        wrong = [f"--home={tmp_path}", *ports, "--set=OPERATOR_TOKEN=wrong"]

        def all_of_it() -> None:
            for words in (["devices"], ["task", "list"], ["console"], ["demo", "--running"]):
                ended = CliRunner().invoke(main, [*words, *wrong])
                assert ended.exit_code == 1
                assert "set OPERATOR_TOKEN, or --home" in ended.stderr
                assert "link" not in ended.stderr

        await asyncio.to_thread(all_of_it)
