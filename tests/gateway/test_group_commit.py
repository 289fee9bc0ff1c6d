"""The rule of group commit: what waits leaves when nothing is under way, or when it is large by itself."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncegate.gateway.machine.ordering import leaves_now

LARGE = 16_384
"""Bytes that do not wait for anybody."""


@pytest.mark.parametrize(
    ("waiting_bytes", "under_way", "leaves"),
    [(0, 0, True), (1, 0, True), (LARGE, 0, True), (LARGE - 1, 1, False), (LARGE, 1, True), (LARGE + 1, 9, True)],
)
def test_small_commands_alone_wait_and_only_for_entries_under_way(
    waiting_bytes: int, under_way: int, leaves: bool
) -> None:
    assert leaves_now(waiting_bytes, under_way) is leaves


@given(st.integers(0, 3 * LARGE), st.integers(1, 20), st.integers(0, LARGE))
@example(LARGE - 1, 1, 1)
def test_more_that_waits_and_less_under_way_never_keep_back_what_could_leave(
    waiting_bytes: int, under_way: int, more: int
) -> None:
    if leaves_now(waiting_bytes, under_way):
        assert leaves_now(waiting_bytes + more, under_way)
    assert leaves_now(waiting_bytes, under_way) == leaves_now(waiting_bytes, 1)
    assert leaves_now(waiting_bytes, 0), "nothing would ever bring it on its way"
