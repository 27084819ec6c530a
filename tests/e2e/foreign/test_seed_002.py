"""A foreign device against our gateway."""

from pathlib import Path

from tests.e2e.foreign import a_client, holds
from tests.e2e.harness import running
from toolgate.testkit import gateway

OPERATOR = "token-of-the-operator"


async def test_a_device_that_knows_only_the_seed_uses_our_gateway(tmp_path: Path) -> None:
    async with running(tmp_path / "home", OPERATOR_TOKEN=OPERATOR) as up, a_client() as http:
        peer = gateway.DevicePeer(up.urls["gateway"], http, operator_token=OPERATOR)
        await holds(gateway.KIT, peer)
