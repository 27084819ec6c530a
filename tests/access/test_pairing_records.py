"""Who was let in and who was not, in the evidence: a leaf each, in the commit that does it."""

import json
from pathlib import Path

import pytest

from tests.support.audit import SilentAudit
from tests.support.pipelines import Rig, open_rig
from toolgate.access.devices import Contact, Scope
from toolgate.access.pairing import Pairing
from toolgate.access.registry import Registry
from toolgate.core.enums import Level
from toolgate.evidence.evidence import STREAM, record_of

LAPTOP = Contact("laptop", "127.0.0.1")


def pairing_of(rig: Rig, *, auto_approve: bool = False) -> Pairing:
    registry = Registry(rig.journal, rig.clock)
    return Pairing(rig.journal, rig.clock, registry, SilentAudit(), rig.evidence, auto_approve)


async def told(rig: Rig) -> list[tuple[str, str, str]]:
    """(status, device, by) of each record of a pairing, oldest first."""
    records = [json.loads(record_of(event.data)) for event in await rig.journal.read(STREAM)]
    fields = [record["fields"] for record in records if record["kind"] == "pairing"]
    return [(one["status"], one["device_id"], one["by"]) for one in fields]


async def test_each_step_of_a_pairing_is_a_record(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        pairing = pairing_of(rig)
        await pairing.knock(LAPTOP)
        assert await told(rig) == []  # who knocks has been given nothing
        scope = Scope(Level.WRITE, system=True)
        token, _ = await pairing.approve("laptop", scope, by="operator")
        await pairing.approve("laptop", None, by="operator")
        await pairing.bind_key("laptop", "its key")
        await pairing.revoke("laptop", by="operator")
        await pairing.knock(LAPTOP)
        await pairing.revoke("laptop", by="operator")
        assert await told(rig) == [
            ("approved", "laptop", "operator"),
            ("rotated", "laptop", "operator"),
            ("key_bound", "laptop", "laptop"),
            ("revoked", "laptop", "operator"),
            ("turned_down", "laptop", "operator"),
        ]
        (first, *_) = [e for e in await rig.journal.read(STREAM) if e.type == "pairing"]
        granted = json.loads(record_of(first.data))["fields"]
        assert (granted["tools"], granted["system"], granted["mcp"]) == ("write", True, False)
        everything = b"".join(event.data for event in await rig.journal.read(STREAM))
        assert token.encode() not in everything


async def test_a_device_that_was_let_in_by_itself_is_on_record(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        await pairing_of(rig, auto_approve=True).knock(LAPTOP)
        assert await told(rig) == [("approved", "laptop", "auto-approve")]


@pytest.mark.parametrize("device_id", ["laptop", "a/b c", "夜"])
async def test_the_records_are_found_by_the_devices_name(tmp_path: Path, device_id: str) -> None:
    async with open_rig(tmp_path) as rig:
        pairing = pairing_of(rig)
        await pairing.knock(Contact(device_id, "127.0.0.1"))
        await pairing.approve(device_id, None, by="operator")
        about = await rig.journal.read(STREAM, subject=device_id)
        assert [event.type for event in about] == ["pairing"]
