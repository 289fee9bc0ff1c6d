"""Rows that end: never early, by the log alone, with their session, and as deletes that flows see."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import row_ends, tables
from oncegate.gateway.machine.results import Ended, Endings
from oncegate.gateway.machine.row_rule import row_after
from oncegate.gateway.machine.rows import StoredRow
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT, NO_TIME
from oncegate.rifl.rule import Applied
from tests.gateway.machine_log import MachineLog, batches

LEASE_MS = 10_000


class Log(MachineLog):
    """A machine with two resident tables, a stream table and two sessions."""

    def __init__(self) -> None:
        super().__init__(
            *(c.DeclareTable(name, "resident", 1 << 20) for name in ("t", "u")), c.DeclareTable("s", "stream", 1 << 20),
            *(c.OpenSession(f"n{client}", LEASE_MS, 512) for client in (1, 2)),
        )  # fmt: skip

    def end(self, at_ms: int) -> list[Ended]:
        """Do what the leader does at a time: propose what is due, if anything is."""
        self.do(at_ms=at_ms)
        rows = self.machine.ends.due(at_ms, c.END_MAX)
        return self.one(c.EndRows(rows)).rows if rows else []

    def has(self, key: str, table: str = "t") -> bool:
        return self.row(key, table) is not None


@pytest.fixture
def log() -> Log:
    return Log()


def test_row_is_there_until_its_end_and_goes_within_a_bucket_of_it(log: Log) -> None:
    log.write("k", ttl_ms=1_000, at_ms=5_000)
    row = log.row("k")
    assert row is not None
    assert (row.ends_ms, row.owner) == (6_000, 0)
    for early in (5_001, 5_999, 6_000):
        assert log.end(early) == [], early
        assert log.has("k"), early
    commit = log.machine.commit
    assert log.end(6_000 + row_ends.BUCKET_MS) == [Ended("t", "k", commit + 1, 0)]
    assert not log.has("k")
    assert (len(log.machine.ends), log.machine.tables["t"].ending, log.machine.tables["t"].bytes) == (0, 0, 0)


def test_proposal_to_end_a_row_is_judged_again_when_it_is_applied(log: Log) -> None:
    log.write("early", ttl_ms=1_000, at_ms=0)
    log.write("moved", ttl_ms=10)
    log.write("stays", ttl_ms=10)
    log.write("gone", ttl_ms=10)
    proposed = c.EndRows({"t": ["early", "moved", "stays", "gone", "never"], "nowhere": ["x"], "s": ["y"]})
    log.write("moved", ttl_ms=10_000, at_ms=500)
    log.write("stays")
    log.write("gone", "delete")
    assert log.one(proposed) == Endings([])
    assert all(map(log.has, ("early", "moved", "stays")))
    assert [one.key for one in log.one(proposed, at_ms=1_000).rows] == ["early"]


def test_row_past_its_end_is_there_for_conditions_and_writes_until_the_log_ends_it(log: Log) -> None:
    log.write("k", ttl_ms=10, at_ms=0)
    refused = log.write("k", test=c.Test.ABSENT, at_ms=5_000)
    assert refused.record.result.refusal == "CONDITION_FAILED"
    log.write("k", "increment")
    assert log.row("k").value == b"2"  # type: ignore[union-attr]
    assert log.end(5_001)
    assert log.write("k", test=c.Test.ABSENT).record.result is None


def test_put_says_anew_when_a_row_ends_and_other_writes_leave_it(log: Log) -> None:
    def life(key: str) -> Any:
        row = log.row(key)
        return None if row is None or row.life is None else (row.life.ends_ms, row.life.owner)

    log.write("k", ttl_ms=100, bound=True, at_ms=1_000)
    assert life("k") == (1_100, 1)
    log.write("k", "increment", client=2, at_ms=1_050)
    assert life("k") == (1_100, 1), "an increment leaves both"
    log.write("k", "increment", ttl_ms=500)
    assert life("k") == (1_550, 1), "a new end, and the owner stays"
    log.write("k", "increment", client=2, bound=True)
    assert life("k") == (1_550, 2), "another owner, and the end stays"
    log.write("k", client=1, bound=True)
    assert life("k") == (0, 1), "a put by another session makes it that writer's, and has no time"
    log.write("k", ttl_ms=7)
    assert life("k") == (1_057, 0)
    log.write("k")
    assert life("k") is None
    log.write("l", "append", ttl_ms=9)
    log.write("l", "append")
    assert life("l") == (1_059, 0)
    assert log.row("l").value == b"[1,1]"
    log.write("l", "delete")
    assert len(log.machine.ends) == 0
    assert log.end(9_999) == []


LIVES = [None, *(row_ends.Life(*one) for one in product((0, 700), (0, 1), ("", "u/k")) if any(one[:2]))]
NEW_LIVES = [None, *(row_ends.Life(*one) for one in product((0, 900), (0, 2), ("", "v/k")) if any(one[:2]))]


@pytest.mark.parametrize("kind", [c.OpKind.PUT, c.OpKind.INCREMENT, c.OpKind.APPEND])
def test_put_says_all_of_the_end_and_other_writes_replace_only_what_they_name(kind: c.OpKind) -> None:
    """Time, session and place to go are each left as they are unless they are said anew: every combination."""
    number, text = SequenceNumber(1), None if kind == c.OpKind.INCREMENT else b"1"
    for was, will in product(LIVES, NEW_LIVES):
        before = StoredRow(CommitNumber(1), b"[]" if kind == c.OpKind.APPEND else b"1", was)
        op = c.Op(number, int(kind), "t", "k", Fingerprint(0), text, by=1)
        after = row_after(op, before, CommitNumber(2), will)
        assert isinstance(after, StoredRow)
        if kind == c.OpKind.PUT:
            assert after.life == will
            continue
        old, new = was or row_ends.Life(0, 0), will or row_ends.Life(0, 0)
        said = row_ends.Life(new.ends_ms or old.ends_ms, new.owner or old.owner, new.then or old.then)
        assert after.life == (said if any(said) else None), (was, will)


def test_bound_rows_end_in_the_entry_that_closes_their_session(log: Log) -> None:
    for table, key in (("u", "b"), ("t", "z"), ("t", "a")):
        log.write(key, table=table, bound=True)
    log.write("other", client=2, bound=True)
    log.write("stays")
    commit = log.machine.commit
    ended = log.one(c.CloseSession(1, 1))
    rows = [Ended("t", "a", commit + 1, 1), Ended("t", "z", commit + 2, 1), Ended("u", "b", commit + 3, 1)]
    assert ended == Endings(rows, 1)
    assert not log.has("a")
    assert not log.has("z")
    assert not log.has("b", "u")
    assert log.has("other")
    assert log.has("stays")
    assert log.machine.commit == commit + 3


def test_bound_rows_end_in_the_entry_that_reaps_their_session_and_not_before(log: Log) -> None:
    log.write("k", bound=True, at_ms=0)
    log.write("both", bound=True, ttl_ms=50)
    log.do(c.TakeOver(1, "new owner"), at_ms=20)
    assert log.row("k").owner == 1, "a new epoch keeps them"  # type: ignore[union-attr]
    assert [one.key for one in log.end(150)] == ["both"], "whichever comes first"
    assert log.one(c.Reap([1]), at_ms=20 + LEASE_MS) == ([], 0)
    assert log.has("k")
    assert log.one(c.Reap([1, 2]), at_ms=21 + LEASE_MS) == Endings([Ended("t", "k", log.machine.commit, 1)], 2)
    assert not log.has("k")


def test_row_that_another_session_has_written_does_not_end_with_the_first(log: Log) -> None:
    log.write("k", bound=True)
    log.write("k", client=2, bound=True)
    log.write("l", bound=True)
    log.write("l", client=2)
    assert log.one(c.CloseSession(1, 1)) == ([], 1)
    assert log.has("k")
    assert log.has("l")
    assert [one.key for one in log.one(c.CloseSession(2, 1)).rows] == ["k"]


def test_an_entry_ends_so_many_rows_and_other_sessions_wait(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ends, "ENDED_AT_ONCE_MAX", 3)
    for client, count in ((1, 2), (2, 2)):
        for key in range(count):
            log.write(f"k{client}{key}", client=client, bound=True)
    done, refused = log.do(c.CloseSession(1, 1), c.CloseSession(2, 1))
    assert len(done.rows) == 2
    assert isinstance(refused, OncegateError)
    assert refused.code is Code.OVERLOADED
    assert refused.retryable
    assert log.machine.sessions.get(2) is not None
    assert log.has("k20")
    assert log.has("k21")
    log.do(c.OpenSession("n3", LEASE_MS, 8))
    log.write("k30", client=3, bound=True)
    log.write("k31", client=3, bound=True)
    for sessions in ([2, 3], [2, 3]):
        ended = log.one(c.Reap(sessions), at_ms=50_000)
        assert (len(ended.rows), ended.sessions) == (2, 1)
        owners = {row.owner for _, row in log.machine.tables["t"].rows.items()}
        assert all(log.machine.sessions.get(owner) for owner in owners), "no row outlives its session"
    assert len(log.machine.tables["t"].rows) == 0


def test_replay_does_not_bring_an_ended_row_back(log: Log) -> None:
    first = log.write("k", ttl_ms=10, number=1, at_ms=0)
    assert log.end(1_000)
    again = log.write("k", ttl_ms=10, number=1)
    assert type(again).__name__ == "Replayed"
    assert again.record == first.record
    assert not log.has("k")
    different = log.write("k", ttl_ms=11, number=1)
    assert different.refusal.code is Code.PAYLOAD_MISMATCH, "the end is part of the payload"


def test_flows_and_watchers_see_an_end_as_a_delete_with_its_own_commit_number(log: Log) -> None:
    log.do(c.DeclareFlow(msgspec.json.encode(FlowDeclaration(name="f", source="t"))))
    log.write("a", ttl_ms=10, at_ms=0)
    log.write("b", bound=True)
    log.end(1_000)
    assert [(change[3], change[5], change[6]) for change in log.machine.changes] == [("a", None, "ttl end")]
    log.do(c.CloseSession(1, 1))
    assert [(change[3], change[5], change[6]) for change in log.machine.changes] == [("b", None, "session end")]
    commit = log.machine.commit
    assert [item[:3] for batch in batches(log.machine, "f") for item in batch][-2:] == [
        (commit - 1, "a", None),
        (commit, "b", None),
    ]


@pytest.mark.parametrize("what", ["delete", "get"])
def test_what_makes_no_row_and_stream_tables_take_no_end(log: Log, what: str) -> None:
    assert log.write("k", what, ttl_ms=5).refusal.code is Code.BAD_REQUEST
    assert log.write("k", what, bound=True).refusal.code is Code.BAD_REQUEST
    assert log.write("k", table="s", ttl_ms=5).refusal.code is Code.BAD_REQUEST


def test_key_without_a_session_can_end_by_time_and_is_bound_to_nobody(log: Log) -> None:
    def keyed(name: str, **more: Any) -> Any:
        op = c.Op(SequenceNumber(1), c.OpKind.PUT, "t", name, Fingerprint(7), b"1", options=c.Options(**more))
        return log.one(c.Keyed(1_000, [c.KeyedOp(name, NO_TIME, op)])).verdicts[0]

    assert keyed("b", bound=True).refusal.code is Code.BAD_REQUEST
    keyed("k", ttl_ms=10)
    assert log.row("k").ends_ms == 10
    assert log.end(1_000)
    assert KEYS_CLIENT == ID_MAX


def test_quotas_of_rows_that_end_refuse_without_a_record(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BOUND_ROWS_MAX", 2)
    monkeypatch.setattr(tables, "ENDING_ROWS_TABLE_MAX", 3)
    monkeypatch.setattr(tables, "ENDING_ROWS_MAX", 4)
    log.write("a", bound=True)
    log.write("b", bound=True)
    commit = log.machine.commit
    assert log.write("c", bound=True).refusal.code is Code.QUOTA
    assert log.machine.commit == commit
    assert log.machine.trackers[1].find(SequenceNumber(3)) is None
    assert isinstance(log.write("a", bound=True), Applied), "the session has it already"
    log.write("c", ttl_ms=5, number=5)
    assert log.write("d", ttl_ms=5).refusal.code is Code.QUOTA, "the table's"
    assert isinstance(log.write("a", ttl_ms=5, number=7), Applied), "it ended before too"
    log.write("d")
    log.write("x", table="u", ttl_ms=5)
    assert log.write("y", table="u", ttl_ms=5).refusal.code is Code.QUOTA, "that of all tables"
    log.end(1_000)
    log.write("y", table="u", ttl_ms=5)
    assert log.has("y", "u")


def test_so_many_rows_are_due_at_once_those_that_ended_first(log: Log) -> None:
    for number, key in enumerate("cab", 1):
        log.write(key, ttl_ms=number * 1_000)
    assert log.machine.ends.due(9_000, 2) == {"t": ["c", "a"]}
    assert log.machine.ends.due(9_000, 9) == {"t": ["c", "a", "b"]}


def test_transaction_gives_its_rows_ends_and_counts_them_together(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def transact(number: int, keys: str) -> Any:
        writes = [
            c.Op(SequenceNumber(number), c.OpKind.PUT, "t", key, Fingerprint(0), b"1", options=c.Options(bound=True))
            for key in keys
        ]
        one = c.Transaction(SequenceNumber(number), c.fingerprint_transaction([], writes), [], writes)
        return log.one(c.Operate(1, 1, SequenceNumber(1), [one])).verdicts[0]

    monkeypatch.setattr(tables, "BOUND_ROWS_MAX", 3)
    transact(1, "ab")
    assert transact(2, "cd").refusal.code is Code.QUOTA
    assert not log.has("c")
    transact(3, "c")
    assert {row.key for row in log.one(c.CloseSession(1, 1)).rows} == {"a", "b", "c"}
