"""One request through all rooms of the house, against the installed program."""

import asyncio
import json
import sqlite3
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import INTERNAL, Client, Program, running, started


@pytest.mark.requirement("001/m0/hello-ack", "001/m1/run-started", "001/m1/deltas", "001/m1/done")
async def test_a_client_says_hello_invokes_echo_and_hears_the_run_to_its_end(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "home") as program:
        client = await Client.connect(program.urls["ingress_ws"])
        await client.invoke("你好, brave new world")
        heard = await client.hear_until("done", "error")
        assert heard[0]["type"] == "run_started"
        deltas = [one["text"] for one in heard if one["type"] == "delta"]
        assert "".join(deltas) == "你好, brave new world"
        assert all(len(text) <= 5 for text in deltas)
        assert heard[-1]["type"] == "done"
        assert heard[-1]["usage"].keys() == {
            "total_tokens",
            "prompt_tokens",
            "completion_tokens",
            "duration_ms",
        }
        assert [one["seq"] for one in heard] == list(range(1, len(heard) + 1))
        await program.stop()
    with sqlite3.connect(tmp_path / "home" / "journal.db") as journal:
        kept = journal.execute("SELECT count(*) FROM events WHERE type = 'delta'").fetchone()[0]
    assert kept == len(deltas)


async def test_a_finished_run_is_there_after_kill_9(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program:
        client = await Client.connect(program.urls["ingress_ws"])
        await client.invoke("kept")
        heard = await client.hear_until("done")
        await program.kill()
        await program.start()
        async with aiohttp.ClientSession(headers=INTERNAL) as http:
            url = f"{program.urls['orchestrator']}/internal/runs/{heard[0]['run_id']}"
            run = await (await http.get(url)).json()
        assert (run["status"], run["output"]) == ("DONE", "kept")
        again = await Client.connect(
            program.urls["ingress_ws"], session_id=client.session_id, last_seq=0
        )
        assert again.ack["resumed"] is True
        assert await again.hear_until("done") == heard


@pytest.mark.requirement("001/durability/running-resumes")
async def test_an_interrupted_run_goes_on_after_kill_9_and_says_nothing_twice(
    tmp_path: Path,
) -> None:
    text = "0123456789" * 2000
    async with running(tmp_path / "home") as program:
        client = await Client.connect(program.urls["ingress_ws"])
        await client.invoke(text)
        heard = [await client.hear() for _ in range(40)]
        await program.kill()
        await program.start()
        again = await Client.connect(
            program.urls["ingress_ws"], session_id=client.session_id, last_seq=client.last_seq
        )
        heard += await again.hear_until("done", "error")
        assert "".join(one["text"] for one in heard if one["type"] == "delta") == text
        assert [one["type"] for one in heard].count("done") == 1


async def test_sigterm_says_goodbye_and_exits_with_0(tmp_path: Path) -> None:
    async with started(Program(tmp_path / "home", installed=True)) as program:
        client = await Client.connect(program.urls["ingress_ws"])
        assert await program.stop() == 0
        await asyncio.wait_for(client.socket.wait_closed(), 5)
        assert client.socket.close_code == 1001


@pytest.mark.requirement("001/status/health", "001/orchestrator/health")
async def test_every_listener_answers_health_and_metrics(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program, aiohttp.ClientSession() as http:
        ws = program.urls["ingress_ws"].replace("ws://", "http://").removesuffix("/ws")
        bases = [
            ws,
            *(program.urls[one] for one in ("ingress_internal", "orchestrator", "gateway")),
        ]
        for base in bases:
            health = await http.get(f"{base}/health")
            assert health.status == 200
            assert health.content_type == "application/json"
            assert await health.json()
            metrics = await http.get(f"{base}/metrics")
            assert "toolgate_connections" in await metrics.text()


async def test_the_ready_line_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    async with started(Program(tmp_path / "home", installed=True)) as program:
        client = await Client.connect(program.urls["ingress_ws"])
        await client.say("nonsense")
        await client.hear()
        await program.stop()
        assert program.process is not None
        assert program.process.stdout is not None
        assert await program.process.stdout.read() == b""


@pytest.mark.requirement("001/events/error")
async def test_an_error_has_a_code_and_a_message_and_names_the_request(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program:
        client = await Client.connect(program.urls["ingress_ws"])
        await client.invoke("hi", agent="nobody", request_id="r9")
        error = await client.hear()
        assert error["type"] == "error"
        assert error["code"]
        assert "nobody" in error["message"]
        assert error["request_id"] == "r9"


async def test_the_json_log_is_json(tmp_path: Path) -> None:
    async with running(tmp_path / "home", LOG_FORMAT="json") as program:
        await program.stop()
        lines = program.log.read_text().splitlines()
    assert lines
    told = [json.loads(line) for line in lines]
    assert all({"at", "level", "message"} <= one.keys() or one.keys() == {"notice"} for one in told)
