"""What is told of a row against what was done to it: a random log of every command, asked about each of its keys.

The machine says of each entry which rows it has changed, under which commit number. Whoever asks about a row is told of
each of these changes, once, with that number, and of none of another row; whatever else stands in an entry before it.
The search of a node, the question to the others and the order of the timeline are asked in the same way: with fakes.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from oncegate.consensus.errors import ConsensusError
from oncegate.gateway.explain import explainer
from oncegate.gateway.explain.explainer import MENTIONS_MAX, Explainer
from oncegate.gateway.explain.memory import ANSWERED, DUPLICATE, EXECUTED, Attempt, VerdictLog
from oncegate.gateway.explain.search import Mention, Moved, OfKey, Search
from oncegate.gateway.explain.timeline import EVENTS_MAX, Timeline
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Cascaded
from oncegate.gateway.machine.rows import each_change
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.ids import ClientId, Fingerprint, RequestId, SequenceNumber
from tests.gateway.logs import RandomLog

LAST = 120
RESIDENT = ("t", "u", "r", "x")
Row = tuple[str, str]


class Applied:
    """A log, what each entry has changed, and what a node remembers of it."""

    def __init__(self, seed: int) -> None:
        self.log, self.machine, self.verdicts = RandomLog(seed, keys=6), Machine(), VerdictLog()
        self.changed: dict[int, tuple[Row, int]] = {}
        """By commit number the row, and the entry."""
        self.cascades: list[tuple[int, str, bool, int]] = []
        """Entry, key of the first write, whether it was replayed, and the first commit number."""
        self.moved: list[tuple[int, str, str, int]] = []
        for at in range(1, LAST + 1):
            before = self.machine.commit
            entry = self.log.at(at)
            results = apply(self.machine, at, 1, entry)
            self.verdicts.applied(at, before, results)
            for change in each_change(self.machine.changes):
                self.changed[change[0]] = ((change[2], change[3]), at)
            for command, result in zip(c.decode_entry(entry).commands, results, strict=True):
                if isinstance(command, c.Cascade) and isinstance(result, Cascaded):
                    self.cascades.append((at, command.ops[0].key, result.replayed, result.commit))
                moves = isinstance(command, c.MoveCursor) or (isinstance(command, c.Cascade) and command.last)
                if moves and isinstance(command, c.MoveCursor | c.Cascade):
                    self.moved.append((at, command.flow, command.consumer, command.batch))

    def found(self, row: Row) -> list[Mention | Moved]:
        search = Search(OfKey(*row), self.verdicts)
        told = (search.entry(self.log.at(at), at, 1) for at in range(1, LAST + 1))
        return [one for one in chain.from_iterable(told) if one is not None]


def rows(applied: Applied) -> set[Row]:
    keys = [*(f"k{at}" for at in range(6)), *(f"k{at}\N{SNOWMAN}" for at in range(6)), "sum", "list", "n"]
    return {row for row, _ in applied.changed.values()} | {(table, key) for table in (*RESIDENT, "s") for key in keys}


@pytest.mark.parametrize("seed", range(4))
def test_each_change_of_a_row_is_told_once_with_its_number_and_of_no_other_row(seed: int) -> None:
    applied = Applied(seed)
    told: dict[int, tuple[Row, int]] = {}
    for row in sorted(rows(applied)):
        found = applied.found(row)
        for one in found:
            if isinstance(one, Moved):
                continue
            assert (one.table, one.key) == row
            if one.did.what == EXECUTED:
                assert one.did.commit not in told, (row, told[one.did.commit], one)
                told[one.did.commit] = row, one.entry
            if one.did.what == DUPLICATE and one.did.commit in applied.changed:
                assert applied.changed[one.did.commit][1] <= one.entry
        # Whatever is asked for, who has finished which batch when is told.
        assert [(one.entry, one.flow, one.consumer, one.batch) for one in found if isinstance(one, Moved)] == (
            applied.moved
        )
    assert {commit: told.get(commit) for commit in applied.changed} == applied.changed


@pytest.mark.parametrize("seed", range(4))
def test_each_part_of_a_cascade_is_told_as_written_or_as_written_before(seed: int) -> None:
    applied = Applied(seed)
    keys = {key for _, key, _, _ in applied.cascades}
    mentions = (one for key in keys for one in applied.found(("s", key)) if isinstance(one, Mention))
    # A write of a part has no request id.
    written = [one for one in mentions if not one.sequence and one.did.what in (EXECUTED, DUPLICATE)]
    found = [(one.entry, one.key, one.did.what == DUPLICATE, one.did.commit) for one in written]
    assert sorted(found) == sorted(applied.cascades)
    assert {replayed for _, _, replayed, _ in found} == {False, True}


def test_what_is_remembered_of_single_operations_is_bounded_by_them_and_what_is_forgotten_is_not_called_executed() -> (
    None
):
    """An entry of many refused operations weighs as many, and gives room for as many when it goes."""
    dice, verdicts = random.Random(1), VerdictLog(spoken_max=40)
    kept: list[tuple[int, int]] = []
    for at in range(1, 300):
        many = dice.randint(1, 9)
        log = Machine()
        ops = [c.Op(SequenceNumber(n), c.OpKind.DELETE, "t", "k", Fingerprint(0)) for n in range(1, many + 1)]
        entry = c.encode_entry(0, [c.Operate(9, 1, SequenceNumber(1), ops)])
        verdicts.applied(at, 0, apply(log, at, 1, entry))
        kept.append((at, many))
        while sum(size for _, size in kept) > 40:
            kept.pop(0)
        oldest = kept[0][0]
        for index in (oldest - 1, oldest):
            if index:
                known = verdicts.of_operation(index, 0, 0, 0).what.startswith("refused")
                assert known == (index >= oldest), (at, index)


class Nodes:
    """A log, and the other members: each answers with what it remembers, or not."""

    def __init__(self, entries: list[bytes], replies: dict[str, Any]) -> None:
        self.entries, self.replies = entries, replies

    def read_log(self, first: int, bytes_max: int) -> list[tuple[bytes, int, int]]:
        return [(self.entries[at - 1], at, 1) for at in range(first, min(first + 7, len(self.entries) + 1))]

    async def call(self, peer: str, payload: bytes, timeout_s: float) -> bytes:
        reply = self.replies[peer]
        if reply is None:
            raise ConsensusError("gone")
        question = explainer._question.decode(payload[1:])
        attempts = [one for one in reply[0] if one.client_id in question.requests]
        return explainer._encode(explainer.ExplainReply(attempts, *reply[1:]))


def asked(applied: Applied, replies: dict[str, Any], *, leads: bool = False) -> Explainer:
    nodes: Any = Nodes([applied.log.at(at) for at in range(1, LAST + 1)], replies)
    clock: Any = type("Clock", (), {"stamp_ms": lambda *_: applied.machine.time_ms})()
    made = Explainer(nodes, applied.machine, clock, "n1", lambda: leads, lambda: replies)
    made.verdicts = applied.verdicts
    return made


async def test_attempts_of_every_node_are_told_with_the_time_of_the_one_that_leads_and_who_is_silent_is_named() -> None:
    applied = Applied(2)
    row = next(row for row, _ in applied.changed.values() if row[0] == "t")
    mention = next(
        one for one in applied.found(row) if isinstance(one, Mention) and one.sequence and one.request_id.client_id < 9
    )
    client, number = mention.request_id
    other, sleeping = Attempt(5_000, 1, client, number, number, ANSWERED), Attempt(6_000, 2, 77, 1, 1, ANSWERED)
    # Only the one that leads knows what cluster time is now.
    replies = {"n2": ([other, sleeping], 90_000, -1), "n3": ([], 50_000, 1_000), "n4": None}
    node = asked(applied, replies)
    mine = [Attempt(at, 1, client, number, number, ANSWERED) for at in (1, 9_000)]
    for one in mine:
        node.attempts.note(one)
    found = await node.explain(OfKey(*row), lambda _: True)
    attempts = [event for event in found.events if event.what == "attempt"]
    assert [(event.node, event.at_ms) for event in attempts] == [("n1", 1), ("n2", 5_000), ("n1", 9_000)]
    assert found.silent == ["n4"]
    logged = [event for event in found.events if event.what == "log"]
    mentions = [one for one in applied.found(row) if isinstance(one, Mention)]
    assert [(event.index, event.commit) for event in logged] == [(one.entry, one.did.commit) for one in mentions]
    assert [event.at_ms for event in logged] == [49_000 + one.time_ms for one in mentions]
    assert (found.log_from, found.truncated) == (1, False)
    alone = await asked(applied, {}).explain(OfKey(*row), lambda _: True)
    assert {event.at_ms for event in alone.events if event.what == "log"} == {None}
    with pytest.raises(OncegateError):
        await node.explain(OfKey("nowhere", "k"), lambda _: True)


@pytest.mark.parametrize("count", [MENTIONS_MAX - 1, MENTIONS_MAX, MENTIONS_MAX + 1])
async def test_the_newest_attempts_in_the_log_are_told_and_that_there_are_older_ones(count: int) -> None:
    applied = Applied(0)
    machine = applied.machine = Machine()
    applied.verdicts, entries = VerdictLog(), [c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20)])]
    entries += [c.encode_entry(0, [c.EndRows({"t": ["k"]})])] * count
    for at, entry in enumerate(entries, 1):
        apply(machine, at, 1, entry)  # whose verdicts nobody remembers
    node = asked(applied, {})
    node._replica = Nodes(entries, {})  # type: ignore[assignment]
    found = await node.explain(OfKey("t", "k"), lambda _: True)
    assert (len(found.events), found.truncated) == (min(count, MENTIONS_MAX), count > MENTIONS_MAX)
    assert found.events[-1].index == len(entries)


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_told_with_who_has_finished_it_and_when(seed: int) -> None:
    applied = Applied(seed)
    machine, hidden = applied.machine, {0: set[str](), 1: {"f"}}[seed % 2]
    batched = 0
    for row in sorted({row for row, _ in applied.changed.values()}):
        found = applied.found(row)
        mentions = [one for one in found if isinstance(one, Mention)]
        moves = [one for one in found if isinstance(one, Moved)]
        timeline = Timeline(None)
        timeline.add_delivery(machine.flows, mentions, moves, lambda name: name not in hidden)
        events, more = timeline.events()
        assert not more or len(events) == EVENTS_MAX
        told = [(event.flow, event.batch, event.consumer, event.index) for event in events if event.what == "delivery"]
        wanted = set[tuple[str, int, str, int]]()
        for flow in machine.flows.of_table(row[0]):
            name = flow.declaration.name
            commits = [one.did.commit for one in mentions if one.did.what == EXECUTED and one.did.commit]
            for number in {one for commit in commits if (one := flow.batches.of_commit(commit)) is not None}:
                batched += 1
                for consumer in flow.consumers.all():
                    passed = [m for m in moves if (m.flow, m.consumer) == (name, consumer.name) and m.batch >= number]
                    there = consumer.cursor >= number and bool(passed)
                    wanted.add((name, number, consumer.name, passed[0].entry if there else 0))
        assert sorted(told) == sorted(one for one in wanted if one[0] not in hidden)
    assert batched


def test_requests_that_an_attempt_carried_are_named_four_at_most_and_no_neighbour_of_theirs() -> None:
    client = ClientId(3)
    requests = frozenset(RequestId(client, SequenceNumber(n)) for n in (1, 2, 4, 5, 6, 9, 12))
    for first in range(1, 14):
        for last in range(first, 14):
            timeline = Timeline(0)
            timeline.add_attempts("n1", [Attempt(1, 1, client, first, last, ANSWERED)], requests)
            ((event,), _) = timeline.events()
            carried = [str(one) for one in sorted(requests) if first <= one.sequence <= last]
            assert event.request == ", ".join(carried[:4]) + (" …" if len(carried) > 4 else "")
