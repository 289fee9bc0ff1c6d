"""What a node says of its consumers, look by look, against a model that keeps every sample and every line.

Three flows are written, read, altered and deleted, and looked at, on two clocks that the walk moves each for itself:
the node's own, of samples and lines, and cluster time, of retention and expiry.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from oncegate.flows.lag_trend import SAMPLE_MS, Sample, verdict
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.node import consumer_watch
from oncegate.gateway.node.consumer_watch import FULL_SHARE, OVER_MS, REPEAT_MS, ConsumerWatch
from oncegate.rifl.errors import OncegateError
from tests.gateway.test_flow_changes import Cluster

RETENTION_MS = 60_000
EXPIRY_MS = 1_800_000
FLOWS = {"f": "small", "g": "stream", "stream": "stream"}
"""Of which table each is; the last is the own one of a stream table. What is written to ``small`` is soon beyond its
share of the quota, of which only stream tables are short."""


class Walk:
    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.dice, self.caplog = random.Random(seed), caplog
        self.cluster = Cluster()
        self.cluster.done(c.DeleteFlow("f", 1, True))
        self.cluster.done(c.DeclareTable("small", "resident", 1_000))
        self.cluster.done(c.DeclareTable("stream", "stream", 2_000))
        for flow in "fg":
            self.declare(flow)
        self.own_ms = 50_000
        monkeypatch.setattr(consumer_watch.time, "monotonic", lambda: self.own_ms / 1000)
        self.watch = ConsumerWatch(self.cluster.machine, lambda: self.cluster.now_ms)
        self.looked_ms: int | None = None
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        self.warned: dict[str, tuple[list[str], int]] = {}
        self.lines = self.expiries = self.verdicts = 0

    def declare(self, flow: str) -> None:
        consumers = self.dice.choice(((), ("a",), ("a", "b")))
        expiry_ms = self.dice.choice((0, EXPIRY_MS))
        fields = {"retention_ms": RETENTION_MS, "consumers": consumers, "consumer_expiry_ms": expiry_ms}
        self.cluster.declare(flow, FLOWS[flow], self.dice.choice((1, 2, 50)), **fields)

    def flows(self) -> Iterator[tuple[str, Flow]]:
        return ((flow.declaration.name, flow) for flow in self.cluster.machine.flows.all())

    def change(self) -> None:
        cluster, name = self.cluster, self.dice.choice([*FLOWS])
        flow = cluster.machine.flows.find(name)
        if flow is None:
            self.declare(name)
            return
        one = self.dice.choice("abc")
        known = {each.name: each for each in flow.consumers.all()}
        what = self.dice.choice(("write", "write", "write", "attach", "move", "move", "remove", "delete"))
        if what == "write":
            cluster.sequence += 1
            text = b'"%s"' % (b"x" * self.dice.choice((1, 60)))
            key = f"k{cluster.sequence % 5}"
            op = c.Op(cluster.sequence, int(c.OpKind.PUT), FLOWS[name], key, cluster.sequence, text)
            cluster.one(c.Operate(1, 1, cluster.sequence, [op]))
        elif what == "attach":
            cluster.one(c.Attach(name, one, f"n{cluster.at}"))
        elif what == "move" and one in known:
            batch = self.dice.choice((flow.batches.last, known[one].cursor + 1))
            cluster.one(c.MoveCursor(name, one, batch, known[one].fence, False))
        elif what == "remove" and one in known and self.dice.random() < 0.3:
            cluster.one(c.RemoveConsumer(name, one, flow.version))
        elif what == "delete" and name != "stream" and self.dice.random() < 0.2:
            cluster.one(c.DeleteFlow(name, flow.version, True))

    def reasons(self, flow: Flow) -> tuple[bool, bool]:
        """Say whether somebody holds a batch for too long, and whether the flow is near its table's quota."""
        table, batches = FLOWS[flow.declaration.name], flow.batches
        counting = [one for one in flow.consumers.all() if not one.expired]
        required = [one for one in counting if one.required]
        behind = [one for one in required or counting if one.cursor < batches.first]
        over_ms = self.cluster.now_ms - flow.declaration.retention_ms - OVER_MS
        late = len(batches) > 0 and batches.get(batches.first).sealed_ms <= over_ms
        waits = late and bool(behind or not counting)
        quota_bytes = self.cluster.machine.tables[table].quota_bytes
        return waits, table == "stream" and flow.retained_bytes + flow.segment.size_bytes >= FULL_SHARE * quota_bytes

    def said(self) -> list[str]:
        """Return the beginning and what is told of each line that is due, and remember it."""
        lines, there = [], dict(self.flows())
        self.warned = {name: line for name, line in self.warned.items() if name in there}
        for name, flow in there.items():
            waits, fills = self.reasons(flow)
            if not waits and not fills:
                self.warned.pop(name, None)
                continue
            holders = [one.name for one in flow.consumers.slowest()]
            last = self.warned.get(name)
            if last is None or last[0] != holders or self.own_ms >= last[1] + REPEAT_MS:
                self.warned[name] = holders, self.own_ms
                held = flow.retained_bytes + flow.segment.size_bytes
                share = f", {100 * held // 2_000} % of the quota of table stream" if fills else ""
                why = f"batch {flow.batches.first} of flow {name} " if len(flow.batches) else "none of it is sealed"
                lines.append(f"flow {name} holds {held} bytes{share}: {why}")
        return lines

    def overdue(self) -> tuple[str, list[str]] | None:
        for name, flow in self.flows():
            expiry_ms = flow.declaration.consumer_expiry_ms
            names = [
                one.name
                for one in flow.consumers.all()
                if one.required and not one.expired and not one.moved
                and expiry_ms and self.cluster.now_ms - max(one.alive_ms, flow.altered_ms) >= expiry_ms
            ]  # fmt: skip
            if names:
                return name, names
        return None

    def look(self, *, leads: bool) -> None:
        self.caplog.clear()
        found = self.watch.look(leads=leads)
        told = [record.getMessage() for record in self.caplog.records]
        if self.looked_ms is not None and self.own_ms - self.looked_ms < SAMPLE_MS:
            assert (found, told) == (None, []), "it is not time yet"
            return
        self.looked_ms = self.own_ms
        before, self.samples = self.samples, {}
        for name, flow in self.flows():
            for one in flow.consumers.all():
                sample = Sample(self.own_ms, one.cursor, flow.batches.items_after(one.cursor))
                self.samples[name, one.name] = [*before.get((name, one.name), []), sample]
        if not leads:
            assert (found, told) == (None, []), "who does not lead warns of nothing"
            return
        lines, overdue = self.said(), self.overdue()
        assert found == (overdue and overdue[0])
        if overdue is not None:
            name, names = overdue
            lines.append(f"flow {name}: no batch waits any longer for consumer {', '.join(names)}, which has never")
            self.expiries += 1
        assert [line[: len(begins)] for line, begins in zip(told, lines, strict=True)] == lines
        self.lines += len(lines)
        if found is not None and self.dice.random() < 0.7:
            self.cluster.done(c.ExpireConsumers(found))

    def trends(self) -> None:
        for name, flow in self.flows():
            state = self.watch.state(name)
            for one in flow.consumers.all():
                now = Sample(self.own_ms, one.cursor, flow.batches.items_after(one.cursor))
                kept = self.samples.get((name, one.name), [])
                expected = verdict([*kept, now], attached=one.attached)
                assert state.consumers[one.name].trend == expected
                self.verdicts += expected in ("stalled", "falling_behind") and one.attached

    def step(self) -> None:
        for _ in range(self.dice.choice((0, 0, 1, 1, 3))):
            self.change()
        self.own_ms += self.dice.choices((5_000, SAMPLE_MS, 600_000, REPEAT_MS), (4, 24, 1, 1))[0]
        self.cluster.now_ms += self.dice.choices((5_000, SAMPLE_MS, OVER_MS + RETENTION_MS), (4, 20, 4))[0]
        self.look(leads=self.dice.random() < 0.9)
        self.trends()


