"""The state machine: effect and completion record in one transition. Named after the cases of SEMANTICS.md."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import idempotency_keys, levels, operations
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine, Origin
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.rows import DictRows, StoredRow
from oncegate.gateway.machine.state import state_digest
from oncegate.proof.mutants.bugs import BUGS
from oncegate.rifl import rule
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import ID_MAX, CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_records import MemoryKeys
from oncegate.rifl.range_rule import NewPart
from oncegate.rifl.rule import EXECUTE
from tests.gateway.logs import told
from tests.gateway.machine_log import QUOTA, MachineLog, answer_of, increment, op, put
from tests.gateway.test_row_moves import told as items_of


def session(nonce: str = "a", lease_ms: int = 10_000, window: int = 8) -> c.OpenSession:
    return c.OpenSession(nonce, lease_ms, window)


def started(**how: Any) -> MachineLog:
    return MachineLog(c.DeclareTable("t", "resident", QUOTA), c.DeclareTable("s", "stream", QUOTA), session(**how))


History = list[tuple[int, int, str]]
"""Increments by one: sequence number, first incomplete, and the answer: new, replay, or the code of a refusal."""
HISTORIES: dict[str, History] = {
    "1: duplicate, where a second execution shows": [(1, 1, "new"), (2, 1, "new"), (1, 1, "replay")],
    "5 and 10: duplicate after its ack, or acknowledged in flight": [(1, 1, "new"), (2, 2, "new"), (1, 1, "STALE")],
    "6: gap that is filled later": [(3, 1, "new"), (1, 1, "new"), (3, 1, "replay")],
    "9: older first incomplete": [(1, 1, "new"), (2, 2, "new"), (3, 1, "new"), (1, 1, "STALE")],
    "11: late copy of what was cancelled and acknowledged": [(2, 2, "new"), (1, 1, "STALE")],
    "12: lost response, later ones succeed": [*((s, 1, "new") for s in range(1, 8)), (1, 1, "replay")],
}


@pytest.mark.parametrize(
    ("kind", "code"),
    [("PUT", None), ("DELETE", None), ("INCREMENT", "BAD_REQUEST"), ("APPEND", "BAD_REQUEST"), ("GET", "BAD_REQUEST")],
)
def test_stream_table_takes_in_the_log_what_it_takes_at_the_edge(kind: str, code: str | None) -> None:
    log = started()
    before = state_digest(log.machine)
    told = log.answer(op(1, c.OpKind[kind], table="s", value=b"1", by=1))
    assert told == ((1, None, False) if code is None else Code[code])
    assert code is None or state_digest(log.machine) == before


def test_put_without_a_value_is_null() -> None:
    log = started()
    log.do(c.Operate(1, 1, 1, [c.Op(1, 1, "t", "k", c.fingerprint_put("t", "k", b"null"))]))
    row = log.machine.tables["t"].rows.get("k")
    assert row is not None
    assert row.value == b"null"


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        *(("t", kind) for kind in ("PUT", "DELETE", "INCREMENT", "GET", "transaction")),
        ("s", "PUT"),
        ("s", "transaction"),
    ],
)
def test_record_and_item_of_each_kind_of_write_keep_the_trace_of_its_request(table: str, kind: str) -> None:
    log, trace = started(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    log.do(c.DeclareFlow(b'{"name":"f","source":"t"}'))
    if kind == "transaction":
        write = c.Op(0, 1, table, "k", 0, b"1")
        sent: c.Command = c.Operate(1, 1, 1, [c.Transaction(1, 7, [], [write])], "", trace)
    else:
        sent = c.Operate(1, 1, 1, [op(1, c.OpKind[kind], table=table, value=b"1", by=1)], "", trace)
    log.do(sent)
    record = log.machine.trackers[1].find(1)
    assert record is not None
    assert record.traceparent == trace
    assert table == "s" or {item[-1] for item in items_of(log)} == (set() if kind == "GET" else {trace})  # type: ignore[arg-type]


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("together", [False, True], ids=["an entry each", "in one entry"])
def test_each_operation_of_a_history_runs_once_and_is_answered_as_its_case_says(
    history: History, together: bool
) -> None:
    log, commits = started(), dict[int, int]()
    commands = [c.Operate(1, 1, fi, [increment(sequence)]) for sequence, fi, _ in history]
    results = log.do(*commands) if together else [result for command in commands for result in log.do(command)]
    for (sequence, _, answer), result in zip(history, results, strict=True):
        commit = commits.setdefault(sequence, len(commits) + 1) if answer != "STALE" else 0
        recorded = (commit, Remembered(None, commit, b"%d" % commit), answer == "replay")
        assert answer_of(result.verdicts[0]) == (recorded if commit else Code.STALE)
    assert log.value("n") == log.machine.commit == len(commits)
    assert log.machine.replayed == [answer for _, _, answer in history].count("replay")
    last_fi = max(fi for _, fi, _ in history)
    assert log.machine.trackers[1].first_incomplete == last_fi
    assert all(sequence >= last_fi for sequence in log.machine.trackers[1].records)


def test_other_payload_under_the_same_id_changes_nothing() -> None:
    """Case 2: for each part of the payload."""
    log = started()
    log.answer(put(1, "old"))
    others = (put(1, "new"), put(1, "old", "k2"), put(1, "old", table="s"), increment(1, 1, "k"))
    for other in (*others, op(1, c.OpKind.DELETE)):
        assert log.answer(other) is Code.PAYLOAD_MISMATCH
    assert (log.value("k"), log.machine.commit) == ("old", 1)


def test_another_session_never_gets_this_ones_result() -> None:
    log = started()
    log.do(session("b"))
    log.answer(increment(1, 5))
    assert log.answer(increment(1, 5), client=2) == (2, Remembered(None, 2, b"10"), False)


def test_both_attempts_in_one_entry_or_one_request_apply_once() -> None:
    """Cases 4 and 22: the log holds both, the second is a replay."""
    log = started()
    command = c.Operate(1, 1, 1, [increment(1, 5)])
    one, two = log.do(command, command)
    assert [told(v)[3] for v in one.verdicts + two.verdicts] == [False, True]
    assert told(one.verdicts[0])[2] == told(two.verdicts[0])[2]
    twice = log.ops(increment(2, 1), increment(2, 1), increment(2, 2))
    assert [told(v)[1::2] for v in twice.verdicts] == [(None, False), (None, True), (Code.PAYLOAD_MISMATCH, False)]
    assert log.value("n") == 6


def test_window_is_full_until_acks_come() -> None:
    """Case 7."""
    log = started(window=2)
    assert [told(v)[1] for v in log.ops(put(1), put(2), put(3)).verdicts] == [None, None, Code.WINDOW_FULL]
    assert log.answer(put(3), fi=2) == (3, None, False)


@pytest.mark.parametrize("fi", [11, 2**53 - 1, 2**64 - 1])
def test_absurd_first_incomplete_is_refused_and_changes_nothing(fi: int) -> None:
    """Case 8."""
    log = started()
    log.answer(put(1))
    before = state_digest(log.machine)
    assert log.answer(put(2), fi=fi) is Code.BAD_ACK
    assert log.answer(put(2**64 - 1), fi=fi) is Code.BAD_ACK
    assert state_digest(log.machine) == before


def test_after_the_lease_new_is_refused_and_old_is_replayed() -> None:
    """Cases 13 and 14; nothing revives the lease, and the ack of a replay is processed."""
    log = started(lease_ms=1_000)
    log.ops(put(1), put(2), put(3))
    assert log.answer(put(4), at_ms=1_001) is Code.SESSION_EXPIRED
    assert log.answer(put(2), fi=2) == (2, None, True)
    assert log.ops(put(2)).memory_ms == 0
    assert log.answer(put(1)) is Code.STALE
    assert log.machine.sessions.get(1).ends_ms == 1_000  # type: ignore[union-attr]


def test_delayed_retry_after_the_reap_is_never_new() -> None:
    """Case 15."""
    log = started(lease_ms=1_000)
    log.answer(increment(1))
    assert log.do(c.Reap([1]), at_ms=1_001) == [([], 1)]
    assert log.answer(increment(1)) is Code.SESSION_EXPIRED
    assert log.answer(increment(2)) is Code.SESSION_EXPIRED
    assert log.answer(increment(2), fi=3) is Code.BAD_ACK
    log.do(session())
    assert log.answer(increment(1)) is Code.SESSION_EXPIRED, "the same nonce gives another id"
    assert log.value("n") == 1


@pytest.mark.parametrize("renewal_first", [True, False])
def test_log_order_decides_between_renewal_and_reap(renewal_first: bool) -> None:
    """Case 16."""
    log = started(lease_ms=1_000)
    log.do(at_ms=1_000)
    if renewal_first:
        log.do(c.RenewSession(1, 1))
        assert log.do(c.Reap([1]), at_ms=1_001) == [([], 0)]
    else:
        assert log.do(c.Reap([1]), at_ms=1_001) == [([], 1)]
        [late] = log.do(c.RenewSession(1, 1))
        assert late.code is Code.SESSION_EXPIRED


def test_reap_of_live_unknown_or_repeated_sessions_is_harmless() -> None:
    log = started(lease_ms=1_000)
    assert log.do(c.Reap([1, 2, ID_MAX]), c.Reap([])) == [([], 0)] * 2
    assert log.do(c.Reap([1, 1]), c.Reap([1]), at_ms=1_001) == [([], 1), ([], 0)]


def test_stamp_that_jumps_back_stalls_cluster_time() -> None:
    """Case 18."""
    log = started()
    log.do(at_ms=5_000)
    log.do(c.RenewSession(1, 1), at_ms=1_000)
    assert log.machine.time_ms == 5_000
    assert log.machine.sessions.get(1).ends_ms == 15_000  # type: ignore[union-attr]


def test_open_retried_is_the_same_session_with_its_records() -> None:
    """Case 28."""
    log = started()
    log.answer(put(1))
    [again, other] = log.do(session(), session("b"))
    assert (again.client_id, again.existed, again.highest) == (1, True, 1)
    assert (other.client_id, other.existed) == (2, False)


def test_older_epoch_is_fenced_and_the_new_owner_resumes() -> None:
    """Cases 29 and 30."""
    log = started()
    log.answer(increment(1))
    [taken] = log.do(c.TakeOver(1, "b"))
    assert (taken.epoch, taken.first_incomplete, taken.highest) == (2, 1, 1)
    assert log.answer(increment(1)) is Code.FENCED
    assert log.answer(increment(2)) is Code.FENCED
    assert log.do(c.RenewSession(1, 1), c.CloseSession(1, 1))[1].code is Code.FENCED
    assert log.answer(increment(1), epoch=2)[2], "the old owner's outcome can still be asked for"
    assert log.answer(increment(2), epoch=2) == (2, Remembered(None, 2, b"2"), False)


@pytest.mark.parametrize("ranged_first", [True, False])
def test_take_over_tells_the_highest_number_of_single_records_and_ranges(ranged_first: bool) -> None:
    """The new owner numbers on from it: a lower one would give numbers out again that are recorded."""
    log = started()
    ranged = c.Range(1, 1, 1, "s", 1 if ranged_first else 2, bytes(3 * 8), b"")
    log.do(*[ranged, c.Operate(1, 1, 1, [put(4 if ranged_first else 1)])][:: 1 if ranged_first else -1])
    [taken] = log.do(c.TakeOver(1, "b"))
    assert (taken.first_incomplete, taken.highest) == (1, 4)
    log.ops(put(5), epoch=2, fi=5)
    [taken] = log.do(c.TakeOver(1, "c"))
    assert (taken.first_incomplete, taken.highest) == (5, 5)


CHANGES_OF_A_SESSION: list[c.Command] = [
    session(),
    session("new"),
    c.RenewSession(1, 1),
    c.TakeOver(1, "b"),
    c.Resolve(1, 3),
    c.Resolve(1, 3, 1, 2),
    c.CloseSession(1, 1),
    c.Operate(1, 1, 1, [put(3)]),
    c.Operate(1, 1, 2, [put(2)]),
    c.Range(1, 1, 2, "s", 3, bytes(8), b""),
    c.Reap([1]),
]


@pytest.mark.parametrize("command", CHANGES_OF_A_SESSION, ids=lambda command: str(command)[:40])
def test_session_is_announced_before_it_changes_so_that_a_save_keeps_what_it_was(command: c.Command) -> None:
    log = started(lease_ms=1_000)
    log.ops(put(1), put(2))
    machine = log.machine
    machine.touched = set()
    images: dict[int, str] = {}
    machine.before_change = lambda client: images.setdefault(client, image_of(machine, client))
    before = image_of(machine, 1)
    log.do(command, at_ms=1_001 if isinstance(command, c.Reap) else 1)
    assert machine.touched == set(images) == {2 if command == session("new") else 1}
    assert images.get(1, before) == before
    assert any(image_of(machine, client) != image for client, image in images.items()) or 2 in images


def image_of(machine: Machine, client_id: int) -> str:
    """A session with all that is remembered of it, as text."""
    tracker = machine.trackers.get(client_id)
    return f"{machine.sessions.get(client_id)} {tracker and tracker.dump()}"


def test_business_refusal_is_recorded_and_replayed_though_the_row_has_changed() -> None:
    """Case 31, first half."""
    log = started()
    log.answer(put(1, "ann"))
    refused = log.answer(put(2, "bob", test=int(c.Test.ABSENT)))
    assert refused == (2, Remembered("CONDITION_FAILED", 1, b'"ann"'), False)
    log.answer(op(3, c.OpKind.DELETE))
    assert log.answer(put(2, "bob", test=int(c.Test.ABSENT))) == (2, Remembered("CONDITION_FAILED", 1, b'"ann"'), True)
    assert log.value("k") is None


def test_refusal_that_may_pass_is_not_recorded() -> None:
    """Case 31, second half: an unknown table, a full one."""
    log = started()
    assert log.answer(put(1, table="later")) is Code.NOT_FOUND
    log.do(c.DeclareTable("later", "resident", 1_024), c.DeclareTable("small", "resident", 10))
    assert log.answer(put(1, table="later")) == (1, None, False)
    assert log.answer(put(2, "x" * 20, table="small")) is Code.QUOTA
    log.do(c.DeclareTable("small", "resident", 1_000))
    assert log.answer(put(2, "x" * 20, table="small")) == (2, None, False)


def test_rejected_operations_renew_nothing_and_acknowledge_nothing() -> None:
    log = started()
    log.ops(put(1), put(2))
    before = state_digest(log.machine)
    log.ops(put(3, table="no"), put(2, "other"), fi=2)
    assert state_digest(log.machine) == before


def test_session_over_its_bytes_is_refused_before_execution_until_it_acknowledges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 32, and that the session is not stuck for ever: the next request brings the ack that makes room."""
    for module in ("oncegate.rifl.result_tracker", "oncegate.rifl.rule"):
        monkeypatch.setattr(f"{module}.RECORD_BYTES_MAX", 100)
    log = started()
    log.ops(increment(1), increment(2))
    assert log.answer(increment(3)) is Code.QUOTA
    assert log.value("n") == 2
    assert log.answer(increment(3), fi=3)[0] == 3


