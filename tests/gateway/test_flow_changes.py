"""Altering and deleting flows and consumers: by version, without a second effect, without a number given out twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncegate.flows.flow import CONSUMERS_MAX, FlowDeclaration
from oncegate.gateway import wire
from oncegate.gateway.answers import answer, flow_state
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import Start
from oncegate.gateway.machine.state import state_digest
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.machine_log import MachineLog
from tests.gateway.state_harness import Fed, ship


class Cluster(MachineLog):
    """A machine with a table t, a flow f of it unless it is a stream table, and a session."""

    def __init__(self, kind: str = "resident", quota_bytes: int = 1 << 20, **flow: Any) -> None:
        super().__init__(c.DeclareTable("t", kind, quota_bytes), c.OpenSession("n", 86_400_000, 512))  # type: ignore[arg-type]
        self.sequence = 0
        if flow or kind == "resident":
            self.declare("f", **flow)

    def declare(self, name: str, source: str = "t", max_items: int = 1, **fields: Any) -> None:
        flow = FlowDeclaration(name=name, source=source, max_items=max_items, **fields)
        self.done(c.DeclareFlow(msgspec.json.encode(flow)))

    def fill(self, count: int = 1, value: bytes = b"1") -> Any:
        """Put so many rows, each acknowledging the one before; returns what the last is answered."""
        for _ in range(count):
            self.sequence += 1
            op = c.Op(self.sequence, int(c.OpKind.PUT), "t", f"k{self.sequence}", self.sequence, value)
            result = self.one(c.Operate(1, 1, self.sequence, [op]))
        return answer(c.Operate(1, 1, self.sequence, [op]), result, self.machine).body.results[0]

    def alter(self, name: str, version: int, /, **changes: Any) -> c.AlterFlow:
        return c.AlterFlow(name, version, msgspec.json.encode(changes))

    @property
    def flow(self) -> Any:
        return self.machine.flows.get("f")

    def flow_state(self) -> wire.FlowState:
        return flow_state(self.machine, "f")


def names(flow: Any) -> list[tuple[str, bool, int]]:
    return [(one.name, one.required, one.cursor) for one in flow.consumers.all()]


def test_a_misspelt_consumer_is_altered_away_and_what_it_held_is_dropped() -> None:
    cluster = Cluster(consumers=("spakr",), retention_ms=0)
    cluster.fill(3)
    fence, _ = cluster.done(c.Attach("f", "spark", "n"))
    cluster.done(c.MoveCursor("f", "spark", 2, fence, False))
    assert cluster.flow.batches.first == 1, "the typo holds every batch"
    cluster.done(cluster.alter("f", 1, consumers=["spark"]))
    assert names(cluster.flow) == [("spark", True, 2)], "nobody was ever there under the other name"
    assert (cluster.flow.batches.first, cluster.flow.version) == (3, 2)
    assert cluster.machine.flows.take_dropped() == [("f", 2)]


def test_batches_over_the_size_go_before_their_time_and_never_before_who_has_to_read_them() -> None:
    cluster = Cluster(consumers=("spark",), retention_bytes=100)
    cluster.fill(10)
    assert cluster.flow.batches.first == 1, "nobody has read them"
    assert "spark (which has never attached)" in cluster.flow_state().held
    fence, _ = cluster.done(c.Attach("f", "spark", "n"))
    cluster.done(c.MoveCursor("f", "spark", 9, fence, False))
    assert 0 < cluster.flow.retained_bytes <= 100
    assert "or 100 bytes follow it" in cluster.flow_state().held
    cluster.fill(5)
    assert cluster.flow.batches.first == 10, "what it has not read stays, whatever it weighs"
    assert cluster.flow.retained_bytes > 100
    cluster.done(cluster.alter("f", 1, retention_bytes=0))
    cluster.done(c.MoveCursor("f", "spark", 15, fence, False))
    assert cluster.flow.batches.first == 10, "its time is not over"


def test_an_alter_of_another_version_is_refused_and_one_sent_again_changes_nothing() -> None:
    cluster = Cluster()
    first = cluster.alter("f", 1, retention_ms=5)
    cluster.done(first)
    before = state_digest(cluster.machine)
    cluster.done(first)
    assert state_digest(cluster.machine) == before
    stale = cluster.refused(cluster.alter("f", 1, retention_ms=7))
    assert stale.code is Code.CONFLICT
    assert "version 2, not 1" in stale.detail
    cluster.done(cluster.alter("f", 2, retention_ms=7))
    assert cluster.refused(first).code is Code.CONFLICT, "a late copy does not bring the old value back"
    assert cluster.flow.declaration.retention_ms == 7


@pytest.mark.parametrize(
    "changes",
    [{"source": "u"}, {"name": "g"}, {"target": "t"}, {"retention_ms": -1}, {"retention_ms": "1"}, {"max_items": 0},
     {"consumers": ["a", "a"]}, {"consumers": [".."]}, {"retention": 1}, {"consumer_expiry_ms": 10**18}],
)  # fmt: skip
def test_what_cannot_change_and_what_is_out_of_bounds_is_a_bad_request(changes: dict[str, Any]) -> None:
    cluster = Cluster()
    assert cluster.refused(cluster.alter("f", 1, **changes)).code is Code.BAD_REQUEST


def test_consumers_of_an_altered_flow_stay_within_their_bound() -> None:
    cluster = Cluster(consumers=tuple(f"c{n}" for n in range(CONSUMERS_MAX - 1)))
    cluster.done(c.Attach("f", "plain", "n"))
    many = [f"c{n}" for n in range(CONSUMERS_MAX)]
    assert cluster.refused(cluster.alter("f", 1, consumers=many)).code is Code.QUOTA
    cluster.done(cluster.alter("f", 1, consumers=[*many[1:CONSUMERS_MAX]]))
    assert len(cluster.flow.consumers.all()) == CONSUMERS_MAX


def test_smaller_batches_begin_with_the_next_write_though_more_items_are_open() -> None:
    cluster = Cluster("stream", max_items=100)
    cluster.fill(5)
    cluster.done(cluster.alter("f", 1, max_items=2))
    assert (cluster.flow.batches.last, cluster.flow.segment.items) == (1, 0)
    cluster.fill(3)
    assert (cluster.flow.batches.last, cluster.flow.segment.items) == (2, 1)


def test_a_consumer_that_is_removed_is_fenced_also_when_its_name_is_back() -> None:
    cluster = Cluster(consumers=("spark",), retention_ms=0)
    cluster.fill(4)
    fence, _ = cluster.done(c.Attach("f", "spark", "old"))
    cluster.done(c.MoveCursor("f", "spark", 1, fence, False))
    cluster.done(c.RemoveConsumer("f", "spark", 1))
    assert names(cluster.flow) == []
    assert cluster.flow.declaration.consumers == ()
    move = c.MoveCursor("f", "spark", 2, fence, False)
    assert cluster.refused(move).code is Code.FENCED
    cluster.done(cluster.alter("f", 2, consumers=["spark"]))
    assert cluster.refused(move).code is Code.FENCED, "required again, and nobody has attached yet"
    renewed, cursor = cluster.done(c.Attach("f", "spark", "new"))
    assert (renewed > fence, cursor) == (True, cluster.flow.batches.first - 1)
    assert cluster.refused(move).code is Code.FENCED


def test_removal_sent_again_changes_nothing_and_of_nobody_is_not_found() -> None:
    cluster = Cluster(consumers=("a", "b"))
    remove = c.RemoveConsumer("f", "a", 1)
    cluster.done(remove)
    before = state_digest(cluster.machine)
    cluster.done(remove)
    assert state_digest(cluster.machine) == before
    assert cluster.refused(c.RemoveConsumer("f", "c", 2)).code is Code.NOT_FOUND
    assert cluster.refused(c.RemoveConsumer("f", "b", 1)).code is Code.CONFLICT


def test_a_flow_that_consumers_have_attached_to_is_deleted_by_force_only() -> None:
    cluster = Cluster()
    fence, _ = cluster.done(c.Attach("f", "spark", "n"))
    refusal = cluster.refused(c.DeleteFlow("f", 1, False))
    assert (refusal.code, "spark" in refusal.detail) == (Code.CONFLICT, True)
    assert cluster.done(c.DeleteFlow("f", 1, True)) == 0
    move = cluster.refused(c.MoveCursor("f", "spark", 0, fence, False))
    assert (move.code, "deleted" in move.detail) == (Code.NOT_FOUND, True)
    assert cluster.refused(c.Attach("f", "spark", "m")).code is Code.NOT_FOUND


def test_a_name_that_is_back_has_nothing_of_the_flow_that_was_deleted() -> None:
    cluster = Cluster(max_items=2)
    cluster.fill(5)
    old, _ = cluster.done(c.Attach("f", "spark", "n"))
    cluster.done(c.MoveCursor("f", "spark", 1, old, False))
    cluster.done(c.DeleteFlow("f", 1, True))
    assert cluster.machine.flows.take_dropped() == [("f", 2)]
    cluster.fill(2)  # to nobody
    cluster.declare("f", max_items=2, consumers=("spark",))
    assert (cluster.flow.batches.first, cluster.flow.batches.last, cluster.flow.segment.items) == (3, 2, 0)
    assert names(cluster.flow) == [("spark", True, 2)]
    for batch in (1, 2):
        assert cluster.refused(c.MoveCursor("f", "spark", batch, old, False)).code is Code.FENCED
    assert cluster.refused(c.DeleteFlow("f", 1, True)).code is Code.CONFLICT, "a late copy"
    assert cluster.refused(cluster.alter("f", 1, retention_ms=0)).code is Code.CONFLICT
    new, _ = cluster.done(c.Attach("f", "spark", "n"))
    assert new > old, "the same nonce was of another consumer"
    cluster.fill(2)
    assert [batch.number for batch in cluster.machine.flows.take_sealed()][-1] == 3
    with pytest.raises(OncegateError) as dropped:
        cluster.machine.flows.batch("f", 2)
    assert dropped.value.code is Code.RETENTION_EXCEEDED


def test_deletion_sent_again_gets_the_same_answer() -> None:
    cluster = Cluster()
    cluster.fill(3)
    assert cluster.done(c.DeleteFlow("f", 1, False)) == 3
    before = state_digest(cluster.machine)
    assert cluster.done(c.DeleteFlow("f", 1, False)) == 3
    assert state_digest(cluster.machine) == before
    assert cluster.refused(c.DeleteFlow("never", 1, False)).code is Code.NOT_FOUND


def test_the_own_flow_of_a_stream_table_stays_and_brings_all_of_its_rows_to_the_store() -> None:
    cluster = Cluster("stream")
    assert cluster.refused(c.DeleteFlow("t", 1, True)).code is Code.CONFLICT
    own = cluster.machine.flows.get("t")
    cluster.done(cluster.alter("t", 1, consumers=["rows"], retention_ms=0, max_items=1, consumer_expiry_ms=5))
    cluster.fill(3)
    fence, _ = cluster.done(c.Attach("t", "rows", "n"))
    refusal = cluster.refused(c.StartConsumer("t", "rows", "m", "now"))
    assert (refusal.code, "skip" in refusal.detail) == (Code.CONFLICT, True)
    cluster.now_ms = 10**6
    assert cluster.done(c.ExpireConsumers("t")) == 0, "rows that nobody brings would be lost"
    cluster.done(cluster.alter("t", 2, consumers=[]))
    cluster.done(cluster.alter("t", 3, consumers=["rows"]))
    assert cluster.refused(c.MoveCursor("t", "rows", 1, fence, False)).code is Code.FENCED, "it begins anew"
    fence, cursor = cluster.done(c.Attach("t", "rows", "o"))
    assert cursor == 0
    cluster.done(c.MoveCursor("t", "rows", 1, fence, False))
    assert own.batches.first == 2
    for command in (cluster.alter("t", 4, consumers=[]), c.RemoveConsumer("t", "rows", 4)):
        assert cluster.refused(command).code is Code.CONFLICT


def test_a_required_consumer_that_never_moves_expires_by_its_flow_and_comes_back_without_a_silent_gap() -> None:
    cluster = Cluster(consumers=("typo",), retention_ms=0, consumer_expiry_ms=1_000)
    cluster.fill(2)
    fence, _ = cluster.done(c.Attach("f", "spark", "n"))
    cluster.done(c.MoveCursor("f", "spark", 2, fence, False))
    cluster.now_ms = 999
    assert cluster.done(c.ExpireConsumers("f")) == 0
    cluster.now_ms = 1_000
    assert cluster.done(c.ExpireConsumers("f")) == 1
    assert (cluster.flow.batches.first, cluster.flow.version) == (3, 2), "what others have finished goes"
    assert cluster.flow.declaration.consumers == ("typo",), "declared as it was"
    cluster.fill(1)
    fence, cursor = cluster.done(c.Attach("f", "typo", "n"))
    assert cursor == 0
    gone = cluster.refused(c.MoveCursor("f", "typo", 1, fence, False))
    assert gone.code is Code.RETENTION_EXCEEDED
    assert cluster.flow.consumers.watermark() == 0, "retention waits for it again"


def test_nobody_expires_who_shows_life_or_has_moved_or_whose_flow_does_not_say_so() -> None:
    cluster = Cluster(consumers=("moved", "attaches"), consumer_expiry_ms=1_000)
    cluster.declare("g", consumers=("typo",))
    cluster.fill(1)
    fence, _ = cluster.done(c.Attach("f", "moved", "n"))
    cluster.done(c.MoveCursor("f", "moved", 1, fence, False))
    cluster.now_ms = 800
    cluster.done(c.Attach("f", "attaches", "n"))
    cluster.now_ms = 1_799
    assert cluster.done(c.ExpireConsumers("f")) == 0
    cluster.now_ms = 10**9
    assert cluster.done(c.ExpireConsumers("g")) == 0
    cluster.done(cluster.alter("g", 1, consumer_expiry_ms=50))
    assert cluster.done(c.ExpireConsumers("g")) == 0, "the time counts from the change"


def test_flow_whose_only_consumer_expired_drops_nothing_until_somebody_reads_it() -> None:
    cluster = Cluster(consumers=("typo",), retention_ms=0, consumer_expiry_ms=1)
    cluster.fill(3)
    cluster.now_ms = 10
    cluster.done(c.ExpireConsumers("f"))
    cluster.fill(1)
    assert cluster.flow.batches.first == 1
    fence, cursor = cluster.done(c.Attach("f", "spark", "n"))
    assert cursor == 0
    cluster.done(c.MoveCursor("f", "spark", 2, fence, False))
    assert cluster.flow.batches.first == 3


@pytest.mark.parametrize(
    ("start", "number", "cursor"),
    [("beginning", 0, 0), ("now", 0, 4), ("batch", 3, 2), ("time", 0, 0), ("time", 101, 1), ("time", 200, 1),
     ("time", 201, 2), ("time", 9_999, 4), ("ago", 0, 3), ("ago", 150, 2), ("ago", 10**6, 0)],
)  # fmt: skip
def test_a_consumer_starts_where_it_is_told_and_fences_who_was_there(start: Start, number: int, cursor: int) -> None:
    cluster = Cluster()
    old, _ = cluster.done(c.Attach("f", "spark", "old"))
    for cluster.now_ms in (100, 200, 300, 400):
        cluster.fill(1)  # batches 1 to 4
    command = c.StartConsumer("f", "spark", "n", start, number)
    fence, at = cluster.done(command)
    assert (at, fence) == (cursor, old + 1)
    assert cluster.refused(c.MoveCursor("f", "spark", 4, old, False)).code is Code.FENCED
    cluster.done(c.MoveCursor("f", "spark", 4, fence, False))
    assert cluster.done(command) == (fence, 4), "sent again it moves nothing"


def test_a_start_that_cannot_be_is_refused_and_one_below_the_cursor_is_a_replay() -> None:
    cluster = Cluster(retention_ms=0)
    fence, _ = cluster.done(c.Attach("f", "spark", "n"))
    for cluster.now_ms in (100, 200, 300):
        cluster.fill(1)
    cluster.done(c.MoveCursor("f", "spark", 1, fence, False))
    for start, number, code in (
        ("batch", 1, Code.RETENTION_EXCEEDED),
        ("batch", 9, Code.BAD_REQUEST),
        ("time", 150, Code.RETENTION_EXCEEDED),
        ("ago", 10**6, Code.RETENTION_EXCEEDED),
    ):
        refusal = cluster.refused(c.StartConsumer("f", "spark", "m", cast(Start, start), number))
        assert refusal.code is code
    assert cluster.refused(c.StartConsumer("f", "nobody", "m", "cursor")).code is Code.NOT_FOUND
    cluster.done(c.StartConsumer("f", "late", "m", "batch", 3))
    cluster.done(c.StartConsumer("f", "late", "o", "beginning"))
    assert cluster.flow.consumers.get("late").replays == 1


def test_quota_of_a_stream_table_names_the_table_and_who_holds_its_oldest_batch() -> None:
    cluster = Cluster("stream", 400)
    cluster.done(cluster.alter("t", 1, consumers=["spakr"], max_items=1, retention_ms=0))
    refused = cluster.fill(20)
    assert refused.code == "QUOTA"
    for part in ("table t: ", "of 400", "batch 1 of flow t", "spakr (which has never attached)"):
        assert part in refused.detail
    cluster.done(c.RemoveConsumer("t", "spakr", 2))
    assert "none has attached" in cluster.fill().detail
    fence, _ = cluster.done(c.Attach("t", "spark", "n"))
    assert "spark (cursor 0)" in cluster.fill().detail
    cluster.done(c.MoveCursor("t", "spark", cluster.machine.flows.get("t").batches.last, fence, False))
    assert cluster.fill().status == "applied"
    cluster.done(cluster.alter("t", 3, retention_ms=60_000))
    last = cluster.fill(20)
    fresh = cluster.machine.flows.get("t").batches.last
    cluster.done(c.MoveCursor("t", "spark", fresh, fence, False))
    assert last.code == "QUOTA"
    assert "retention_ms" in cluster.fill().detail


def test_quota_of_a_resident_table_names_the_table_and_not_a_consumer() -> None:
    cluster = Cluster(quota_bytes=400, consumers=("typo",))
    refused = cluster.fill(20, b'"%s"' % (b"x" * 60))
    assert refused.code == "QUOTA"
    assert refused.detail.startswith("table t: ")
    assert "typo" not in refused.detail


class FlowLife(RuleBasedStateMachine):
    """Flows come and go; what any job, cache or disk may remember of a name never fits the flow that has it now."""

    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster(max_items=2)
        self.sealed: dict[tuple[str, int], int] = {}
        self.fences: set[tuple[str, str, int]] = set()
        self.versions: set[tuple[str, int, bytes]] = set()

    def _flows(self) -> dict[str, Any]:
        return {flow.declaration.name: flow for flow in self.cluster.machine.flows.all()}

    @rule(name=st.sampled_from("fg"), required=st.booleans())
    def declare(self, name: str, *, required: bool) -> None:
        if name not in self._flows():
            self.cluster.declare(name, max_items=2, retention_ms=0, consumers=("a",) if required else ())

    @rule(name=st.sampled_from("fg"), ago=st.integers(0, 2))
    def delete(self, name: str, ago: int) -> None:
        flow = self._flows().get(name)
        version = 1 if flow is None else flow.version - ago
        result = self.cluster.one(c.DeleteFlow(name, version, True))
        assert (flow is not None and ago == 0) == (flow is not None and name not in self._flows()), result

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        self.cluster.fill(count)

    @rule(name=st.sampled_from("fg"), consumer=st.sampled_from("ab"), nonce=st.integers(0, 99))
    def attach(self, name: str, consumer: str, nonce: int) -> None:
        flow = self._flows().get(name)
        known = flow is not None and any(
            used == str(nonce) for one in flow.consumers.all() if one.name == consumer for used, _ in one.nonces
        )
        result = self.cluster.one(c.Attach(name, consumer, str(nonce)))
        if flow is not None and not known:
            assert (name, consumer, result[0]) not in self.fences, "a fence is given out once"
            self.fences.add((name, consumer, result[0]))

    @rule(name=st.sampled_from("fg"), consumer=st.sampled_from("ab"))
    def remove(self, name: str, consumer: str) -> None:
        flow = self._flows().get(name)
        if flow is not None:
            self.cluster.one(c.RemoveConsumer(name, consumer, flow.version))

    @rule(data=st.data())
    def move_with_any_fence_that_was_ever_given(self, data: st.DataObject) -> None:
        if not self.fences:
            return
        name, consumer, fence = data.draw(st.sampled_from(sorted(self.fences)))
        flow = self._flows().get(name)
        there = None if flow is None else next((o for o in flow.consumers.all() if o.name == consumer), None)
        last = 0 if flow is None else flow.batches.last
        result = self.cluster.one(c.MoveCursor(name, consumer, last, fence, False))
        if there is None or not there.attached or fence != there.fence:
            assert isinstance(result, OncegateError)
            assert result.code in (Code.FENCED, Code.NOT_FOUND)

    @invariant()
    def a_batch_number_is_used_once(self) -> None:
        for batch in self.cluster.machine.flows.take_sealed():
            assert (batch.flow, batch.number) not in self.sealed
            self.sealed[batch.flow, batch.number] = batch.first_commit

    @invariant()
    def retained_bytes_are_those_of_the_batches(self) -> None:
        for flow in self._flows().values():
            assert flow.retained_bytes == flow.batches.bytes_after(flow.batches.first - 1)


TestFlowsThatComeAndGo = FlowLife.TestCase
TestFlowsThatComeAndGo.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def _changed(fed: Fed) -> None:
    """Alter, delete and declare again, with saves in between, so that numbers of cells become free and are used."""
    fed.do(c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", 10**6, 512))
    for name in "fgh":
        fed.do(c.DeclareFlow(b'{"name":"%s","source":"t","max_items":3,"consumers":["x"]}' % name.encode()))
    fed.do(c.Operate(1, 1, 1, [c.Op(n, 1, "t", f"k{n}", n, b"1") for n in range(1, 8)]))
    fed.save()
    fed.do(c.DeleteFlow("g", 1, True))
    fed.do(c.DeclareFlow(b'{"name":"g","source":"t","max_items":2}'))
    fed.do(c.Operate(1, 1, 8, [c.Op(n, 1, "t", f"k{n}", n, b"1") for n in range(8, 12)]))
    fed.save()
    fed.do(c.DeleteFlow("f", 1, True), c.RemoveConsumer("h", "x", 1))
    fed.save()
    fed.do(c.DeclareFlow(b'{"name":"i","source":"t","max_items":2}'))
    fed.do(c.Operate(1, 1, 12, [c.Op(n, 1, "t", f"k{n}", n, b"1") for n in range(12, 15)]))
    fed.save()


def test_saves_and_snapshots_hold_flows_that_were_changed_deleted_and_declared_again(tmp_path: Path) -> None:
    leader, follower = Fed(tmp_path / "leader"), Fed(tmp_path / "follower")
    _changed(leader)
    leader = leader.reopened()
    assert sorted(leader.state._marks.numbered) == [0, 2, 3], "a number is free again after a save"
    assert leader.machine.flows.names() == ["h", "g", "i"]
    assert leader.machine.flows.retired.names() == ["f"]
    assert leader.machine.flows.get("g").batches.first == 3
    sink = ship(leader.state, follower.state)
    sink.install()
    assert state_digest(follower.machine) == state_digest(leader.machine)
    used = leader.machine.flows.retired.used("f").batches
    leader.do(c.DeclareFlow(b'{"name":"f","source":"t"}'))
    leader.save()
    leader = leader.reopened()
    assert leader.machine.flows.get("f").batches.first == used + 1 == 4
    leader.close()
    follower.close()


def test_answer_to_an_alter_shows_the_flow_as_it_is_now() -> None:
    cluster = Cluster(consumers=("a",))
    command = cluster.alter("f", 1, consumers=["b"], consumer_expiry_ms=9)
    body = answer(command, cluster.done(command), cluster.machine).body
    assert isinstance(body, wire.FlowState)
    assert (body.version, body.consumer_expiry_ms, list(body.consumers)) == (2, 9, ["b"])
