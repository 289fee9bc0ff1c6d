"""Cluster time: from the last applied entry on, by the leader's own monotonic clock, never back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import ClusterClock
from oncegate.rifl.rule import Applied

SILENCE_MS_MAX = 250


def leading(applied_ms: int, monotonic_s: float) -> ClusterClock:
    clock = ClusterClock(silence_ms_max=SILENCE_MS_MAX)
    clock.lead_from(applied_ms, monotonic_s)
    return clock


def test_clock_a_day_ahead_expires_nobody() -> None:
    """Case 17: the new leader's own reading is only compared with itself."""
    for reading in (0.0, 86_400.0, 1e9):
        assert leading(5_000, reading).stamp_ms(reading + 0.125) == 5_125


def test_clock_that_jumps_back_stalls() -> None:
    """Case 18."""
    clock = leading(5_000, 100.0)
    assert [clock.stamp_ms(s) for s in (100.125, 50.0, 100.0625, 100.25)] == [5_125, 5_125, 5_125, 5_250]


def test_time_in_which_the_leader_slept_does_not_pass() -> None:
    """Case 19, with a cluster that is frozen instead of down: whoever leads when it wakes goes on leading."""
    machine = Machine()
    clock = leading(0, 100.0)
    apply(machine, 1, 1, c.encode_entry(clock.stamp_ms(100.0), [c.OpenSession("n", 1_000, 8)]))
    assert [clock.stamp_ms(s) for s in (3_700.0, 3_700.125)] == [SILENCE_MS_MAX, SILENCE_MS_MAX + 125]
    assert machine.sessions.expired(clock.stamp_ms(3_700.125)) == []


@given(st.lists(st.floats(0, 10), max_size=30))
def test_time_passes_as_on_the_leaders_clock_but_for_what_it_slept(gaps_s: list[float]) -> None:
    clock, reading, awake_s = leading(5_000, 0.0), 0.0, 5.0
    for gap_s in gaps_s:
        reading += gap_s
        awake_s += min(gap_s, SILENCE_MS_MAX / 1000)
        assert abs(clock.stamp_ms(reading) - awake_s * 1000) <= 1 + 1e-6


def test_outage_longer_than_a_lease_expires_nobody() -> None:
    """Case 19: the whole cluster is down for an hour; the session can still write."""
    machine = Machine()
    apply(machine, 1, 1, c.encode_entry(1_000, [c.OpenSession("n", 1_000, 8), c.DeclareTable("t", "resident", 1_024)]))
    clock = leading(machine.time_ms, 3_600.0)
    stamp = clock.stamp_ms(3_600.5)
    op = c.Op(1, int(c.OpKind.PUT), "t", "k", 1, b"1")
    [result] = apply(machine, 2, 2, c.encode_entry(stamp, [c.Operate(1, 1, 1, [op])]))
    assert isinstance(result.verdicts[0], Applied)
    assert machine.sessions.expired(stamp) == []


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=30))
def test_stamps_never_go_back_through_any_changes_of_leader(steps: list[tuple[bool, float]]) -> None:
    clock, applied = leading(0, 0.0), 0
    for takes_the_lead, reading in steps:
        if takes_the_lead:
            clock = leading(applied, reading)
        stamp = clock.stamp_ms(reading)
        assert stamp >= applied
        assert not takes_the_lead or stamp == applied
        applied = stamp
