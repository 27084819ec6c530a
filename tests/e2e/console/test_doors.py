"""The console's door: what it refuses, and what it says of itself."""

import asyncio
import re

import aiohttp
import pytest

from tests.e2e.console.conftest import MARK, TOKEN, Ask, api, gateway, status_of
from tests.e2e.harness import PATIENCE, Program
from toolgate.access.sign_in import COOKIE

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_nothing_is_told_without_a_session(program: Program) -> None:
    async with aiohttp.ClientSession(headers=MARK) as http:
        own = [api(program) + path for path in ("/me", "/overview", "/live", "/approvals")]
        paths = ("/runs", "/evidence", "/tasks/artifacts/x", "/tasks")
        for url in (*own, *(gateway(program, path) for path in paths)):
            assert await status_of(http, "GET", url) == 401
        assert await status_of(http, "PUT", gateway(program, "/policy"), json={}) == 401
        forged = {"Cookie": f"{COOKIE}=9999999999999.abc.def"}
        assert await status_of(http, "GET", gateway(program, "/runs"), headers=forged) == 401


async def test_a_wrong_token_opens_nothing_and_the_executors_is_wrong(program: Program) -> None:
    executor = (program.home / "executor.token").read_text()
    async with aiohttp.ClientSession(headers=MARK) as http:
        for token in ("", "guess", executor):
            url = f"{api(program)}/sign-in"
            async with http.post(url, json={"token": token}) as answer:
                assert answer.status == 403
                assert "Set-Cookie" not in answer.headers


async def test_a_body_nested_without_end_is_invalid(program: Program) -> None:
    deep = b'{"token":"guess","more":' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    async with aiohttp.ClientSession(headers=MARK) as http:
        assert await status_of(http, "POST", f"{api(program)}/sign-in", data=deep) == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Toolgate-Console": ""},
        {"X-Toolgate-Console": "1", "Origin": "https://elsewhere.example"},
        {"X-Toolgate-Console": "1", "Origin": "null"},
        {"X-Toolgate-Console": "1", "Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_a_page_elsewhere_cannot_act_in_the_operators_name(
    program: Program, session: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    url = gateway(program, "/evidence/verify")
    assert await status_of(session, "POST", url, json={}, headers=headers) == 403
    same = {"Origin": program.urls["gateway"]}
    assert await status_of(session, "POST", url, json={}, headers=same) == 200


async def test_of_two_operators_who_change_one_policy_the_second_is_told(
    program: Program, session: aiohttp.ClientSession
) -> None:
    async with session.get(gateway(program, "/policy")) as answer:
        shown = (await answer.json())["data"]
    url = gateway(program, "/policy")
    rule = "version: 1\nrules:\n  - {id: r, allow: kv.%s, match: any, reason: It is ours}\n"
    bodies = [{"text": rule % tool, "over": shown["version"]} for tool in ("get", "set")]
    ended = await asyncio.gather(*(status_of(session, "PUT", url, json=one) for one in bodies))
    async with session.get(url) as answer:
        now = (await answer.json())["data"]["version"]
    back = {"text": shown["text"], "over": now}
    assert await status_of(session, "PUT", url, json=back) == 200
    assert sorted(ended) == [200, 400]


async def test_every_answer_keeps_browsers_from_guessing_and_framing(
    program: Program, session: aiohttp.ClientSession
) -> None:
    async with session.get(program.urls["console"]) as page:
        policy, etag = page.headers["Content-Security-Policy"], page.headers["ETag"]
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self';" in policy
    for path in ("", "/static/app.js", "/api/me", "/api/nothing", "/static/nothing"):
        async with session.get(program.urls["console"] + path) as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
    known = {"If-None-Match": etag}
    assert await status_of(session, "GET", program.urls["console"], headers=known) == 304


async def test_a_new_link_needs_the_operators_token(program: Program) -> None:
    async with aiohttp.ClientSession(headers=MARK) as http:
        url = f"{api(program)}/links"
        assert await status_of(http, "POST", url) == 403
        answer = await http.post(url, headers={"Authorization": f"Bearer {TOKEN}"})
        code = (await answer.json())["code"]
        assert await status_of(http, "POST", f"{api(program)}/sign-in", json={"code": code}) == 200


async def test_what_happens_is_told_live_and_from_where_a_reader_was(
    program: Program, session: aiohttp.ClientSession, ask: Ask
) -> None:
    async with session.get(f"{api(program)}/live") as stream:
        client = await ask('live [[tool:kv.set {"key": "k", "value": "v"}]]')
        heard = await client.hear_until("approval_required")
        seen = b""
        async with asyncio.timeout(PATIENCE):
            while b'"approvals"' not in seen:
                seen += await stream.content.readany()
        assert heard[0]["run_id"].encode() in seen
    again = {"Last-Event-ID": "0"}
    async with session.get(f"{api(program)}/live", headers=again) as stream:
        seen = b""
        async with asyncio.timeout(PATIENCE):
            while heard[0]["run_id"].encode() not in seen:
                seen += await stream.content.readany()


async def test_a_reader_who_was_cut_off_before_anything_was_told_misses_nothing(
    program: Program, session: aiohttp.ClientSession, ask: Ask
) -> None:
    async with session.get(f"{api(program)}/live") as stream:
        greeting = await stream.content.readuntil(b"\n\n")
    position = re.search(rb"^id: (\d+)$", greeting, re.MULTILINE)
    assert position is not None
    heard = await (await ask("said to nobody")).hear_until("done")
    again = {"Last-Event-ID": position[1].decode()}
    async with session.get(f"{api(program)}/live", headers=again) as stream:
        seen = b""
        async with asyncio.timeout(PATIENCE):
            while heard[0]["run_id"].encode() not in seen:
                seen += await stream.content.readany()


async def test_signing_out_ends_what_was_still_listening(program: Program, ask: Ask) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    page = {**MARK, "Origin": program.urls["gateway"]}
    async with aiohttp.ClientSession(cookie_jar=jar, headers=page) as http:
        await status_of(http, "POST", f"{api(program)}/sign-in", json={"token": TOKEN})
        async with http.get(f"{api(program)}/live") as stream:
            await stream.content.readany()
            assert await status_of(http, "POST", f"{api(program)}/sign-out") == 200
            await ask("nobody may hear this")
            async with asyncio.timeout(PATIENCE):
                assert b"nobody" not in await stream.content.read()


async def test_an_open_stream_does_not_hold_up_the_end(
    program: Program, session: aiohttp.ClientSession
) -> None:
    async with session.get(f"{api(program)}/live") as stream:
        await stream.content.readany()
        async with asyncio.timeout(4):
            assert await program.stop() == 0