def test_lines_expiries_and_trends_are_those_of_every_sample_taken_in_its_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = [0, 0, 0]
    for seed in range(6):
        walk = Walk(seed, monkeypatch, caplog)
        for _ in range(400):
            walk.step()
        seen = [a + b for a, b in zip(seen, (walk.lines, walk.expiries, walk.verdicts), strict=True)]
    assert min(seen) >= 5, "all that may be said was said"


def test_a_flow_that_comes_back_is_warned_of_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hour is not that of the one deleted, though the same consumer holds it."""
    walk = Walk(0, monkeypatch, caplog)
    cluster = walk.cluster
    for name, flow in [*walk.flows()]:
        if name != "stream":
            cluster.done(c.DeleteFlow(name, flow.version, True))

    def warned() -> bool:
        cluster.declare("f", consumers=("a",), retention_ms=0)
        cluster.fill(1)
        cluster.now_ms += OVER_MS
        walk.own_ms += SAMPLE_MS
        caplog.clear()
        walk.watch.look(leads=True)
        return "flow f holds" in caplog.text

    assert warned()
    cluster.done(c.DeleteFlow("f", cluster.flow.version, True))
    walk.own_ms += SAMPLE_MS
    walk.watch.look(leads=True)
    assert warned()
    with pytest.raises(OncegateError):
        walk.watch.state("g")
