"""Where batches are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.batcher import due, due_ms, has_room, is_full, pieces
from oncegate.flows.flow import FlowDeclaration

FLOW = FlowDeclaration(name="f", source="a", max_items=10, max_bytes=100, linger_ms=50)


def test_segment_is_full_at_either_bound() -> None:
    assert not is_full(FLOW, 9, 99)
    assert is_full(FLOW, 10, 0)
    assert is_full(FLOW, 1, 100)


def test_group_goes_into_a_segment_that_it_does_not_overfill_and_into_an_empty_one_whatever_its_size() -> None:
    assert has_room(FLOW, 1, 9)
    assert not has_room(FLOW, 1, 10)
    assert not has_room(FLOW, 9, 2)
    assert has_room(FLOW, 0, 11)


def test_seal_for_age_is_due_at_the_linger_and_never_for_an_empty_segment() -> None:
    assert not due(FLOW, 1000, 1049)
    assert due(FLOW, 1000, 1050)
    assert due_ms(FLOW, 1000) == 1050
    assert not due(FLOW, None, 10**9)


@settings(deadline=None)
@given(st.integers(1, 20), st.data())
def test_pieces_cover_a_range_and_fill_each_batch_but_the_last(max_items: int, data: st.DataObject) -> None:
    flow = FlowDeclaration(name="f", source="a", max_items=max_items)
    items, count = data.draw(st.integers(0, max_items - 1)), data.draw(st.integers(1, 100))
    cut = pieces(flow, items, count)
    assert sum(cut) == count
    assert min(cut) >= 1
    for piece in cut[:-1]:
        assert items + piece == max_items
        items = 0
    assert items + cut[-1] <= max_items
