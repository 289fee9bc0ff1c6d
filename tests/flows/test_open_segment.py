"""Collecting items and handing them over."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows import range_body, segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.open_segment import OpenSegment, OpenSegmentState

STEPS = st.lists(st.none() | st.integers(-2, 4).filter(bool), max_size=12)
"""None is a single write, a negative number one with a trace context, another number a range of that length."""
TRACES = ["", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-other"]


def fill(part: OpenSegment, steps: list[int | None], commit: int = 1) -> int:
    for step in steps:
        if step is None or step < 0:
            part.append_one(commit, f"k{commit}", b"%d" % commit if commit % 3 else None, 1000 + commit, 7, commit)
            if step is not None:
                part.trace_last(TRACES[-step])
            commit += 1
        else:
            body = range_body.encode([f"k{commit + i}" for i in range(step)], [b"1"] * step)
            part.append_range(commit, step, 1000 + commit, 7, commit, body, 0, TRACES[step % 3])
            commit += step
    return commit


def encoded(part: OpenSegment) -> bytes:
    return msgspec.msgpack.encode(part.snapshot())


def test_empty_segment_has_no_first_item_and_cannot_be_sealed() -> None:
    part = OpenSegment("f", "t")
    assert (part.items, part.size_bytes, part.first_commit, part.last_commit, part.opened_ms) == (0, 0, None, 0, None)
    with pytest.raises(ValueError, match="empty"):
        part.freeze(1)


@settings(deadline=None)
@given(STEPS.filter(bool))
def test_counts_follow_the_items(steps: list[int | None]) -> None:
    part = OpenSegment("f", "t")
    following = fill(part, steps)
    assert part.items == following - 1
    assert (part.first_commit, part.last_commit) == (1, following - 1)
    assert part.opened_ms == 1001
    assert part.size_bytes > 0
    sealed = part.freeze(5)
    assert (sealed.number, sealed.first_commit) == (5, 1)
    assert sealed.items == sealed.last_commit == following - 1
    assert sum(chunk.items for chunk in sealed.chunks) == sealed.items
    assert (part.items, part.size_bytes, part.opened_ms) == (0, 0, None)
    assert part.last_commit == following - 1


def test_item_out_of_order_is_refused_and_not_added() -> None:
    part = OpenSegment("f", "t")
    fill(part, [None, 3])
    before = encoded(part)
    with pytest.raises(ValueError, match="does not follow"):
        part.append_one(4, "k", None, 0, 1, 1)
    for commit, items in ((4, 2), (5, 0)):
        with pytest.raises(ValueError, match="does not follow"):
            part.append_range(commit, items, 0, 1, 1, b"")
    assert encoded(part) == before
    part.freeze(1)
    with pytest.raises(ValueError, match="does not follow"):
        part.append_one(4, "k", None, 0, 1, 1)


def test_snapshot_and_sealed_batch_do_not_change_with_later_appends() -> None:
    part = OpenSegment("f", "t")
    following = fill(part, [2, None])
    state = part.snapshot()
    snapshot = msgspec.msgpack.encode(state)
    following = fill(part, [None, 2, None], following)
    sealed = part.freeze(1)
    batch = msgspec.msgpack.encode(sealed)
    fill(part, [None, 2], following)
    assert (msgspec.msgpack.encode(state), msgspec.msgpack.encode(sealed)) == (snapshot, batch)
    assert msgspec.msgpack.decode(batch, type=SealedBatch) == sealed


@settings(deadline=None)
@given(STEPS, STEPS)
def test_restored_segment_goes_on_as_if_it_had_never_stopped(early: list[int | None], late: list[int | None]) -> None:
    steady = OpenSegment("f", "t")
    following = fill(steady, early)
    restored = OpenSegment.restore(msgspec.msgpack.decode(encoded(steady), type=OpenSegmentState))
    assert encoded(restored) == encoded(steady)
    fill(steady, late, following)
    fill(restored, late, following)
    assert encoded(restored) == encoded(steady)
    assert (restored.items, restored.opened_ms) == (steady.items, steady.opened_ms)
    if steady.items:
        one, other = steady.freeze(1), restored.freeze(1)
        assert one == other
        assert segment.build(one.chunks, "f", "t", 1) == segment.build(other.chunks, "f", "t", 1)


@given(st.lists(st.sampled_from(TRACES), min_size=1, max_size=12), st.data())
def test_view_of_a_run_keeps_its_trace_contexts_while_the_run_grows(traces: list[str], data: st.DataObject) -> None:
    part = OpenSegment("f", "t")
    seen = data.draw(st.integers(1, len(traces)))
    start = data.draw(st.integers(0, seen - 1))
    for commit, trace in enumerate(traces, 1):
        part.append_one(commit, "k", b"1", 0, 7, commit)
        if trace:
            part.trace_last(trace)
        if commit == seen:
            view = part.run_view()
            early = view.chunk(start, seen)
    late = view.chunk(start, seen)
    assert late == early
    wanted = [trace or None for trace in traces[start:seen]]
    assert list(late.traceparents) == (wanted if any(wanted) else [])


def test_writes_without_a_trace_context_hold_no_memory_for_it_and_those_with_one_share_it() -> None:
    part = OpenSegment("f", "t")
    fill(part, [None] * 3)
    plain, untraced = part.size_bytes, part.snapshot().chunks[0]
    assert untraced.traceparents == ()
    for commit in range(4, 7):
        part.append_one(commit, "k", b"1", 0, 7, commit)
        part.trace_last("".join(TRACES[1]))
    weight = part.size_bytes - plain
    following = OpenSegment("f", "t")
    following.append_one(1, "k", b"1", 0, 7, 1)
    assert weight == 3 * following.size_bytes + len(TRACES[1])
