"""Log, saved state, batches and outbox of earlier builds, left by a kill, are read by this one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import aiohttp
import pytest

from oncegate import Client
from oncegate.proof.check.earlier_build import python, unpack
from oncegate.proof.check.errors import Unavailable
from tests.gateway import earlier_writer
from tests.gateway.http_contract import one_node, serving

BUILDS = {
    "dec650ab1ab99e0e3aaddd3b3bae0cb7b876373c": 1,
    "7144c53485fd22ea71aa15f75c36ec495f2fbb02": 4,
}
"""The level of a new cluster of each: the first one knows neither levels nor transactions, the second runs of puts."""


@pytest.mark.parametrize("commit", BUILDS)
async def test_what_an_earlier_build_wrote_is_read_and_no_request_of_it_is_executed_again(
    commit: str, tmp_path: Path
) -> None:
    try:
        tree = unpack(tmp_path / "before", commit)
    except Unavailable as reason:
        pytest.skip(str(reason))
    settings = one_node(tmp_path)
    writer = [*python(tree), earlier_writer.__file__, settings.members[0], str(tmp_path)]
    done = subprocess.run(writer, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["level"] == BUILDS[commit]
    async with serving(settings) as (api, node), aiohttp.ClientSession(base_url=settings.address.http) as http:
        assert node.machine.level == BUILDS[commit]
        async with Client([settings.address.http]) as client:
            assert json.loads(json.dumps(await earlier_writer.seen(http))) == {
                "rows": told["rows"],
                "batches": told["batches"],
            }
            assert sum(status == 200 for _, _, status, _ in told["batches"]) >= 4
            for first, answers in told["requests"]:
                # Below 4 it is acknowledged.
                at = max(first, 4) - first
                body = earlier_writer.singles(told["client"], first, 7, 4)
                body["operations"] = body["operations"][at:]
                again = (await api.call("POST", "/v1/operations", body))[2]["results"]
                assert [[one["status"], one["commit"]] for one in again] == answers[at:]
                assert all(one["replayed"] for one in again)
            if told["level"] >= earlier_writer.TRANSACTIONS:
                repeated = await client.put("rows", "keyed", 1, idempotency_key="once")
                assert repeated.replayed
            async with client.session(outbox=tmp_path / "worker.outbox") as session:
                assert len(session.recovered) == 10
                late = await session.get("rows", "late")
                assert late is not None
                assert late.value == 10
