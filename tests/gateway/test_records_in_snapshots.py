"""A result that is not acknowledged outlives the log: it is in the saved state, and in what other nodes get of it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import ANY

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.machine.state import state_digest
from oncegate.rifl.completion import RangeRecord
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import SequenceNumber
from tests.gateway.logs import told
from tests.gateway.state_harness import Fed, ship

LEASE_MS = 10_000


def _increment(sequence: int, first_incomplete: int = 1, epoch: int = 1) -> c.Operate:
    op = c.Op(sequence, int(c.OpKind.INCREMENT), "t", "n", sequence, by=1)
    return c.Operate(1, epoch, first_incomplete, [op])


@pytest.fixture
def saved(tmp_path: Path) -> Fed:
    """A state saved between the apply of operations 1 to 3 and their ack; there is no log behind it."""
    fed = Fed(tmp_path / "state")
    fed.do(c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", LEASE_MS, 8))
    fed.do(c.TakeOver(1, "m"), *(_increment(sequence, 1, 2) for sequence in (1, 2, 3)), at_ms=5)
    fed.do(_increment(4, 2, 2), at_ms=6)
    fed.save()
    return fed


def _check(fed: Fed) -> None:
    """Ask again for everything that was done: only what was acknowledged is refused, nothing runs."""
    machine, before = fed.machine, fed.machine.commit
    retried = [told(result.verdicts[0]) for result in fed.do(*(_increment(s, 1, 2) for s in (1, 2, 3, 4)), at_ms=7)]
    assert [(code, replayed) for _, code, _, replayed in retried] == [(Code.STALE, False), *[(None, True)] * 3]
    assert [record and record.commit for _, _, record, _ in retried[1:]] == [2, 3, 4]
    assert machine.commit == before == 4
    fenced, new = fed.do(_increment(5, 1, 1), _increment(5, 4, 2), at_ms=8)
    assert told(fenced.verdicts[0])[1] is Code.FENCED
    assert new.verdicts[0].record.commit == 5
    assert machine.tables["t"].rows.get("n").value == b"5"  # type: ignore[union-attr]
    fed.close()


def test_retry_after_a_restart_from_a_state_saved_before_the_ack_is_replayed(saved: Fed) -> None:
    """Cases 26 and 27: the log before the state is gone, the record is not."""
    _check(saved.reopened())


def test_retry_at_a_node_that_got_the_state_as_a_snapshot_is_replayed(saved: Fed, tmp_path: Path) -> None:
    """Cases 25 to 27: sessions, acks, records and cluster time are those of the source."""
    other = Fed(tmp_path / "other")
    ship(saved.state, other.state).install()
    assert state_digest(other.machine) == state_digest(saved.machine)
    assert other.machine.time_ms == 6
    _check(other)
    saved.close()


def test_lease_in_a_saved_state_ends_where_it_would_have(saved: Fed) -> None:
    """A lease is cluster time: neither saving nor the time without a node moves its end, and nobody is reaped early."""
    restored = saved.reopened()
    assert restored.machine.sessions.expired(6 + LEASE_MS) == []
    assert restored.do(c.Reap([1]), at_ms=6 + LEASE_MS) == [([], 0)]
    assert restored.machine.sessions.expired(6 + LEASE_MS + 2_000) == [1]
    assert restored.do(c.Reap([1]), at_ms=6 + LEASE_MS + 1) == [([], 1)]
    restored.close()


def _puts(first: int, count: int, acked: int = 1) -> c.Command:
    keys = [f"k{n}" for n in range(first, first + count)]
    ops = [c.Op(first + at, 1, "t", key, c.fingerprint_put("t", key, b"1"), b"1") for at, key in enumerate(keys)]
    return in_columns(c.Operate(1, 1, acked, ops))


def test_run_of_puts_is_remembered_in_one_record_over_saves_snapshots_and_acks_inside_of_it(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "state")
    fed.do(c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", LEASE_MS, 32))
    fed.do(_puts(1, 8), _puts(10, 6, acked=3))
    assert [(run.first, run.last, run.commit) for run in fed.machine.trackers[1].runs] == [(3, 8, 3), (10, 15, 9)]
    assert not fed.machine.trackers[1].kept_singly
    assert fed.do(c.Resolve(1, SequenceNumber(9)))[0].resolution.fate == "sealed"
    assert fed.do(c.Resolve(1, SequenceNumber(12)))[0].resolution.record.commit == 11
    fed.save()
    other = Fed(tmp_path / "other")
    ship(fed.state, other.state).install()
    digests: set[str] = set()
    for one in (fed.reopened(), other):
        assert one.machine.trackers[1].runs == [RangeRecord(3, 8, 3, ANY), RangeRecord(10, 15, 9, ANY)]
        part, over = one.do(_puts(5, 4), _puts(7, 10))
        assert [told(verdict)[3] for verdict in part.verdicts] == [True] * 4
        done = [(code, record and record.commit, replayed) for _, code, record, replayed in map(told, over.verdicts)]
        assert done[:2] == [(None, 7, True), (None, 8, True)]
        assert done[2] == (Code.STALE, None, False), "the sealed number is never executed"
        assert done[3:] == [*[(None, commit, True) for commit in range(9, 15)], (None, 15, False)]
        assert one.machine.commit == 15
        digests.add(state_digest(one.machine))
        one.close()
    assert len(digests) == 1


def test_the_nonce_of_a_closed_session_is_remembered_by_every_node(tmp_path: Path) -> None:
    fed, other = Fed(tmp_path / "s"), Fed(tmp_path / "other")
    fed.do(c.OpenSession("n", 5_000, 8), c.CloseSession(1, 1))
    fed.save()
    ship(fed.state, other.state).install()
    assert state_digest(other.machine) == state_digest(fed.machine)
    for node in (fed.reopened(), other):
        (again,) = node.do(c.OpenSession("n", 5_000, 8), at_ms=4_000)
        assert isinstance(again, OncegateError)
        assert node.machine.sessions.get(2) is None
        node.close()
