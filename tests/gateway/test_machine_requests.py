"""Requests under idempotency keys, and requests that are resolved.

Under a key, effect and record are one transition, forgotten in order and never silently repeated. A caller who must
know finds out by resolving, and what was called sealed is never executed.
"""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.gateway.answers import request_state
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import idempotency_keys as keys_module
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, Resolved
from oncegate.gateway.machine.rows import DictRows
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import ID_MAX, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT, NO_TIME, KeyTable
from oncegate.rifl.range_rule import RefusedPart
from oncegate.rifl.resolve_rule import Fate
from oncegate.rifl.rule import Refusal
from tests.gateway.logs import told
from tests.gateway.machine_log import MachineLog, increment, op, put
from tests.gateway.test_machine import session, started

HOUR = 3_600_000


def keyed(
    log: MachineLog, *ops: tuple[str, c.Op], at_ms: int | None = None, named_ms: int = NO_TIME, tenant: str = ""
) -> Any:
    """Return a verdict per operation: the code of a refusal, else (number, commit, value, replayed)."""
    command = c.Keyed(HOUR, [c.KeyedOp(key, named_ms, operation) for key, operation in ops], tenant)
    [result] = log.do(command, at_ms=at_ms)
    assert isinstance(result, Operated)
    return [
        code if record is None else (number, record.commit, record.result and record.result.value, replayed)
        for number, code, record, replayed in map(told, result.verdicts)
    ]


def test_same_key_replays_and_another_payload_is_refused() -> None:
    log = started()
    assert keyed(log, ("a", increment(0, 5))) == [(1, 1, b"5", False)]
    assert keyed(log, ("b", increment(0, 5))) == [(2, 2, b"10", False)]
    assert keyed(log, ("a", increment(0, 5))) == [(1, 1, b"5", True)]
    assert keyed(log, ("a", increment(0, 6)), ("a", put(0))) == [Code.PAYLOAD_MISMATCH] * 2
    assert log.value("n") == 10


@pytest.mark.parametrize("names", ["ab", "ba", "bc", "abac", "bac"])
def test_memory_told_of_keys_is_that_of_the_one_forgotten_first(names: str) -> None:
    log = started()
    keyed(log, ("a", put(0)), at_ms=1_000)
    command = c.Keyed(HOUR, [c.KeyedOp(name, NO_TIME, put(0)) for name in names])
    [result] = log.do(command, at_ms=3_000)
    assert result.memory_ms == HOUR - (2_000 if "a" in names else 0)
    [late] = log.do(c.Keyed(HOUR, [c.KeyedOp("a", NO_TIME, put(0, 2))]), at_ms=3_000)
    assert late.memory_ms == 0, "a key that was refused is not remembered"


class Looked(DictRows):
    """Rows that note what is read ahead of an entry."""

    ahead: list[list[str]]

    def look_ahead(self, keys: list[str]) -> None:
        self.ahead.append(keys)


