"""Changes of a flow against a few fields: its version, its declaration, when it was changed, and what depends on them.

Alters and removals come with the version of now, of before, or of nobody; some are sent again, some change nothing. The
own flow of a stream table has rules of its own for the consumer that brings its rows to the store.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_handlers import overdue_consumers
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.test_flow_changes import Cluster

NAMES = ("rows", "x", "y")


class Sides:
    def __init__(self, seed: int, kind: str) -> None:
        self.dice, self.kind = random.Random(seed), kind
        self.cluster = Cluster(kind)
        self.name = "t" if kind == "stream" else "f"
        self.version, self.altered_ms, self.sealed, self.clocked = 1, 0, 0, 0
        self.cluster.done(self.cluster.alter(self.name, 1, max_items=1, max_bytes=2_000))
        self.version += 1
        self.said: dict[str, Any] = {"consumers": (), "consumer_expiry_ms": 0, "event_time": "", "linger_ms": 0}
        self.said["linger_ms"] = self.flow.declaration.linger_ms

    @property
    def flow(self) -> Any:
        return self.cluster.machine.flows.get(self.name)

    def _version(self) -> int:
        return self.version + self.dice.choice((0, 0, 0, 0, -1, -1, 1, -2))

    def wrong(self, version: int, *, is_so: bool) -> Code | None:
        """Say how a change is refused: one that was made stays made for whoever sends it again, and for nobody else."""
        if is_so and version == self.version - 1:
            return None
        return Code.CONFLICT if version != self.version else None

    def write(self) -> None:
        self.cluster.fill()
        self.sealed += 1

    def alter(self) -> None:
        changes: dict[str, Any] = {}
        for name, values in (
            ("consumers", [(), ("rows",), ("x",), ("x", "y"), ("rows", "y")]),
            ("consumer_expiry_ms", [0, 40, 90]),
            ("event_time", ["", "", "at", "on"]),
            ("linger_ms", [5, 7]),
        ):
            if self.dice.random() < 0.4:
                changes[name] = self.dice.choice(values)
        version, after = self._version(), {**self.said, **changes}
        self._do(
            self.cluster.alter(self.name, version, **changes), self.wrong(version, is_so=after == self.said), after
        )

    def remove(self) -> None:
        version, name = self._version(), self.dice.choice(NAMES)
        is_there = name in self.said["consumers"]
        wrong = self.wrong(version, is_so=not is_there)
        if not wrong and not is_there and version == self.version:
            wrong = Code.NOT_FOUND
        after = {**self.said, "consumers": tuple(one for one in self.said["consumers"] if one != name)}
        self._do(c.RemoveConsumer(self.name, name, version), wrong, after)

    def _do(self, command: c.Command, wrong: Code | None, after: dict[str, Any]) -> None:
        self.cluster.now_ms += self.dice.choice((0, 5, 30))
        if wrong is not None:
            refused = self.cluster.one(command)  # the clock goes on all the same
            assert isinstance(refused, OncegateError), command
            assert refused.code is wrong, command
            return
        self.cluster.done(command)
        if after == self.said:
            return
        if after["event_time"] != self.said["event_time"]:
            self.clocked = 0
        self.said, self.version, self.altered_ms = after, self.version + 1, self.cluster.now_ms

    def clock(self) -> None:
        """Event times are read from the first batch of which they are not known."""
        count, field = self.dice.randint(1, 3), self.dice.choice(("at", "on"))
        self.cluster.one(c.ClockBatches(self.name, field, self.clocked + 1, [9] * count))
        if field == self.said["event_time"]:
            self.clocked = min(self.sealed, self.clocked + count)

    def check(self) -> None:
        flow, declaration = self.flow, self.flow.declaration
        assert {name: getattr(declaration, name) for name in self.said} == self.said
        assert flow.version == self.version
        assert flow.batches.clocked_through == self.clocked
        assert {one.name for one in flow.consumers.all()} == {*self.said["consumers"]}
        expiry_ms = self.said["consumer_expiry_ms"]
        for later_ms in (0, 10, 40, 90):
            now_ms = self.cluster.now_ms + later_ms
            is_over = bool(expiry_ms) and now_ms - self.altered_ms >= expiry_ms
            due = {one for one in self.said["consumers"] if is_over and not (self.kind == "stream" and one == "rows")}
            assert {*overdue_consumers(self.cluster.machine, flow, now_ms)} == due


@pytest.mark.parametrize("kind", ["resident", "stream"])
@pytest.mark.parametrize("seed", range(6))
def test_a_change_is_made_once_by_the_version_that_it_was_thought_of_for(seed: int, kind: str) -> None:
    sides = Sides(seed, kind)
    for _ in range(80):
        sides.dice.choices((sides.alter, sides.remove, sides.write, sides.clock), (5, 2, 2, 2))[0]()
        sides.check()
    assert sides.version > 10


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("kind", ["resident", "stream"])
@pytest.mark.parametrize("cursor", range(4))
@pytest.mark.parametrize("place", range(4))
def test_no_batch_of_rows_is_skipped_not_even_one_and_any_other_consumer_may(
    place: int, cursor: int, kind: str, *, required: bool
) -> None:
    sides = Sides(0, kind)
    cluster, name = sides.cluster, sides.name
    if required:
        cluster.done(cluster.alter(name, 2, consumers=["rows"]))
    cluster.fill(3)
    fence, _ = cluster.done(c.StartConsumer(name, "rows", "m", "beginning", 0))
    if cursor:
        cluster.done(c.MoveCursor(name, "rows", cursor, fence, False))
    result = cluster.one(c.StartConsumer(name, "rows", "n", "batch", place + 1))
    if kind == "stream" and required and place > cursor:
        assert isinstance(result, OncegateError)
        assert result.code is Code.CONFLICT
    else:
        assert result[1] == place


@pytest.mark.parametrize("sent", range(1, 7))
def test_a_deletion_is_sent_again_by_its_version_and_no_other_one_is_told_of_it(sent: int) -> None:
    cluster = Cluster()
    for version in (1, 2, 3):
        cluster.done(cluster.alter("f", version, linger_ms=version + 10))
    cluster.fill(2)
    last = cluster.done(c.DeleteFlow("f", 4, True))
    if sent == 4:
        assert cluster.done(c.DeleteFlow("f", sent, True)) == last
    else:
        assert cluster.refused(c.DeleteFlow("f", sent, True)).code is Code.NOT_FOUND


@pytest.mark.parametrize("targets", [("a",), ("a", "b"), ("b", "a"), ("a", "b", "d")])
def test_no_table_is_dropped_that_a_flow_reads_or_writes_whatever_its_place_among_them(
    targets: tuple[str, ...],
) -> None:
    cluster = Cluster()
    for name in ("a", "b", "d"):
        cluster.done(c.DeclareTable(name, "resident", 1 << 20))
    cluster.declare("g", target=targets if len(targets) > 1 else targets[0])
    numbers = {name: table.incarnation for name, table in cluster.machine.tables.items()}
    for name, number in numbers.items():
        command = c.DropTable(name, number, True)
        if name == "t" or name in targets:
            assert cluster.refused(command).code is Code.CONFLICT, name
        else:
            cluster.done(command)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_attached", [False, True])
@pytest.mark.parametrize("is_required", [False, True])
def test_a_stream_table_that_somebody_reads_or_has_to_read_is_dropped_by_force_only(
    *, is_required: bool, is_attached: bool, force: bool
) -> None:
    cluster = Cluster("stream")
    if is_required:
        cluster.done(cluster.alter("t", 1, consumers=["x"]))
    if is_attached:
        cluster.done(c.Attach("t", "x", "n"))
    command = c.DropTable("t", cluster.machine.tables["t"].incarnation, force)
    if (is_required or is_attached) and not force:
        assert cluster.refused(command).code is Code.CONFLICT
    else:
        cluster.done(command)
