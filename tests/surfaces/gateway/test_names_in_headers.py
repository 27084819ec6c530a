"""A name is the same in a header as in a body, whatever letters it has."""

import pytest

from tests.surfaces.gateway.conftest import ALL, Door, Paired
from toolgate.surfaces.gateway.authentication import text

NAMES = ["夜班-laptop", "café", "Ünï"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_device_is_paired_and_known_by_the_name_it_gave(door: Door, name: str) -> None:
    await door.ask("GET", "/status", headers={"X-Device-Id": name})
    waiting = await door.ask("GET", "/pairing/pending", operator=True)
    assert [one["deviceId"] for one in waiting.data["pending"]] == [name]
    approved = await door.ask("POST", "/pairing/approve", body={"deviceId": name}, operator=True)
    assert approved.status == 200, approved.json
    device = Paired(door, name, approved.data["deviceToken"])
    status = await device.get("/status")
    assert [one["deviceId"] for one in status.json["devices"]] == [name]


@pytest.mark.parametrize("name", NAMES)
async def test_a_request_is_called_the_same_in_its_header_body_and_answer(
    door: Door, name: str
) -> None:
    device = await door.pair(**ALL)
    answer = await device.post(
        "/command/tool",
        {"requestId": name, "idempotencyKey": name, "payload": {"name": "echo"}},
        key=name,
        X_Request_Id=name,
    )
    assert answer.status == 200, answer.json
    assert answer.headers["X-Request-Id"] == name


def test_a_header_that_is_not_utf_8_is_read_as_latin_1() -> None:
    assert text({b"x-device-id": b" caf\xe9 "}, b"x-device-id") == "café"
