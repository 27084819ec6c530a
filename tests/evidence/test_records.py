"""What stands in the journal for a record and its artifacts."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.evidence.evidence_home import record_call, running
from toolgate.core.errors import Invalid
from toolgate.evidence.evidence import STREAM, record_of


async def test_the_artifacts_of_a_call_stand_behind_its_record_that_names_them(
    tmp_path: Path,
) -> None:
    content = '{"a":"ü\\n","b":1}'.encode()
    async with running(tmp_path) as home:
        await record_call(
            home.log, home.journal, "r1", artifacts={"request": {"b": 1, "a": "ü\n"}, "empty": {}}
        )
        [event] = await home.journal.read(STREAM)
        record = json.loads(record_of(event.data))
        assert record["artifacts"] == {
            "requests/r1/empty.json": f"sha256:{hashlib.sha256(b'{}').hexdigest()}",
            "requests/r1/request.json": f"sha256:{hashlib.sha256(content).hexdigest()}",
        }
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
        assert event.data == b"\n".join([canonical.encode(), b"{}", content])
        assert await home.log.fetch("requests/r1/request.json") == content


@pytest.mark.parametrize(
    "fields", [{"a": 1.5}, {"a": [1]}, {"a": {}}, {"a": 2**53}, {"é": 1}, {"": 1}, {"a b": 1}]
)
async def test_a_record_holds_only_what_has_one_canonical_form(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    async with running(tmp_path) as home:
        with pytest.raises(Invalid):
            home.log.prepare("decision", fields)
        with pytest.raises(Invalid):
            home.log.prepare("Not A Kind", {})


async def test_broken_unicode_is_recorded_as_far_as_it_can_be(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        broken = {"out": "a\udcffb"}
        await home.log.record("result", broken)
        await record_call(home.log, home.journal, "r1", fields=broken, artifacts={"x": {**broken}})
        assert await home.log.fetch("requests/r1/x.json") == b'{"out":"a?b"}'
        for event in await home.journal.read(STREAM):
            assert json.loads(record_of(event.data))["fields"] == {"out": "a?b"}
