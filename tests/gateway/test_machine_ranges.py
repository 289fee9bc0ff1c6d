"""Ranges in the state machine (case 40), and flow items: the committed writes, in commit order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.chunks import SealedBatch
from oncegate.gateway import wire
from oncegate.gateway.http import range_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.results import Ranged
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.machine_log import QUOTA, MachineLog, batches
from tests.rifl.told import part_told


def started() -> MachineLog:
    tables = c.DeclareTable("s", "stream", QUOTA), c.DeclareTable("t", "resident", QUOTA)
    return MachineLog(*tables, c.OpenSession("a", 10_000, 8))


def value_of(sequence: int) -> str:
    return f'{{"n":{sequence}}}'


def range_of(first: int, last: int, *, fi: int = 1, table: str = "s", client: int = 1, changed: int = 0) -> c.Range:
    values = [value_of(s) if s != changed else '"changed"' for s in range(first, last + 1)]
    columns = wire.RangeBody([f"k{s}" for s in range(first, last + 1)], values)
    return range_bodies.range_command(table, client, 1, fi, first, msgspec.msgpack.encode(columns), wire.MSGPACK)


def single(sequence: int, *, table: str = "s") -> c.Op:
    value = value_of(sequence).encode()
    key = f"k{sequence}"
    return c.Op(sequence, int(c.OpKind.PUT), table, key, c.fingerprint_put(table, key, value), value)


def parts(result: Any) -> list[tuple[int, int, str, int]]:
    assert isinstance(result, Ranged)
    return [part_told(part) for part in result.parts]


def items(log: MachineLog, flow: str = "s") -> list[tuple[int, str, Any, int]]:
    """Return everything in a flow, sealed or not."""
    return [item for batch in batches(log.machine, flow) for item in batch]


def test_changed_payload_in_a_retried_range_is_refused_alone() -> None:
    log = started()
    log.do(range_of(1, 3))
    assert parts(log.do(range_of(1, 4, changed=2))[0]) == [
        (1, 1, "REPLAY", 1),
        (2, 2, "PAYLOAD_MISMATCH", 0),
        (3, 3, "REPLAY", 3),
        (4, 4, "EXECUTE", 4),
    ]
    assert [item[2] for item in items(log)] == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]


def test_refused_range_changes_neither_acks_nor_lease() -> None:
    """All of it lies below its own first incomplete, right before a recorded range."""
    log = started()
    log.do(range_of(1, 4))
    [result] = log.do(range_of(2, 2, fi=3), at_ms=5_000)
    assert parts(result) == [(2, 2, "BAD_ACK", 0)]
    assert log.machine.trackers[1].first_incomplete == 1
    assert log.machine.sessions.get(1).ends_ms == 10_000  # type: ignore[union-attr]


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("changed", [0, 1, 2, 3])
def test_range_of_which_any_part_is_accepted_renews_the_lease_and_acknowledges(first: int, changed: int) -> None:
    log = started()
    log.do(range_of(1, 3))
    [told] = log.do(range_of(first, 5, fi=first, changed=changed), at_ms=4_000)
    assert ("PAYLOAD_MISMATCH" in [part[2] for part in parts(told)]) == (changed >= first)
    session = log.machine.sessions.get(1)
    assert session is not None
    assert (session.ends_ms, told.memory_ms) == (14_000, 10_000)
    assert log.machine.trackers[1].first_incomplete == first


@pytest.mark.parametrize(("epoch", "at", "code"), [(0, 0, "FENCED"), (1, 20_000, "SESSION_EXPIRED")])
def test_range_of_an_owner_before_and_of_a_session_that_is_over_executes_nothing(
    epoch: int, at: int, code: str
) -> None:
    log = started()
    assert parts(log.do(range_of(1, 2))[0]) == [(1, 2, "EXECUTE", 1)]
    before = items(log)
    [result] = log.do(msgspec.structs.replace(range_of(1, 4), epoch=epoch), at_ms=at)
    told = {(first, last): what for first, last, what, _ in parts(result)}
    assert told == ({(1, 4): code} if epoch == 0 else {(1, 2): "REPLAY", (3, 4): code})
    assert items(log) == before


def test_range_without_a_session_is_judged_as_if_each_had_come_alone() -> None:
    log = started()
    [refused] = log.do(range_of(1, 4, client=7))
    assert parts(refused) == [(1, 4, "SESSION_EXPIRED", 0)]
    assert type(refused.parts[0].last) is int, "as it is told"
    assert parts(log.do(range_of(1, 4, client=7, fi=5))[0]) == [(1, 4, "BAD_ACK", 0)]
    assert parts(log.do(range_of(1, 4, client=7, fi=3))[0]) == [(1, 2, "BAD_ACK", 0), (3, 4, "SESSION_EXPIRED", 0)]


def codes(result: Any) -> set[str]:
    if isinstance(result, OncegateError):
        return {result.code.value}
    return {part[2] for part in parts(result)}


@pytest.mark.parametrize(("table", "code"), [("nowhere", "NOT_FOUND"), ("t", "BAD_REQUEST")])
def test_range_on_a_table_that_takes_none_changes_nothing(table: str, code: str) -> None:
    log = started()
    assert codes(log.do(range_of(1, 3, table=table))[0]) == {code}
    assert log.machine.commit == 0
    assert parts(log.do(range_of(1, 3))[0]) == [(1, 3, "EXECUTE", 1)], "the refusal was not recorded"


def test_what_was_applied_is_never_called_not_applied_because_of_its_neighbour() -> None:
    """A put on a resident table, retried inside a range there: the put is a replay, only the rest is refused."""
    log = started()
    log.do(c.Operate(1, 1, 1, [single(1, table="t")]))
    [result] = log.do(range_of(1, 2, table="t"))
    assert not isinstance(result, OncegateError)
    assert parts(result)[0] == (1, 1, "REPLAY", 1)


def test_full_stream_table_refuses_before_execution() -> None:
    log = started()
    log.do(c.DeclareTable("s", "stream", 100), range_of(1, 5))
    assert parts(log.do(range_of(6, 7))[0]) == [(6, 7, "QUOTA", 0)]
    [operated] = log.do(c.Operate(1, 1, 1, [single(8)]))
    assert operated.verdicts[0].refusal.code is Code.QUOTA
    assert log.machine.commit == 5
    assert parts(log.do(range_of(4, 6))[0]) == [(4, 5, "REPLAY", 4), (6, 6, "QUOTA", 0)]


def test_full_stream_table_takes_writes_again_once_its_retention_is_over() -> None:
    """Nothing is written while it is full, so no later seal is there to look at the clock."""
    log = started()
    brief = c.DeclareFlow(b'{"name":"brief","source":"q","retention_ms":1000}')
    log.do(c.DeclareTable("q", "stream", 100), brief, c.OpenSession("b", 10**8, 8))
    day_ms = 24 * 3_600_000
    log.do(range_of(1, 5, table="q", client=2))
    for flow in ("q", "brief"):
        log.do(c.Seal(flow, 1), c.Attach(flow, "spark", "n"), c.MoveCursor(flow, "spark", 1, 1, replay=False))
    assert codes(log.do(range_of(6, 7, table="q", client=2))[0]) == {"QUOTA"}
    assert codes(log.do(range_of(6, 7, table="q", client=2), at_ms=day_ms + 1)[0]) == {"EXECUTE"}
    assert log.machine.flows.take_dropped() == [("q", 1), ("brief", 1)]


def test_flow_items_are_the_committed_writes_in_commit_order() -> None:
    log = started()
    log.do(c.DeclareFlow(b'{"name":"copy","source":"t"}'))
    absent = msgspec.structs.replace(single(2, table="t"), test=int(c.Test.ABSENT), key="k1")
    gone = c.Op(3, int(c.OpKind.DELETE), "t", "k1", 33)
    counted = [c.Op(s, int(c.OpKind.INCREMENT), "t", "n", s, by=5) for s in (4, 5)]
    log.do(c.Operate(1, 1, 1, [single(1, table="t"), absent, gone, single(1, table="t"), *counted]))
    assert items(log, "copy") == [(1, "k1", {"n": 1}, 1), (3, "k1", None, 3), (4, "n", 5, 4), (5, "n", 10, 5)]


def test_two_flows_of_a_table_get_the_same_items() -> None:
    log = started()
    log.do(c.DeclareFlow(b'{"name":"other","source":"s","max_items":2}'))
    log.do(range_of(1, 3), c.Operate(1, 1, 1, [single(5)]))
    sealed = log.machine.flows.take_sealed()
    assert [(b.flow, b.number, b.items) for b in sealed] == [("other", 1, 2), ("other", 2, 2)]
    assert log.machine.flows.get("s").segment.items == 4


def test_seal_is_decided_by_its_entry_and_only_once() -> None:
    log = started()
    log.do(range_of(1, 3))
    assert log.machine.flows.due(499) == []
    assert log.machine.flows.due(500) == [("s", 1)]
    assert log.do(c.Seal("s", 1), c.Seal("s", 1), c.Seal("s", 2), at_ms=500) == [1, 1, 1]
    [batch] = log.machine.flows.take_sealed()
    assert (batch.number, batch.items, batch.first_commit, batch.last_commit) == (1, 3, 1, 3)
    assert isinstance(batch, SealedBatch)
    assert log.do(c.Seal("nowhere", 1))[0].code is Code.NOT_FOUND


def test_older_instance_of_a_consumer_is_fenced_at_the_cursor() -> None:
    """Case 37; moves are idempotent, back needs to be called a replay."""
    log = started()
    log.do(range_of(1, 3), c.Seal("s", 1))
    old, same, new = log.do(*(c.Attach("s", "spark", nonce) for nonce in "aab"))
    assert old == same
    assert new[0] > old[0]
    moves = ((1, old, False), (1, new, False), (1, new, False), (0, new, False), (0, new, True))
    fenced, moved, again, back, replayed = log.do(
        *(c.MoveCursor("s", "spark", batch, fence, replay) for batch, (fence, _), replay in moves)
    )
    assert fenced.code is Code.FENCED
    assert (moved, again, back.code, replayed) == (1, 1, Code.BAD_REQUEST, 0)


ranges = st.tuples(st.just("range"), st.integers(1, 14), st.integers(0, 4))
singles = st.tuples(st.just("single"), st.integers(1, 14), st.just(0))


@settings(max_examples=100, deadline=None)
@given(st.lists(ranges | singles, max_size=20))
def test_any_mixture_of_ranges_and_singles_applies_each_operation_once(sent: list[tuple[str, int, int]]) -> None:
    """Case 40 against a dictionary, sequence number to commit, in order of first arrival: sent again, cut otherwise."""
    log = MachineLog(c.DeclareTable("s", "stream", QUOTA), c.OpenSession("a", 10_000, 64))
    log.do(c.DeclareFlow(b'{"name":"few","source":"s","max_items":3}'))
    expected: dict[int, int] = {}
    replayed = 0
    for what, first, more in sent:
        if what == "range":
            [result] = log.do(range_of(first, first + more))
            got = {p.first + i: p.commit + i for p in result.parts for i in range(p.last - p.first + 1)}
        else:
            [result] = log.do(c.Operate(1, 1, 1, [single(first)]))
            got = {first: result.verdicts[0].record.commit}
        for sequence in range(first, first + more + 1):
            replayed += sequence in expected
            expected.setdefault(sequence, len(expected) + 1)
            assert got[sequence] == expected[sequence]
        assert (log.machine.replayed, log.machine.commit) == (replayed, len(expected))
    by_commit = [(commit, f"k{s}", {"n": s}, s) for s, commit in sorted(expected.items(), key=lambda pair: pair[1])]
    sealed = log.machine.flows.take_sealed()
    assert items(log) == by_commit
    assert all(batch.items == 3 for batch in sealed)
    assert sum(batch.items for batch in sealed) + log.machine.flows.get("few").segment.items == len(expected)