def test_mixed_request_applies_only_what_is_new_with_a_verdict_each() -> None:
    """Case 33."""
    log = started()
    log.ops(increment(1), increment(2))
    mixed = log.ops(increment(1), increment(3), increment(2, 9), increment(4), increment(99), put(5, table="no"))
    verdicts = [(sequence, code or replayed) for sequence, code, _, replayed in map(told, mixed.verdicts)]
    assert verdicts[:3] == [(1, True), (3, False), (2, Code.PAYLOAD_MISMATCH)]
    assert verdicts[3:] == [(4, False), (99, Code.WINDOW_FULL), (5, Code.NOT_FOUND)]
    assert (log.value("n"), log.machine.commit) == (4, 4)


def test_session_quota_refuses_the_new_and_leaves_the_live_alone() -> None:
    """Case 34."""
    log = started()
    opens = [c.OpenSession(nonce, 10_000, 8, sessions_max=2) for nonce in "bca"]
    results = log.do(*opens)
    assert isinstance(results[1], OncegateError)
    assert results[1].code is Code.QUOTA
    assert results[2].client_id == 1
    assert set(log.machine.trackers) == {1, 2}
    assert log.answer(put(1)) == (1, None, False)


def test_closed_session_drops_its_records_and_is_refused_for_ever() -> None:
    log = started()
    log.answer(put(1))
    assert log.do(c.CloseSession(1, 1)) == [([], 1)]
    assert not log.machine.trackers
    assert log.answer(put(1)) is Code.SESSION_EXPIRED
    assert log.do(c.CloseSession(1, 1)) == [([], 0)], "closing it twice is closing it"
    assert log.do(c.CloseSession(999, 1))[0].code is Code.SESSION_EXPIRED, "one that was never opened is none"


