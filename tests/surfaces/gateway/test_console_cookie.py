"""The console's cookie at the operator's routes: only from the console's own page."""

from collections.abc import Iterator
from pathlib import Path

from tests.surfaces.gateway.conftest import Door
from tests.surfaces.gateway.test_every_route import Gateway, Operation, opened, operations
from toolgate.access.sign_in import COOKIE, MARK


def operators(document: object) -> Iterator[Operation]:
    """Every route that the operator's token opens, but the stream, which no cookie opens."""
    for one in operations(document):
        is_commanders = one.path.startswith("/command/")
        if "bearer" in one.opens and not is_commanders and one.path != "/events/stream":
            yield one


async def signed_in(gateway: Gateway) -> dict[str, str]:
    url, body = f"{gateway.url}/console/api/sign-in", {"token": "operator-token-of-the-tests"}
    async with gateway.http.post(url, json=body, headers={MARK: "1"}) as answer:
        assert answer.status == 200
        return {"Cookie": f"{COOKIE}={answer.cookies[COOKIE].value}"}


async def test_no_operators_route_takes_the_cookie_from_another_page(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        cookie = await signed_in(gateway)
        elsewhere = {**cookie, MARK: "1", "Origin": "https://elsewhere.example"}
        cases = [
            cookie,
            {**cookie, "Origin": gateway.url},
            elsewhere,
            {**elsewhere, "Origin": "null"},
            {**cookie, MARK: "1", "Sec-Fetch-Site": "cross-site"},
        ]
        _, document = await gateway.ask("GET", "/openapi.json", {})
        tried = list(operators(document))
        assert len(tried) > 35
        for one in tried:
            changes = [] if one.method == "GET" else [{**cookie, MARK: "1"}]  # it has no Origin
            for headers in (*cases, *changes):
                status, told = await gateway.ask(one.method, one.path, headers, {})
                assert status == 403, (one, headers, told)


async def test_the_consoles_own_page_is_the_operator_and_no_commander(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        page = {**await signed_in(gateway), MARK: "1", "Origin": gateway.url}
        _, document = await gateway.ask("GET", "/openapi.json", {})
        for one in operators(document):
            if one.method == "GET":
                status, told = await gateway.ask(one.method, one.path, page, {})
                assert status not in (401, 403), (one, told)
        status, _ = await gateway.ask("POST", "/pairing/reject", page, {"deviceId": "none"})
        assert status == 404
        for path in ("/command/tool", "/mcp", "/tool/run"):
            status, _ = await gateway.ask("POST", path, page, {})
            assert status in (401, 403), path
        rows = await gateway.operator("GET", "/audit/query?action=console.signed_in")
        assert [row["actor"] for row in rows["data"]["items"]] == ["operator"]


async def test_a_cookie_beside_a_token_counts_for_nothing(door: Door) -> None:
    given = {MARK: "1", "Authorization": "Bearer wrong", "Cookie": f"{COOKIE}=1.2.3"}
    assert (await door.ask("GET", "/status", headers=given)).status == 401
