"""A result that is not acknowledged outlives the log: it is in the saved state, and in what other nodes get of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState, state_digest
from oncegate.rifl.errors import Code
from tests.gateway.logs import told
from tests.gateway.state_harness import point, ship

LEASE_MS = 10_000


def _increment(sequence: int, first_incomplete: int = 1, epoch: int = 1) -> c.Operate:
    op = c.Op(sequence, int(c.OpKind.INCREMENT), "t", "n", sequence, by=1)
    return c.Operate(1, epoch, first_incomplete, [op])


def _apply(machine: Machine, index: int, time_ms: int, *commands: Any) -> list[Any]:
    return machine.apply(index, 1, c.encode_entry(time_ms, list(commands)))


@pytest.fixture
def saved(tmp_path: Path) -> MachineState:
    """A state saved between the apply of operations 1 to 3 and their ack; there is no log behind it."""
    state = MachineState(tmp_path / "state")
    _apply(state.machine, 1, 0, c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", LEASE_MS, 8))
    _apply(state.machine, 2, 5, c.TakeOver(1, "m"), *(_increment(sequence, 1, 2) for sequence in (1, 2, 3)))
    _apply(state.machine, 3, 6, _increment(4, 2, 2))
    state.begin_save(point(3))
    assert state.wait_saved(20)
    return state


def _check(machine: Machine) -> None:
    """Ask again for everything that was done: only what was acknowledged is refused, nothing runs."""
    before = machine.commit
    retried = [told(_apply(machine, 4, 7, _increment(sequence, 1, 2))[0].verdicts[0]) for sequence in (1, 2, 3, 4)]
    assert [(code, replayed) for _, code, _, replayed in retried] == [(Code.STALE, False), *[(None, True)] * 3]
    assert [record.commit for _, _, record, _ in retried[1:]] == [2, 3, 4]
    assert machine.commit == before == 4
    [fenced] = _apply(machine, 5, 8, _increment(5, 1, 1))
    assert told(fenced.verdicts[0])[1] is Code.FENCED
    [new] = _apply(machine, 6, 9, _increment(5, 4, 2))
    assert new.verdicts[0].record.commit == 5
    assert machine.tables["t"].rows.get("n").value == b"5"  # type: ignore[union-attr]


def test_retry_after_a_restart_from_a_state_saved_before_the_ack_is_replayed(saved: MachineState) -> None:
    """Cases 26 and 27: the log before the state is gone, the record is not."""
    path = saved._directory.path
    digest = state_digest(saved.machine)
    saved.close()
    restored = MachineState(path)
    try:
        assert state_digest(restored.machine) == digest
        _check(restored.machine)
    finally:
        restored.close()


def test_retry_at_a_node_that_got_the_state_as_a_snapshot_is_replayed(saved: MachineState, tmp_path: Path) -> None:
    """Cases 25 to 27: sessions, acks, records and cluster time are those of the source."""
    other = MachineState(tmp_path / "other")
    ship(saved, other).install()
    try:
        assert state_digest(other.machine) == state_digest(saved.machine)
        assert other.machine.time_ms == 6
        _check(other.machine)
    finally:
        other.close()
        saved.close()


def test_lease_in_a_saved_state_ends_where_it_would_have(saved: MachineState) -> None:
    """A lease is cluster time: neither saving nor the time without a node moves its end, and nobody is reaped early."""
    path = saved._directory.path
    saved.close()
    restored = MachineState(path)
    try:
        machine = restored.machine
        assert machine.sessions.expired(6 + LEASE_MS) == []
        assert _apply(machine, 4, 6 + LEASE_MS, c.Reap([1])) == [0]
        assert machine.sessions.expired(6 + LEASE_MS + 2_000) == [1]
        assert _apply(machine, 5, 6 + LEASE_MS + 1, c.Reap([1])) == [1]
    finally:
        restored.close()