def test_closing_a_session_whose_lease_has_ended_closes_it() -> None:
    log = started()
    log.answer(put(1))
    assert log.do(c.CloseSession(1, 1), at_ms=10**9) == [([], 1)]
    assert log.machine.sessions.get(1) is None


def test_commit_numbers_are_dense_and_count_applied_operations_only() -> None:
    log = started()
    log.ops(put(1), put(2, test=int(c.Test.ABSENT)), put(3, table="no"))
    log.ops(put(4, table="s"), put(1), op(5, c.OpKind.DELETE))
    assert sorted(r.commit for r in log.machine.trackers[1].records.values()) == [1, 2, 3, 4]
    assert log.machine.commit == 4


def test_operations_and_replays_extend_a_live_lease() -> None:
    log = started(lease_ms=1_000)
    assert log.ops(put(1), at_ms=900).memory_ms == 1_000
    assert log.ops(put(1), at_ms=1_800).memory_ms == 1_000
    assert log.answer(put(2), at_ms=2_800) == (2, None, False)


def test_table_declared_again_changes_nothing_and_differently_is_a_conflict() -> None:
    log = started()
    log.answer(put(1))
    again, other = log.do(c.DeclareTable("t", "resident", QUOTA), c.DeclareTable("t", "stream", QUOTA))
    assert len(again.rows) == 1
    assert other.code is Code.CONFLICT


