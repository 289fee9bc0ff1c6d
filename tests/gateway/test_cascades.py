"""Cascades inside the state machine: a part of a batch's output is written once, whole, and with the cursor's move."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows.errors import BadRequestError
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.parts import PARTS_MAX, Parts
from oncegate.gateway import wire
from oncegate.gateway.explain.memory import DUPLICATE, EXECUTED
from oncegate.gateway.explain.search import Mention, Moved, OfKey, Search
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.results import Cascaded
from oncegate.gateway.machine.state import state_digest
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.state_harness import Fed, ship
from tests.gateway.test_flow_changes import Cluster


def write(op: str, table: str, key: str, **more: Any) -> wire.CascadeWrite:
    return wire.CascadeWrite(op, table, key, **more)  # type: ignore[arg-type]


def part(
    batch: int, number: int, fence: int, *writes: wire.CascadeWrite, last: bool = False, flow: str = "f"
) -> c.Cascade:
    return request_bodies.cascade(flow, "job", wire.Cascade(batch, number, fence, last, list(writes)))


PUT = write("put", "derived", "a", value=1)
COUNT = write("increment", "counts", "n", by=2)


def cascading(**fields: Any) -> tuple[Cluster, int]:
    """Three batches of one item each in flow f, which the consumer ``job`` may write to two tables."""
    cluster = Cluster(target=("derived", "counts"), **fields)
    cluster.done(c.DeclareTable("derived", "stream", 1 << 20))
    cluster.done(c.DeclareTable("counts", "resident", 1 << 20))
    cluster.done(c.DeclareTable("other", "resident", 1 << 20))
    cluster.fill(3)
    fence, _ = cluster.done(c.Attach("f", "job", "n"))
    return cluster, fence


def count_of(cluster: Cluster, key: str = "n") -> Any:
    row = cluster.machine.tables["counts"].rows.get(key)
    return None if row is None else msgspec.json.decode(row.value)


def derived(cluster: Cluster) -> list[tuple[str, bytes | None]]:
    """Return what the stream table ``derived`` has, in order."""
    run = cluster.machine.flows.get("derived").segment.run_view()
    return list(zip(run.keys, run.values, strict=True))


def cursor_of(cluster: Cluster) -> int:
    return int(cluster.flow.consumers.get("job").cursor)


def test_parts_are_written_once_and_the_last_one_moves_the_cursor() -> None:
    cluster, fence = cascading()
    before = cluster.machine.commit
    first = cluster.done(part(1, 1, fence, PUT, COUNT))
    assert first == Cascaded(0, before + 1, 2, replayed=False)
    assert cluster.done(part(1, 1, fence, PUT, COUNT)) == Cascaded(0, before + 1, 2, replayed=True)
    last = cluster.done(part(1, 2, fence, COUNT, last=True))
    assert last == Cascaded(1, before + 3, 1, replayed=False)
    assert cluster.done(part(1, 2, fence, COUNT, last=True)) == Cascaded(1, before + 3, 1, replayed=True)
    assert cluster.done(part(1, 1, fence, PUT, COUNT)) == Cascaded(1, before + 1, 2, replayed=True)
    assert cluster.machine.replayed == 3
    assert (count_of(cluster), derived(cluster), cursor_of(cluster)) == (4, [("a", b"1")], 1)


def test_late_part_of_a_batch_that_was_finished_long_ago_changes_nothing() -> None:
    cluster, fence = cascading()
    for batch in (1, 2):
        cluster.done(part(batch, 1, fence, COUNT, last=True))
    before = state_digest(cluster.machine)
    late = cluster.done(part(1, 1, fence, COUNT, last=True))
    assert late == Cascaded(2, 0, 1, replayed=True)
    assert cluster.done(part(1, 5, fence, PUT)).replayed, "whatever it holds"
    cluster.machine.replayed -= 2
    assert state_digest(cluster.machine) == before


def test_part_of_an_instance_that_was_replaced_is_fenced_and_the_new_one_goes_on_where_it_stopped() -> None:
    cluster, old = cascading()
    cluster.done(part(1, 1, old, COUNT))
    new, cursor = cluster.done(c.Attach("f", "job", "m"))
    assert cursor == 0
    for stale in (part(1, 1, old, COUNT), part(1, 2, old, COUNT, last=True)):
        assert cluster.refused(stale).code is Code.FENCED
    assert cluster.done(part(1, 1, new, COUNT)).replayed, "what was written is not written again"
    cluster.done(part(1, 2, new, COUNT, last=True))
    assert (count_of(cluster), cursor_of(cluster)) == (4, 1)


def test_no_lease_can_end_in_the_middle_of_a_batch() -> None:
    cluster, fence = cascading()
    cluster.done(part(1, 1, fence, COUNT))
    cluster.now_ms = 10**12
    cluster.done(c.Reap([1]))
    assert cluster.done(part(1, 1, fence, COUNT)).replayed
    cluster.done(part(1, 2, fence, COUNT, last=True))
    assert (count_of(cluster), cursor_of(cluster)) == (4, 1)


def test_part_with_another_content_is_refused_and_the_way_out_writes_the_batch_again() -> None:
    cluster, fence = cascading()
    cluster.done(part(1, 1, fence, PUT))
    refused = cluster.refused(part(1, 1, fence, write("put", "derived", "a", value=2)))
    assert (refused.code, "batch:1" in refused.detail) == (Code.PAYLOAD_MISMATCH, True)
    assert cluster.refused(part(1, 1, fence, PUT, last=True)).code is Code.PAYLOAD_MISMATCH
    fence, _ = cluster.done(c.StartConsumer("f", "job", "m", "batch", 1))
    cluster.done(part(1, 1, fence, write("put", "derived", "a", value=2), last=True))
    assert derived(cluster) == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (part(2, 1, 1, PUT), Code.BAD_REQUEST),
        (part(1, 2, 1, PUT), Code.BAD_REQUEST),
        (part(4, 1, 1, PUT), Code.BAD_REQUEST),
        (part(1, 1, 2, PUT), Code.BAD_REQUEST),
        (part(1, 1, 1, write("put", "other", "k", value=1)), Code.BAD_REQUEST),
        (part(1, 1, 1, write("put", "t", "k", value=1)), Code.BAD_REQUEST),
        (part(1, 1, 1, PUT, write("increment", "derived", "k")), Code.BAD_REQUEST),
        (part(1, 1, 1, PUT, flow="g"), Code.NOT_FOUND),
        (part(1, 1, 1, write("put", "counts", "k", value="x" * 4000)), Code.QUOTA),
    ],
)
def test_part_that_cannot_be_written_is_refused_whole(command: c.Cascade, code: Code) -> None:
    cluster, _ = cascading()
    cluster.done(c.DeclareTable("counts", "resident", 4_000))
    assert cluster.refused(command).code is code


def test_a_target_that_was_never_declared_is_not_found() -> None:
    cluster = Cluster(target="nowhere")
    cluster.fill(1)
    fence, _ = cluster.done(c.Attach("f", "job", "n"))
    assert cluster.refused(part(1, 1, fence, write("put", "nowhere", "k", value=1))).code is Code.NOT_FOUND


def test_a_row_that_cannot_be_counted_refuses_the_whole_part_until_a_number_is_there() -> None:
    cluster, fence = cascading()
    text = write("put", "counts", "n", value="text")
    refused = cluster.refused(part(1, 1, fence, PUT, text, COUNT, last=True))
    assert (refused.code, "NOT_AN_INTEGER" in refused.detail) == (Code.BAD_REQUEST, True)
    most = write("put", "counts", "n", value=2**63 - 1)
    assert "OVERFLOW" in cluster.refused(part(1, 1, fence, most, COUNT)).detail
    cluster.done(part(1, 1, fence, text))
    assert "NOT_AN_INTEGER" in cluster.refused(part(1, 2, fence, COUNT)).detail
    many = (COUNT, write("delete", "counts", "n"), COUNT, write("put", "counts", "n", value=5), COUNT)
    cluster.done(part(1, 2, fence, *many[1:], last=True))
    assert count_of(cluster) == 7


def test_a_batch_has_as_many_parts_as_the_bound_says() -> None:
    full = Parts(1, bytes(16 * (PARTS_MAX - 1)))
    full.check_next(1, PARTS_MAX, last=True)
    with pytest.raises(BadRequestError, match="has to be the last one"):
        full.check_next(1, PARTS_MAX, last=False)
    with pytest.raises(BadRequestError):
        full.having(1, 7, 7).check_next(1, PARTS_MAX + 1, last=True)


def test_job_waits_while_nobody_reads_what_it_has_written() -> None:
    cluster, fence = cascading()
    cluster.done(c.DeclareTable("counts", "resident", 400))
    cluster.declare("next", "counts", consumers=("reader",))
    reader, _ = cluster.done(c.Attach("next", "reader", "n"))
    number = 0
    while not isinstance(refused := cluster.one(part(1, number + 1, fence, COUNT)), OncegateError):
        number += 1
    assert (refused.code, refused.retryable) == (Code.OVERLOADED, True)
    assert "reader (cursor 0)" in refused.detail
    before = count_of(cluster)
    cluster.done(c.MoveCursor("next", "reader", cluster.machine.flows.get("next").batches.last, reader, False))
    cluster.done(part(1, number + 1, fence, COUNT))
    assert count_of(cluster) == before + 2


def test_job_waits_also_for_what_lies_in_a_batch_that_is_not_sealed_yet() -> None:
    cluster, fence = cascading()
    cluster.done(c.DeclareTable("counts", "resident", 400))
    cluster.declare("next", "counts", max_items=1_000, consumers=("reader",))
    for number in range(1, 100):
        if isinstance(refused := cluster.one(part(1, number, fence, COUNT)), OncegateError):
            break
    assert (refused.code, cluster.machine.flows.get("next").batches.last) == (Code.OVERLOADED, 0)


def test_instance_that_writes_parts_shows_life() -> None:
    cluster, fence = cascading(consumers=("job",), consumer_expiry_ms=1_000)
    cluster.now_ms = 900
    cluster.done(part(1, 1, fence, COUNT))
    cluster.now_ms = 1_899
    assert cluster.done(c.ExpireConsumers("f")) == 0
    cluster.now_ms = 1_900
    assert cluster.done(c.ExpireConsumers("f")) == 1
    cluster.done(part(1, 2, fence, COUNT, last=True))
    assert not cluster.flow.consumers.get("job").expired, "retention waits for it again"


def test_full_stream_table_refuses_a_part_and_says_who_holds_it() -> None:
    cluster, fence = cascading()
    cluster.done(c.DeclareTable("derived", "stream", 50))
    cluster.done(part(1, 1, fence, PUT, PUT))
    refused = cluster.refused(part(1, 2, fence, PUT))
    assert (refused.code, refused.retry_after_ms) == (Code.QUOTA, 1_000)


def test_batch_that_was_dropped_is_not_written() -> None:
    cluster, fence = cascading(retention_ms=0)
    reader, _ = cluster.done(c.Attach("f", "other", "n"))
    cluster.done(c.MoveCursor("f", "other", 3, reader, False))
    cluster.done(c.MoveCursor("f", "job", 2, fence, False))
    cluster.done(c.StartConsumer("f", "late", "n", "beginning"))
    cluster.flow.consumers._by_name["job"].cursor = 0  # as a consumer that had expired
    assert cluster.refused(part(1, 1, fence, PUT)).code is Code.RETENTION_EXCEEDED


def test_last_part_lets_retention_go_on() -> None:
    cluster, fence = cascading(retention_ms=0)
    cluster.done(part(1, 1, fence, PUT))
    assert cluster.flow.batches.first == 1
    cluster.done(part(1, 2, fence, last=True))
    assert cluster.flow.batches.first == 2


def test_any_other_move_of_the_cursor_forgets_what_was_written_of_a_batch() -> None:
    cluster, fence = cascading()
    cluster.done(part(1, 1, fence, COUNT))
    cluster.done(c.MoveCursor("f", "job", 1, fence, False))
    cluster.done(c.MoveCursor("f", "job", 0, fence, True))
    assert not cluster.done(part(1, 1, fence, COUNT, last=True)).replayed, "a replay writes again"
    assert count_of(cluster) == 4


def test_flow_whose_targets_lead_back_to_its_source_is_refused() -> None:
    cluster, _ = cascading()
    for source, target in (("counts", "t"), ("derived", ("other", "t"))):
        flow = FlowDeclaration(name="back", source=source, target=target)
        refused = cluster.refused(c.DeclareFlow(msgspec.json.encode(flow)))
        assert refused.code is Code.BAD_REQUEST
        assert "cycle" in refused.detail


def test_one_target_has_one_form() -> None:
    one, same, none = ({"name": "f", "source": "t", "target": target} for target in ("a", ["a"], []))
    assert msgspec.convert(one, FlowDeclaration) == msgspec.convert(same, FlowDeclaration)
    assert msgspec.convert(none, FlowDeclaration).targets == ()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"batch": 0}, Code.BAD_REQUEST), ({"fence": 0}, Code.BAD_REQUEST), ({"part": 0}, Code.BAD_REQUEST),
        ({"part": PARTS_MAX + 1}, Code.BAD_REQUEST), ({"writes": []}, Code.BAD_REQUEST),
        ({"writes": [PUT] * (c.OPERATIONS_MAX + 1)}, Code.PAYLOAD_TOO_LARGE),
        ({"writes": [write("put", "d", "k", value="x" * 200_000)] * 6}, Code.PAYLOAD_TOO_LARGE),
        ({"writes": [write("put", "d", "k")]}, Code.BAD_REQUEST),
        ({"writes": [write("delete", "d", "k", value=1)]}, Code.BAD_REQUEST),
        ({"writes": [write("put", "d", "", value=1)]}, Code.BAD_REQUEST),
    ],
)  # fmt: skip
def test_bounds_of_a_part_are_checked_before_anything_is_proposed(fields: dict[str, Any], code: Code) -> None:
    sent = {"batch": 1, "part": 1, "fence": 1, "last": False, "writes": [PUT], **fields}
    with pytest.raises(OncegateError) as refused:
        request_bodies.cascade("f", "job", wire.Cascade(**sent))
    assert refused.value.code is code


@given(st.randoms(use_true_random=False))
def test_parts_sent_by_any_instance_in_any_order_count_each_batch_once(rng: random.Random) -> None:
    """Compared with a dictionary of what was accepted; each batch has a number of parts of its own."""
    cluster, fence = cascading()
    fences, sizes, counted = [fence], {batch: rng.randint(1, 3) for batch in (1, 2, 3)}, 0
    for _ in range(60):
        if rng.random() < 0.1:
            fences.append(cluster.done(c.Attach("f", "job", str(len(fences))))[0])
        batch = rng.randint(1, 3)
        number, sent_by = rng.randint(1, sizes[batch]), rng.choice(fences[-2:])
        result = cluster.one(part(batch, number, sent_by, COUNT, last=number == sizes[batch]))
        if isinstance(result, OncegateError):
            assert sent_by != fences[-1] or result.code is Code.BAD_REQUEST
        else:
            assert sent_by == fences[-1]
            counted += not result.replayed
        assert count_of(cluster) == (2 * counted or None)
        assert counted <= sum(sizes.values())
        assert counted >= sum(sizes[batch] for batch in range(1, cursor_of(cluster) + 1))


def test_explain_finds_the_writes_of_a_cascade_and_tells_them_from_their_repetition() -> None:
    cluster, fence = cascading()
    commands = [part(1, 1, fence, PUT, COUNT), part(1, 1, fence, PUT, COUNT), part(2, 1, fence, COUNT)]
    commands += [part(1, 2, fence, COUNT, last=True), c.MoveCursor("f", "job", 1, fence, False)]
    commit = cluster.machine.commit
    cluster.do(*commands)
    entries = list(Search(OfKey("counts", "n"), cluster.verdicts).entry(cluster.entries[-1], cluster.at, 1))
    did = [(one.did.what, one.did.commit) for one in entries if isinstance(one, Mention)]
    assert did == [
        (EXECUTED, commit + 2),
        (DUPLICATE, commit + 2),
        ("refused: BAD_REQUEST", 0),
        (EXECUTED, commit + 3),
    ]
    assert [one.batch for one in entries if isinstance(one, Moved)] == [1, 1]


def test_saves_and_snapshots_hold_a_batch_that_is_written_in_part(tmp_path: Path) -> None:
    leader, follower = Fed(tmp_path / "leader"), Fed(tmp_path / "follower")
    leader.do(c.DeclareTable("t", "resident", 1 << 20), c.DeclareTable("counts", "resident", 1 << 20))
    flow = FlowDeclaration(name="f", source="t", target="counts", max_items=1)
    leader.do(c.DeclareFlow(msgspec.json.encode(flow)), c.OpenSession("n", 10**6, 512))
    leader.do(c.Operate(1, 1, 1, [c.Op(1, 1, "t", "k", 1, b"1")]), c.Attach("f", "job", "n"))
    leader.save()
    leader.do(part(1, 1, 1, COUNT))
    leader.save()
    leader = leader.reopened()
    ship(leader.state, follower.state).install()
    assert state_digest(follower.machine) == state_digest(leader.machine)
    (again,) = follower.do(part(1, 1, 1, COUNT))
    assert again.replayed
    leader.close()
    follower.close()