def test_rows_of_an_entry_are_read_ahead_together_whoever_writes_them() -> None:
    Looked.ahead = []
    machine = Machine(lambda _: Looked())
    apply(machine, 1, 1, c.encode_entry(1, [c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", HOUR, 9)]))
    sent = [put(at, key=f"k{at}") for at in range(1, 6)]
    late = sent[3:]
    commands: list[c.Command] = [
        c.Keyed(HOUR, [c.KeyedOp("a", NO_TIME, sent[0]), c.KeyedOp("b", NO_TIME, sent[1])]),
        c.Operate(1, 1, SequenceNumber(1), [sent[2]]),
        c.Keyed(HOUR, [c.KeyedOp("c", NO_TIME, late[0])]),
        c.Operate(1, 1, SequenceNumber(1), [late[1]]),
    ]
    apply(machine, 2, 1, c.encode_entry(2, commands))
    assert Looked.ahead == [["k1", "k2", "k3", "k4", "k5"]]
    assert len(machine.tables["t"].rows) == 5


def test_duplicates_in_one_request_or_one_entry_apply_once() -> None:
    log = started()
    assert keyed(log, ("a", increment(0)), ("a", increment(0))) == [(1, 1, b"1", False), (1, 1, b"1", True)]
    command = c.Keyed(HOUR, [c.KeyedOp("b", NO_TIME, increment(0))])
    one, two = log.do(command, command)
    assert [told(one.verdicts[0])[3], told(two.verdicts[0])[3]] == [False, True]
    assert log.value("n") == 2


def test_business_refusals_are_remembered_and_rejections_are_not() -> None:
    """Case 31."""
    log = started()
    log.answer(put(1, "x"))
    absent = put(0, "y", test=int(c.Test.ABSENT))
    assert keyed(log, ("a", absent)) == [(1, 2, b'"x"', False)]
    log.answer(op(2, c.OpKind.DELETE))
    assert keyed(log, ("a", absent)) == [(1, 2, b'"x"', True)]
    assert keyed(log, ("b", put(0, table="later"))) == [Code.NOT_FOUND]
    log.do(c.DeclareTable("later", "resident", 1 << 20))
    assert keyed(log, ("b", put(0, table="later"))) == [(2, 4, None, False)]


def test_key_is_remembered_for_its_lifetime_and_then_refused_where_it_names_a_time() -> None:
    log = started()
    at = log.now_ms + 5_000
    assert keyed(log, ("plain", increment(0)), at_ms=at) == [(1, 1, b"1", False)]
    assert keyed(log, ("named", increment(0)), named_ms=4_000) == [(2, 2, b"2", False)]
    assert keyed(log, ("future", increment(0)), named_ms=at + 1) == [Code.BAD_REQUEST]
    late = at + HOUR
    assert keyed(log, ("plain", increment(0)), ("named", increment(0)), at_ms=late)[1] == (2, 2, b"2", True)
    log.do(c.ForgetKeys(), at_ms=late + 1)
    assert keyed(log, ("named", increment(0)), named_ms=4_000) == [Code.SESSION_EXPIRED]
    assert keyed(log, ("other", increment(0)), named_ms=at) == [Code.SESSION_EXPIRED]
    assert keyed(log, ("other", increment(0)), named_ms=at + 1) == [(3, 3, b"3", False)]
    assert keyed(log, ("plain", increment(0))) == [(4, 4, b"4", False)], "its age cannot be told"


def test_tenants_keys_never_meet() -> None:
    """Case 3."""
    log = started()
    keyed(log, ("a", increment(0, 5)))
    assert keyed(log, ("a", increment(0, 5)), tenant="bob") == [(2, 2, b"10", False)]
    assert request_state(log.machine, KEYS_CLIENT, 1).state == "applied"
    assert request_state(log.machine, KEYS_CLIENT, 1, "bob").state == "never_seen"
    [refused] = log.do(c.Resolve(KEYS_CLIENT, 1, tenant="bob"))
    assert refused.code is Code.NOT_FOUND
    [resolved] = log.do(c.Resolve(KEYS_CLIENT, 2, tenant="bob"))
    assert resolved.resolution.record.commit == 2


def test_flow_items_carry_the_request_id_that_the_key_was_mapped_to() -> None:
    log = started()
    keyed(log, ("a", put(0, "x", table="s")), ("b", put(0, "y", table="s")))
    run = log.machine.flows.get("s").segment.run_view()
    assert list(run.client_ids) == [KEYS_CLIENT] * 2
    assert list(run.sequences) == [1, 2]


def test_keys_whose_time_is_over_never_pile_up() -> None:
    log = started()
    for number in range(20):
        keyed(log, (f"k{number}", put(0)), at_ms=number * (HOUR + 1))
        assert len(log.machine.keys) <= 1


@pytest.mark.parametrize("loses", [True, False])
def test_execution_without_a_remembered_key_or_a_key_without_execution_raises(
    loses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request under that key would find nothing and execute again, or be answered for what never ran."""
    log = started()
    if loses:
        monkeypatch.setattr(KeyTable, "add", lambda *_: None)
    else:
        monkeypatch.setattr(keys_module, "execute", lambda _, __, slot, *more: slot.record(1, 7, 1) and Code.NOT_FOUND)
    with pytest.raises(InvariantViolation, match="key 1 "):
        keyed(log, ("a", increment(0)))


def resolved(
    log: MachineLog, sequence: int, *, at_ms: int | None = None, client: int = 1, epoch: int = 0, fi: int = 1
) -> Any:
    """Return the fate, or the code of a refusal."""
    [result] = log.do(c.Resolve(client, sequence, epoch, fi), at_ms=at_ms)
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
    for order, fate, value in (([attempt, ask], Fate.EXECUTED, 5), ([ask, attempt], Fate.SEALED, None)):
        log = started()
        results = log.do(*order)
        [answer] = [result for result in results if isinstance(result, Resolved)]
        assert answer.resolution.fate is fate
        assert log.value("n") == value
        assert resolved(log, 1) is fate, "a fate does not change"


def test_fate_of_a_number_that_a_successor_gave_out_again_is_its_own_and_the_fenced_owner_learns_none() -> None:
    """The first owner's write under 2 never arrived: only with its epoch it hears that it may not ask."""
    log = started()
    assert log.answer(increment(1, 5)) is not None
    [taken] = log.do(c.TakeOver(1, "b"))
    assert (taken.epoch, taken.highest) == (2, 1)
    log.do(c.Operate(1, 2, 2, [increment(2, 7)]))
    assert resolved(log, 2, epoch=1) is Code.FENCED
    assert resolved(log, 2) is Fate.EXECUTED, "of the write of the successor"
    assert log.value("n") == 12


def test_late_attempt_of_a_sealed_id_is_refused_whatever_its_payload() -> None:
    """Case 11 without an ack: the late copy, a reuse of the number, and a range that covers it."""
    log = started()
    assert resolved(log, 1) is Fate.SEALED
    assert log.answer(increment(1)) is Code.STALE
    assert log.answer(put(1, "other")) is Code.STALE
    [ranged] = log.do(range_of(1, 3))
    assert ranged.parts == [RefusedPart(1, 1, Refusal.SEALED), AppliedPart(2, 3, 1)]
    assert log.machine.commit == 2, "a seal takes no commit number"


def test_applied_comes_with_its_stored_result_also_out_of_a_range() -> None:
    log = started()
    log.do(range_of(1, 3))
    log.answer(increment(4, 7))
    [inside] = log.do(c.Resolve(1, 2))
    assert inside.resolution.record.commit == 2
    [alone] = log.do(c.Resolve(1, 4))
    assert alone.resolution.record.result.value == b"7"


def test_acknowledged_and_expired_ids_have_their_own_answers() -> None:
    log = started()
    log.answer(increment(1))
    log.answer(increment(2), fi=2)
    assert resolved(log, 1) is Fate.ACKNOWLEDGED
    log.do(c.Reap([1]), at_ms=60_000)
    assert resolved(log, 2) is Fate.EXPIRED
    assert resolved(log, 1, client=ID_MAX) is Code.NOT_FOUND


def test_resolve_works_when_the_lease_has_ended_and_revives_nothing() -> None:
    log = started()
    log.answer(increment(1))
    assert resolved(log, 1, at_ms=30_000) is Fate.EXECUTED
    assert resolved(log, 2, epoch=1, fi=2) is Fate.SEALED
    assert log.answer(increment(2)) is Code.STALE
    assert log.answer(increment(3)) is Code.SESSION_EXPIRED
    log.do(c.Reap([1]))
    assert log.machine.sessions.get(1) is None


def test_strangers_resolve_without_renewing_and_fenced_owners_may_not_acknowledge() -> None:
    log = started()
    log.answer(increment(1))
    ends = [s.ends_ms for s in log.machine.sessions]
    assert resolved(log, 2, at_ms=5_000) is Fate.SEALED
    assert [s.ends_ms for s in log.machine.sessions] == ends
    log.do(c.TakeOver(1, "b"))
    [refused] = log.do(c.Resolve(1, 1, 1, 1))
    assert (refused.code, refused.detail) == (Code.FENCED, log.machine.fenced_by(1, 1))
    assert resolved(log, 1) is Fate.EXECUTED


@pytest.mark.parametrize("fi", [1, 2, 3, 9, 1_000])
def test_what_a_stranger_says_of_the_owners_acks_counts_for_nothing(fi: int) -> None:
    log = started()
    log.answer(increment(1))
    assert resolved(log, 1, fi=fi) is Fate.EXECUTED
    assert resolved(log, 2, fi=fi) is Fate.SEALED
    assert log.machine.trackers[1].first_incomplete == 1


def test_session_that_was_never_opened_is_not_found_and_one_that_is_gone_has_expired() -> None:
    log = started()
    log.do(c.CloseSession(1, 1))
    assert resolved(log, 1) is Fate.EXPIRED
    assert resolved(log, 1, client=2) is Code.NOT_FOUND


@pytest.mark.parametrize("what", ["resolve", "write"])
@pytest.mark.parametrize("late", [-1, 0, 1])
def test_owner_renews_and_acknowledges_up_to_the_last_millisecond_of_its_lease(what: str, late: int) -> None:
    log = started()
    log.answer(increment(1))
    [session] = log.machine.sessions
    now = session.ends_ms + late
    if what == "write":
        told = log.answer(increment(2), fi=2, at_ms=now)
        assert (told is Code.SESSION_EXPIRED) == (late > 0)
    else:
        [result] = log.do(c.Resolve(1, 2, 1, 2), at_ms=now)
        assert result.memory_ms == (session.lease_ms if late <= 0 else 0)
    assert session.ends_ms == (now - late if late > 0 else now + session.lease_ms)
    assert log.machine.trackers[1].first_incomplete == (1 if what == "write" and late > 0 else 2)


@pytest.mark.parametrize("window", [2, 8])
def test_seals_take_places_in_the_window_and_go_with_the_ack(window: int) -> None:
    log = started(window=window)
    fates = [resolved(log, sequence) for sequence in range(1, window + 3)]
    assert fates == [Fate.SEALED] * window + [Code.WINDOW_FULL] * 2
    assert len(log.machine.trackers[1].records) == window
    beyond = window + 2
    assert resolved(log, beyond, epoch=1, fi=window + 1) is Fate.SEALED
    assert resolved(log, beyond, epoch=1, fi=beyond + 1) is Code.BAD_ACK
    assert log.answer(put(beyond + 1), fi=beyond) == (1, None, False)
    assert len(log.machine.trackers[1].records) <= 2


def test_numbers_above_a_seal_are_known_to_the_next_owner() -> None:
    log = started()
    log.do(session("b"))
    resolved(log, 5, client=2)
    [taken] = log.do(c.TakeOver(2, "c"))
    assert taken.highest == 5