def test_table_quota_holds_and_deletes_make_room() -> None:
    log = started()
    log.do(c.DeclareTable("q", "resident", 1_000))
    codes = [log.answer(put(s, "x" * 90, f"k{s}", table="q")) for s in range(1, 8)]
    full = codes.index(Code.QUOTA)
    assert all(isinstance(code, tuple) for code in codes[:full])
    assert set(codes[full:]) == {Code.QUOTA}
    assert log.machine.tables["q"].bytes <= 1_000 + 300
    log.answer(op(10, c.OpKind.DELETE, "k1", table="q"), fi=8)
    log.answer(op(11, c.OpKind.DELETE, "k2", table="q"), fi=8)
    assert isinstance(log.answer(put(12, "x" * 90, table="q"), fi=8), tuple)


def test_entry_of_another_version_stops_the_node_instead_of_being_guessed() -> None:
    entry = msgspec.msgpack.encode([c.VERSION + 1, 0, []])
    with pytest.raises(msgspec.ValidationError):
        apply(Machine(), 1, 1, entry)


def count_with_retries() -> None:
    """Increment a counter 20 times, each sent three times in some order; a duplicate shows in the sum."""
    log = started(window=32)
    for sequence in range(1, 21):
        for sent in (sequence, max(1, sequence - 3), sequence):
            log.answer(increment(sent, sent))
    assert log.value("n") == sum(range(1, 21))
    assert log.machine.commit == 20


