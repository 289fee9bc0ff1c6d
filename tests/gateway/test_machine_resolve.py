"""Resolving: a caller who must know finds out, and what was called sealed is never executed."""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.gateway.answers import request_state
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.results import AppliedPart, Resolved
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX
from oncegate.rifl.range_rule import RefusedPart
from oncegate.rifl.resolve_rule import Fate
from oncegate.rifl.rule import Refusal
from tests.gateway.test_machine import Log, increment, put, session, started


def resolved(log: Log, sequence: int, *, at: int | None = None, client: int = 1, epoch: int = 0, fi: int = 1) -> Any:
    """Return the fate, or the code of a refusal."""
    [result] = log.do(c.Resolve(client, sequence, epoch, fi), at=at)
    if isinstance(result, OncegateError):
        return result.code
    assert isinstance(result, Resolved)
    return result.resolution.fate


def range_of(first: int, count: int) -> c.Range:
    prints = b"".join(c.fingerprint_put("s", "k", b"%d" % s).to_bytes(8, "big") for s in range(first, first + count))
    return c.Range(1, 1, 1, "s", first, prints, b"")


def test_resolve_before_the_attempt_seals_and_after_it_returns_the_result() -> None:
    """The log decides the race of a resolve with an attempt in flight, within one entry too."""
    attempt, ask = c.Operate(1, 1, 1, [increment(1, 5)]), c.Resolve(1, 1)
    for order, fate, value in (([attempt, ask], Fate.APPLIED, 5), ([ask, attempt], Fate.SEALED, None)):
        log = started()
        results = log.do(*order)
        [answer] = [result for result in results if isinstance(result, Resolved)]
        assert answer.resolution.fate is fate
        assert log.value("n") == value
        assert resolved(log, 1) is fate, "a fate does not change"


def test_late_attempt_of_a_sealed_id_is_refused_whatever_its_payload() -> None:
    """Case 11 without an ack: the late copy, a reuse of the number, and a range that covers it."""
    log = started()
    assert resolved(log, 1) is Fate.SEALED
    assert log.one(increment(1)) is Code.STALE
    assert log.one(put(1, "other")) is Code.STALE
    [ranged] = log.do(range_of(1, 3))
    assert ranged.parts == [RefusedPart(1, 1, Refusal.SEALED), AppliedPart(2, 3, 1)]
    assert log.machine.commit == 2, "a seal takes no commit number"


def test_applied_comes_with_its_stored_result_also_out_of_a_range() -> None:
    log = started()
    log.do(range_of(1, 3))
    log.one(increment(4, 7))
    [inside] = log.do(c.Resolve(1, 2))
    assert inside.resolution.record.commit == 2
    [alone] = log.do(c.Resolve(1, 4))
    assert alone.resolution.record.result.value == b"7"


def test_acknowledged_and_expired_ids_have_their_own_answers() -> None:
    log = started()
    log.one(increment(1))
    log.one(increment(2), fi=2)
    assert resolved(log, 1) is Fate.ACKNOWLEDGED
    log.do(c.Reap([1]), at=60_000)
    assert resolved(log, 2) is Fate.EXPIRED
    assert resolved(log, 1, client=ID_MAX) is Code.NOT_FOUND


def test_resolve_works_when_the_lease_has_ended_and_revives_nothing() -> None:
    log = started()
    log.one(increment(1))
    assert resolved(log, 1, at=30_000) is Fate.APPLIED
    assert resolved(log, 2, epoch=1, fi=2) is Fate.SEALED
    assert log.one(increment(2)) is Code.STALE
    assert log.one(increment(3)) is Code.SESSION_EXPIRED
    log.do(c.Reap([1]))
    assert log.machine.sessions.get(1) is None


def test_strangers_resolve_without_renewing_and_fenced_owners_may_not_acknowledge() -> None:
    log = started()
    log.one(increment(1))
    ends = [s.ends_ms for s in log.machine.sessions]
    assert resolved(log, 2, at=5_000) is Fate.SEALED
    assert [s.ends_ms for s in log.machine.sessions] == ends
    log.do(c.TakeOver(1, "b"))
    assert resolved(log, 1, epoch=1, fi=1) is Code.FENCED
    assert resolved(log, 1) is Fate.APPLIED


@pytest.mark.parametrize("window", [2, 8])
def test_seals_take_places_in_the_window_and_go_with_the_ack(window: int) -> None:
    log = started(window=window)
    fates = [resolved(log, sequence) for sequence in range(1, window + 3)]
    assert fates == [Fate.SEALED] * window + [Code.WINDOW_FULL] * 2
    assert len(log.machine.trackers[1].records) == window
    beyond = window + 2
    assert resolved(log, beyond, epoch=1, fi=window + 1) is Fate.SEALED
    assert resolved(log, beyond, epoch=1, fi=beyond + 1) is Code.BAD_ACK
    assert log.one(put(beyond + 1), fi=beyond) == (1, None, False)
    assert len(log.machine.trackers[1].records) <= 2


def test_numbers_above_a_seal_are_known_to_the_next_owner() -> None:
    log = started()
    log.do(session("b"))
    resolved(log, 5, client=2)
    [taken] = log.do(c.TakeOver(2, "c"))
    assert taken.highest == 5


def test_sealed_state_is_reported_without_a_result() -> None:
    log = started()
    resolved(log, 3)
    state = request_state(log.machine, 1, 3)
    assert (state.state, state.result) == ("sealed", None)
