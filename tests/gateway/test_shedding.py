"""Flows that leave items out: only where declared, only beyond the lag, the same on every replica, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.shedding import LEVEL_MAX, keeps, level
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.state import state_digest
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.http_contract import serving
from tests.gateway.state_harness import Fed, ship
from tests.gateway.test_flow_changes import Cluster
from tests.gateway.test_machine_ranges import range_of


def total(cluster: Cluster) -> int:
    return int(cluster.flow.batches.items_total + cluster.flow.segment.items)


@given(st.integers(1, 2**40), st.integers(0, 2**50))
def test_each_doubling_of_the_lag_halves_what_is_kept(threshold: int, unread: int) -> None:
    flow = FlowDeclaration(name="f", source="t", shed_lag_bytes=threshold)
    found = level(flow, unread)
    assert (found == 0) == (unread < threshold)
    assert 0 < found < LEVEL_MAX or unread < threshold or unread >= threshold << (LEVEL_MAX - 1)
    if 0 < found < LEVEL_MAX:
        assert threshold << (found - 1) <= unread < threshold << found
    assert level(FlowDeclaration(name="f", source="t"), unread) == 0, "a flow that does not say so never sheds"


def test_share_that_is_kept_is_spread_over_keys_and_over_writes_of_one_key() -> None:
    for one in range(1, 5):
        of_one_key = sum(keeps(one, "k", commit) for commit in range(4_000))
        of_many = sum(keeps(one, f"k{commit}", commit) for commit in range(4_000))
        assert 0.8 < of_one_key * 2**one / 4_000 < 1.2
        assert 0.8 < of_many * 2**one / 4_000 < 1.2
    assert all(keeps(0, "k", commit) for commit in range(100))


def shedding(**fields: Any) -> Cluster:
    return Cluster(max_items=4, consumers=("job",), shed_lag_bytes=1_000, **fields)


def test_flow_sheds_beyond_its_lag_counts_it_and_stops_when_its_readers_have_caught_up() -> None:
    cluster = shedding()
    cluster.declare("g", max_items=4)
    cluster.fill(20)
    assert (total(cluster), cluster.flow.shed_items) == (20, 0)
    cluster.fill(300)
    state = cluster.flow_state()
    assert 0 < state.shed_items == 320 - total(cluster)
    assert state.shed_level > 1
    assert cluster.machine.flows.get("g").batches.items_total == 320, "another flow of the table has all of them"
    assert len(cluster.machine.tables["t"].rows) == 320, "and so has the table"
    fence, _ = cluster.done(c.Attach("f", "job", "n"))
    cluster.done(c.MoveCursor("f", "job", cluster.flow.batches.last, fence, False))
    assert cluster.flow_state().shed_level == 0
    before = total(cluster)
    cluster.fill(3)
    assert total(cluster) == before + 3


def test_shed_items_leave_no_trace_context_behind() -> None:
    cluster = shedding()
    cluster.fill(200)
    for _ in range(40):
        cluster.sequence += 1
        op = c.Op(cluster.sequence, 1, "t", f"k{cluster.sequence}", cluster.sequence, b"1")  # type: ignore[arg-type]
        trace = f"00-{cluster.sequence:032x}-00f067aa0ba902b7-01"
        cluster.one(c.Operate(1, 1, cluster.sequence, [op], traceparent=trace))  # type: ignore[arg-type]
    view = cluster.flow.segment.run_view()
    chunks = [
        *(chunk for batch in cluster.machine.flows.take_sealed() for chunk in batch.chunks),
        view.chunk(0, view.items),
    ]
    found = [
        (key, trace) for chunk in chunks if chunk.items and chunk.traceparents
        for key, trace in zip(chunk.keys, chunk.traceparents, strict=True) if trace is not None
    ]  # fmt: skip
    assert found
    assert all(trace[3:35] == f"{int(key[1:]):032x}" for key, trace in found)


def test_range_is_kept_or_left_out_whole_and_batches_keep_their_bound() -> None:
    cluster = Cluster("stream", 1 << 30)
    cluster.declare("f", max_items=4, shed_lag_bytes=1_000)
    cluster.declare("g", max_items=4)
    first = 1
    for _ in range(60):
        cluster.done(range_of(first, first + 9, fi=first, table="t"))
        first += 10
    shed = cluster.flow.shed_items
    assert 0 < shed < 600
    assert shed % 10 == 0
    assert total(cluster) == 600 - shed
    assert max(batch.items for batch in cluster.machine.flows.take_sealed() if batch.flow == "f") == 4
    for name in "tg":
        other = cluster.machine.flows.get(name)
        assert other.batches.items_total + other.segment.items == 600, "declared before it or after it"


def test_flow_that_keeps_a_tables_rows_cannot_shed() -> None:
    cluster = Cluster("stream")
    assert cluster.refused(cluster.alter("t", 1, shed_lag_bytes=5)).code is Code.BAD_REQUEST
    own = b'{"name":"u","source":"u","shed_lag_bytes":5}'
    assert cluster.refused(c.DeclareTable("u", "stream", 1 << 20, own)).code is Code.BAD_REQUEST
    assert "u" not in cluster.machine.tables


def test_what_was_shed_stays_counted_when_the_flow_sheds_no_more() -> None:
    cluster = shedding()
    cluster.fill(200)
    shed, kept = cluster.flow.shed_items, total(cluster)
    assert shed
    cluster.done(cluster.alter("f", 1, shed_lag_bytes=0))
    cluster.fill(50)
    assert (cluster.flow.shed_items, total(cluster), cluster.flow.shed_level) == (shed, kept + 50, 0)
    cluster.done(cluster.alter("f", 2, shed_lag_bytes=1_000))
    cluster.fill(50)
    assert shed < cluster.flow.shed_items == shed + kept + 100 - total(cluster), "and goes on when it sheds again"


def test_flow_sheds_from_when_it_is_altered_to() -> None:
    cluster = Cluster(max_items=4, consumers=("job",))
    cluster.fill(203)
    cluster.done(cluster.alter("f", 1, shed_lag_bytes=1_000))
    assert (total(cluster), cluster.flow.shed_items) == (203, 0), "what was open stays so"
    cluster.fill(300)
    assert 0 < cluster.flow.shed_items == 503 - total(cluster)


def test_saves_and_snapshots_go_on_shedding_as_the_others_do(tmp_path: Path) -> None:
    leader, follower, sound = (Fed(tmp_path / name) for name in ("leader", "follower", "sound"))

    def both(*commands: c.Command) -> None:
        for fed in (leader, sound):
            assert not any(isinstance(result, OncegateError) for result in fed.do(*commands))

    flow = FlowDeclaration(name="f", source="t", max_items=4, consumers=("job",), shed_lag_bytes=1_000)
    both(c.DeclareTable("t", "resident", 1 << 20), c.DeclareFlow(msgspec.json.encode(flow)))
    both(c.OpenSession("n", 10**6, 4_096))
    for number in range(1, 400):
        both(c.Operate(1, 1, 1, [c.Op(number, 1, "t", f"k{number}", number, b"1")]))  # type: ignore[arg-type]
        if number in (150, 151, 300):
            leader.save()
            leader = leader.reopened()
        if number == 200:
            both(c.Attach("f", "job", "n"), c.MoveCursor("f", "job", 9, 1, False))
    leader.save()
    assert state_digest(leader.machine) == state_digest(sound.machine)
    ship(leader.state, follower.state).install()
    assert state_digest(follower.machine) == state_digest(sound.machine)
    assert follower.machine.flows.get("f").shed_items > 0
    for fed in (leader, follower, sound):
        fed.close()


def test_save_after_nothing_but_shed_items_has_their_count(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "state")
    flow = FlowDeclaration(name="f", source="t", max_items=4, shed_lag_bytes=1)
    fed.do(c.DeclareTable("t", "resident", 1 << 20), c.DeclareFlow(msgspec.json.encode(flow)))
    fed.do(c.OpenSession("n", 10**6, 4_096))
    number = shed = 0
    while not shed:
        fed.save()
        number += 1
        fed.do(c.Operate(1, 1, 1, [c.Op(number, 1, "t", f"k{number}", number, b"1")]))  # type: ignore[arg-type]
        shed = fed.machine.flows.get("f").shed_items
    fed.save()
    fed.reopened().close()


def test_level_follows_at_once_when_a_consumer_comes_that_has_read_nothing(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "state")
    flow = FlowDeclaration(name="f", source="t", max_items=1, shed_lag_bytes=100)
    fed.do(c.DeclareTable("t", "resident", 1 << 20), c.DeclareFlow(msgspec.json.encode(flow)))
    fed.do(c.OpenSession("n", 10**6, 4_096), c.Attach("f", "quick", "n"))
    for number in range(1, 10):
        fed.do(c.Operate(1, 1, 1, [c.Op(number, 1, "t", f"k{number}", number, b"1")]))  # type: ignore[arg-type]
        last = fed.machine.flows.get("f").batches.last
        fed.do(c.MoveCursor("f", "quick", last, 1, False))
    assert fed.machine.flows.get("f").shed_level == 0
    fed.do(c.Attach("f", "new", "n"))
    assert fed.machine.flows.get("f").shed_level > 0
    fed.save()
    fed.reopened().close()


async def test_what_is_shed_is_shown(files: Any) -> None:
    async with serving(files) as (api, node):
        await api.call("PUT", "/v1/tables/rows", {"kind": "resident"})
        status, _, state = await api.call("PUT", "/v1/flows/f", {"source": "rows", "shed_lag_bytes": 4096})
        assert (status, state["shed_lag_bytes"], state["shed_level"], state["shed_items"]) == (200, 4096, 0, 0)
        node.machine.flows.get("f").segment.shed_items = 7
        assert (await api.call("GET", "/v1/flows/f"))[2]["shed_items"] == 7
        assert b'oncegate_flow_shed_items{flow="f"} 7.0\n' in (await api.call("GET", "/metrics"))[2]


@pytest.mark.parametrize("threshold", [-1, 2**51])
def test_threshold_has_bounds(threshold: int) -> None:
    cluster = Cluster()
    assert cluster.refused(cluster.alter("f", 1, shed_lag_bytes=threshold)).code is Code.BAD_REQUEST