def test_planted_execution_without_the_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    count_with_retries()
    with BUGS["apply-without-dedup"].planted(), pytest.raises(AssertionError):
        count_with_retries()


@pytest.mark.parametrize("command", [c.Operate(1, 1, 1, [increment(1)]), c.Range(1, 1, 1, "s", 1, bytes(8), b"")])
def test_second_execution_stops_the_node_and_names_the_entry(
    command: c.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever made the rule say EXECUTE of what is recorded, the record is not overwritten."""
    log = started()
    log.answer(increment(1))
    monkeypatch.setattr(rule, "decide", lambda *how: EXECUTE)
    monkeypatch.setattr(operations, "decide_range", lambda *how: [NewPart(1, 1)])
    with pytest.raises(InvariantViolation, match=r"log entry 3 .*operations 1 to 1"):
        log.do(command)


def test_remembered_read_and_append_are_replayed_as_they_were() -> None:
    """A get is recorded as of its place in the log; an append never happens twice."""
    log = started()
    log.answer(put(1, [1]))
    seen = log.answer(op(2, c.OpKind.GET))
    assert seen == (2, Remembered(None, 1, b"[1]"), False)
    added = log.answer(op(3, c.OpKind.APPEND, value=b"2"))
    assert added == (3, None, False)
    assert log.answer(op(2, c.OpKind.GET)) == (*seen[:2], True)
    assert log.answer(op(3, c.OpKind.APPEND, value=b"2")) == (*added[:2], True)
    assert log.answer(op(3, c.OpKind.APPEND, value=b"3")) is Code.PAYLOAD_MISMATCH
    assert log.value("k") == [1, 2]


def test_result_over_the_limit_is_refused_before_execution_and_not_recorded() -> None:
    """Case 32: the number stays free."""
    log = started()
    log.answer(put(1, "x" * c.RESULT_BYTES_MAX))
    assert log.answer(op(2, c.OpKind.GET)) is Code.PAYLOAD_TOO_LARGE
    assert log.machine.commit == 1
    assert log.answer(put(2, "short")) == (2, None, False)


def test_flow_of_a_resident_table_has_the_appended_list_and_no_reads() -> None:
    log = started()
    log.do(c.DeclareFlow(b'{"name":"f","source":"t"}'))
    log.answer(op(1, c.OpKind.APPEND, value=b"1"))
    log.answer(op(2, c.OpKind.GET))
    log.answer(op(3, c.OpKind.APPEND, value=b"2"))
    run = log.machine.flows.get("f").segment.run_view()
    assert list(zip(run.commits, run.values, strict=True)) == [(1, b"[1]"), (3, b"[1,2]")]


def test_another_tenant_gets_neither_result_nor_execution_nor_session() -> None:
    """Case 3: whatever it sends under the client id, and whatever nonce it guesses."""
    log = started()
    log.do(c.OpenSession("a", 10_000, 8, "bob"))
    log.answer(increment(1, 5))
    before = log.machine.trackers[1].dump(), [s.ends_ms for s in log.machine.sessions]
    ranged = c.Range(1, 1, 1, "s", 5, b"\0" * 16, b"", "bob")
    results = log.do(
        c.Operate(1, 1, 2, [increment(1, 5), increment(2)], "bob"),
        ranged,
        c.RenewSession(1, 1, "bob"),
        c.TakeOver(1, "z", "bob"),
        c.Resolve(1, 1, 0, 1, "bob"),
        c.Resolve(1, 3, 1, 2, "bob"),
        c.CloseSession(1, 1, "bob"),
        at_ms=500,
    )
    assert [told(verdict)[1:3] for verdict in results[0].verdicts] == [(Code.FORBIDDEN, None)] * 2
    assert [part.refusal.code for part in results[1].parts] == [Code.FORBIDDEN]
    assert [refusal.code for refusal in results[2:]] == [Code.FORBIDDEN] * 5
    assert (log.machine.trackers[1].dump(), [s.ends_ms for s in log.machine.sessions]) == before
    assert log.machine.sessions.of_nonce("a") == 1
    assert log.machine.sessions.of_nonce("a", "bob") == 2
    log.do(c.CloseSession(2, 1, "bob"))
    assert log.machine.sessions.of_nonce("a", "bob") is None
    assert log.machine.sessions.of_nonce("a") == 1


def test_new_machine_has_nothing_but_what_it_is_given() -> None:
    rows, records = DictRows, MemoryKeys()
    plain, given = Machine(), Machine(lambda number: rows(), records)
    for machine in (plain, given):
        assert (machine.commit, machine.time_ms, machine.tables_declared, machine.replayed) == (0, 0, 0, 0)
        assert (machine.identity, machine.origin, machine.level) == ("", Origin("", 0), levels.FIRST)
        assert (machine.touched, machine.trackers, machine.tables, machine.closing) == (set(), {}, {}, {})
        assert (machine.swept, machine.changes, machine.joined) == ([], [], [])
        assert (len(machine.keys), [*machine.sessions], machine.before_change) == (0, [], None)
    assert given.keys.records is records
    for machine, is_saved in ((plain, False), (given, True)):
        machine.ends.change(("t", "k"), None, Life(5, 0))
        assert len(machine.ends.take_changes()) == is_saved


def test_tables_have_the_rows_that_are_made_for_their_number() -> None:
    made: dict[int, DictRows] = {}
    log = MachineLog(machine=Machine(lambda number: made.setdefault(number, DictRows())))
    log.do(c.DeclareTable("t", "resident", QUOTA), c.DeclareTable("u", "resident", QUOTA), session())
    log.answer(put(1, table="u"))
    assert [len(made[number]) for number in (0, 1)] == [0, 1]
    assert log.machine.tables["u"].rows is made[1]


def test_entry_tells_of_its_own_changes_alone_and_of_what_it_joined_itself() -> None:
    log = started()
    writes = [put(2, key=key) for key in "ab"]
    log.do(c.Operate(1, 1, 1, [c.Transaction(2, 0, [], writes)]))
    changes, joined = log.machine.changes, log.machine.joined
    assert ([change[:2] for change in changes], joined) == ([(1, 2), (2, 2)], [(1, 2)])
    log.answer(put(3))
    assert ([change[:2] for change in changes], joined) == ([(3, 3)], [])
    log.do()
    assert (log.machine.changes, log.machine.joined) == ([], [])
    assert log.machine.changes is changes, "the tables append to it"


def test_adopted_state_is_seen_by_everyone_who_holds_the_machine() -> None:
    holder, other = started(), started(nonce="other")
    other.answer(put(1, "adopted"))
    digest, tables = state_digest(other.machine), other.machine.tables
    holder.machine.adopt(other.machine)
    assert state_digest(holder.machine) == digest
    assert holder.machine.tables is tables
    assert (holder.value("k"), holder.answer(put(2, "next"))) == ("adopted", (2, None, False))


def test_level_rises_never_falls_and_one_that_this_build_does_not_know_stops_the_machine() -> None:
    log = MachineLog()
    assert (levels.FIRST, log.machine.level) == (1, 1)
    assert log.do(c.RaiseLevel(1), c.RaiseLevel(levels.NEWEST), c.RaiseLevel(1)) == [1, levels.NEWEST, levels.NEWEST]
    with pytest.raises(InvariantViolation, match=r"log entry 2 .*start this node with the build of the others"):
        log.do(c.RaiseLevel(levels.NEWEST + 1))
    assert log.machine.level == levels.NEWEST


@pytest.mark.parametrize("commands", [[], [c.Identify("a" * 32)], [c.Operate(1, 1, SequenceNumber(1), [])]])
def test_entry_of_before_names_the_way_whatever_is_in_it(commands: list[c.Command]) -> None:
    entry = msgspec.msgpack.encode([1, 0, commands])
    with pytest.raises(msgspec.ValidationError, match=levels.LAST_BEFORE):
        c.decode_entry(entry)


@pytest.mark.parametrize("kind", ["operate", "keyed"])
def test_error_of_an_operation_is_a_fault_and_no_refusal_of_its_request(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done of the request before it stands: that nothing was done may not be told."""

    def refuses(*_: Any) -> Any:
        raise OncegateError(Code.CONFLICT)

    log = started()
    monkeypatch.setattr(operations if kind == "operate" else idempotency_keys, "execute", refuses)
    one = increment(1)
    command = c.Operate(1, 1, SequenceNumber(1), [one]) if kind == "operate" else c.Keyed(1, [c.KeyedOp("k", -1, one)])
    with pytest.raises(OncegateError):
        log.do(command)


@pytest.mark.parametrize("kind", [c.OpKind.GET, c.OpKind.PUT, c.OpKind.APPEND])
@pytest.mark.parametrize("together", [False, True])
def test_row_that_no_commit_follows_is_never_told_or_remembered(kind: c.OpKind, together: bool) -> None:
    """A read, a condition that does not hold and a row that is no list see it as well as a write."""
    log = started()
    log.answer(increment(1))
    table = log.machine.tables["t"]
    [(key, row)] = table.rows.items()
    table.rows.put(key, StoredRow(CommitNumber(500), row.value), row)
    test = c.Test.ABSENT if kind is c.OpKind.PUT and not together else c.Test.NONE
    value = None if kind is c.OpKind.GET else b"1"
    op = c.Op(SequenceNumber(2), int(kind), "t", key, Fingerprint(1), value, test=int(test))
    sent = c.Transaction(SequenceNumber(2), Fingerprint(1), [], [c.in_transaction(op)]) if together else op
    with pytest.raises(InvariantViolation, match="500 has written"):
        log.do(c.Operate(1, 1, SequenceNumber(1), [sent]))
    assert log.machine.trackers[1].find(SequenceNumber(2)) is None
