"""What takes effect together has one state: no page, no watch and no number in an answer stands inside it.

A model counts commit numbers and keeps the rows at the end of each transition: a single write, all of a transaction,
all that ends with the sessions of one command, all of a cascade's part. Every page at every number is held against it,
at a node that was there from the beginning, at one that started later, and at one that keeps little.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.answers import answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Cascaded
from oncegate.gateway.node.change_history import ChangeHistory, HistoryExceeded
from oncegate.gateway.node.scans import KeyRange, page
from oncegate.gateway.node.watching import Watcher, WatchersMax, Watching
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.rule import Applied
from tests.gateway import watched_rows
from tests.gateway.test_cascades import COUNT, PUT, cascading, part

KEYS = ("a", "b", "c", "d")
LEASE_MS = 5_000
Rows = dict[str, bytes]
T = TypeVar("T")

places = st.tuples(st.sampled_from(("t", "t", "u", "s")), st.sampled_from(KEYS))
writes = st.tuples(st.sampled_from(("put", "put", "hold", "delete", "get")), places)
steps = st.one_of(
    st.tuples(st.just("singles"), st.lists(writes, min_size=1, max_size=3)),
    st.tuples(st.just("transaction"), st.lists(writes, min_size=1, max_size=5)),
    st.tuples(st.just("refused"), st.just([])),
    st.tuples(st.just("close"), st.just([])),
    st.tuples(st.just("reap"), st.just([])),
)
histories = st.lists(st.tuples(st.integers(0, 1), steps), max_size=14)


MANY = WatchersMax(10**6, 10**6)


class Told:
    """A machine, the histories of three nodes, and what a model says that the rows of table t are at each number."""

    def __init__(self, starts: int) -> None:
        self.machine, self.now, self.index, self.nonces = Machine(), 0, 0, 0
        self.whole, self.small = (Watching(ChangeHistory(most, 2**20), MANY) for most in (10_000, 64))
        self.late: Watching | None = None
        self.starts = starts
        self.rows: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.states: list[Rows] = [{}]
        self.ends: list[int] = [0]
        """Of each commit number, that of the end of its transition."""
        self.changed: list[tuple[int, str, bytes | None]] = []
        self.sessions, self.numbers = [0, 0], dict[int, int]()
        declared = [c.DeclareTable("t", "resident", 1 << 20), c.DeclareTable("u", "resident", 1 << 20)]
        self.do(*declared, c.DeclareTable("s", "stream", 1 << 20))
        for who in (0, 1):
            self.open(who)

    def do(self, *commands: c.Command) -> list[Any]:
        self.index += 1
        done = apply(self.machine, self.index, 1, c.encode_entry(ClusterTimeMs(self.now), list(commands)))
        for node in (self.whole, self.small, self.late):
            if node is not None:
                node.history.record(self.machine.changes, self.machine.commit, self.machine.joined)
                node.tell(self.machine.changes)
        if self.index == self.starts:
            self.late = Watching(ChangeHistory(10_000, 2**20, self.machine.commit), MANY)
        return done

    def open(self, who: int) -> None:
        self.nonces += 1
        self.sessions[who] = int(self.do(c.OpenSession(f"n{self.nonces}", LEASE_MS, 4096))[0].client_id)
        self.numbers[self.sessions[who]] = 0

    def write(self, client: int, what: str, place: tuple[str, str], commit: int) -> None:
        if what == "get" or place[0] == "s":
            return
        was = self.rows.pop(place, None)
        if what != "delete":
            self.rows[place] = b"%d" % commit, client if what == "hold" else 0
        if place[0] == "t" and (was or what != "delete"):
            self.changed.append((commit, place[1], None if what == "delete" else b"%d" % commit))

    def end(self, first: int) -> None:
        """Note that the numbers from ``first`` on are one transition, which has just ended."""
        last = int(self.machine.commit)
        state = {key: value for (table, key), (value, _) in self.rows.items() if table == "t"}
        self.states += [state] * (last - first + 1)
        self.ends += [last] * (last - first + 1)

    def op(self, client: int, what: str, place: tuple[str, str], commit: int) -> c.Op:
        self.numbers[client] += 1
        stream = place[0] == "s"
        kind = c.OpKind.PUT if what == "hold" or (stream and what == "get") else c.OpKind[what.upper()]
        value = b"%d" % commit if kind is c.OpKind.PUT else None
        bound = what == "hold" and not stream
        return c.Op(
            SequenceNumber(self.numbers[client]), kind, *place, Fingerprint(0), value, options=c.Options(bound=bound)
        )

    def step(self, who: int, what: str, asked: list[tuple[str, tuple[str, str]]]) -> None:
        client, first = self.sessions[who], int(self.machine.commit) + 1
        if what == "close":
            self.do(c.CloseSession(client, 1))
            self.gone([client], first)
            self.open(who)
        elif what == "reap":
            self.now += LEASE_MS + 1
            self.do(c.Reap(self.sessions))
            self.gone(self.sessions, first)
            for one in (0, 1):
                self.open(one)
        elif what == "refused":
            op = self.op(client, "put", ("t", "a"), 0)
            absent = c.Condition("t", "a", c.Test.VERSION, 999_999)
            self.transact(client, c.Transaction(op.sequence, Fingerprint(0), [absent], [op, op]))
            self.end(first)
        elif what == "transaction":
            ops = [self.op(client, *one, first + at) for at, one in enumerate(asked)]
            self.transact(client, c.Transaction(ops[-1].sequence, Fingerprint(0), [], ops))
            for at, one in enumerate(asked):
                self.write(client, *one, first + at)
            self.end(first)
        else:
            ops = [self.op(client, *one, first + at) for at, one in enumerate(asked)]
            (done,) = self.do(c.Operate(client, 1, 1, ops))
            assert self.machine.commit == first + len(ops) - 1, done
            for at, one in enumerate(asked):
                self.write(client, *one, first + at)
                state = {key: value for (table, key), (value, _) in self.rows.items() if table == "t"}
                self.states.append(state)
                self.ends.append(first + at)

    def transact(self, client: int, transaction: c.Transaction) -> None:
        (done,) = self.do(c.Operate(client, 1, 1, [transaction]))
        assert isinstance(done.verdicts[0], Applied), done

    def gone(self, clients: list[int], first: int) -> None:
        ended = {at for at, (_, owner) in self.rows.items() if owner in clients}
        for change in self.machine.changes:
            if change[2] == "t":
                self.changed.append((change[0], change[3], None))  # type: ignore[arg-type]
        self.rows = {at: row for at, row in self.rows.items() if at not in ended}
        assert self.machine.commit - first + 1 == len(ended)
        self.end(first)

    def nodes(self) -> Iterator[Watching]:
        yield from (node for node in (self.whole, self.small, self.late) if node is not None)


def at_once(asked: Coroutine[Any, Any, T]) -> T:
    """Run what gives way and waits for nothing; a loop for each page would cost more than the page."""
    try:
        while True:
            asked.send(None)
    except StopIteration as done:
        found: T = done.value
        return found


def page_of(told: Told, node: Watching, commit: int) -> tuple[Rows, int]:
    """Return the rows of table t at a number, a row a page, and the number that the pages name."""
    rest: KeyRange | None = KeyRange("", None)
    rows: Rows = {}
    while rest is not None:
        found = at_once(page(told.machine, node.history, "t", rest, commit, 1, 2**20))
        rows |= {key: row.value for key, row in found.rows}
        commit, rest = found.commit, found.rest
    return rows, commit


def taken(watcher: Watcher) -> list[watched_rows.Told]:
    found = watched_rows.told(watcher.take())
    while watcher.has_more:
        found += watched_rows.told(watcher.take())
    return found


@given(histories, st.integers(5, 12))
def test_every_page_at_every_number_is_the_state_at_a_transitions_end(
    history: list[tuple[int, tuple[str, Any]]], starts: int
) -> None:
    told = Told(starts)
    for who, (what, asked) in history:
        told.step(who, what, asked)
    last = int(told.machine.commit)
    assert len(told.states) == len(told.ends) == last + 1
    for node in told.nodes():
        for commit in range(last + 1):
            if commit < node.history.first:
                with pytest.raises(HistoryExceeded):
                    page_of(told, node, commit)
                continue
            rows, named = page_of(told, node, commit)
            assert rows == told.states[commit]
            # Where nothing of table t or u has changed, every number of a transition has the same state.
            assert told.states[named] == told.states[commit]
            assert named in (commit, told.ends[commit])
            watcher = node.open("t", "", commit, "", exact=False)
            changes = taken(watcher)
            node.close(watcher)
            expected = [one for one in told.changed if one[0] > told.ends[commit]]
            seen = [(commit, key, value) for commit, _, key, value in changes]
            assert sorted(seen, key=lambda one: one[0]) == sorted(expected, key=lambda one: one[0])
            assert [one[1] for one in changes] == [told.ends[one[0]] for one in changes], "an event's number is an end"


@given(histories)
def test_at_no_number_is_there_a_row_whose_session_is_gone(history: list[tuple[int, tuple[str, Any]]]) -> None:
    told = Told(0)
    gone_at: dict[int, int] = {}
    for who, (what, asked) in history:
        clients, first = list(told.sessions), int(told.machine.commit) + 1
        told.step(who, what, asked)
        gone_at |= {client: first for client in clients if client not in told.sessions}
    for commit in range(told.machine.commit + 1):
        found = at_once(page(told.machine, told.whole.history, "t", KeyRange("", None), commit, 100, 2**20))
        for key, row in found.rows:
            assert not row.owner or gone_at.get(row.owner, commit + 1) > commit, (key, commit)


def test_a_cascades_part_is_one_transition_under_the_number_of_its_last_write() -> None:
    cluster, fence = cascading()
    machine = cluster.machine
    history = ChangeHistory(1_000, 2**20, machine.commit)
    before = machine.commit
    command = part(1, 1, fence, COUNT, PUT, COUNT)
    done = cluster.done(command)
    assert done == Cascaded(0, before + 1, 3, replayed=False)
    assert answer(command, done, machine).body.commit == before + 3
    history.record(machine.changes, machine.commit, machine.joined)
    for commit in (before + 1, before + 2, before + 3):
        found = at_once(page(machine, history, "counts", KeyRange("", None), commit, 10, 2**20))
        assert ([(key, row.value) for key, row in found.rows], found.commit) == ([("n", b"4")], before + 3)
    assert [one[:2] for one in history.since(before, 10)[0]] == [(before + 1, before + 3), (before + 3, before + 3)]


def test_a_node_that_keeps_little_forgets_no_transition_in_the_middle() -> None:
    """[put, get]: the last number has no change of its own, and the block that has the put goes as a whole."""
    history = ChangeHistory(64, 2**20)
    told = Told(0)
    for _ in range(300):
        told.step(0, "transaction", [("get", ("t", "a")), ("put", ("t", "a")), ("get", ("t", "b"))])
        history.record(told.machine.changes, told.machine.commit, told.machine.joined)
        assert history.first == told.ends[history.first]
        assert history.end_of(history.first) == history.first
    assert history.first > 0
    assert [history.end_of(commit) for commit in range(history.first, history.last + 1)] == told.ends[history.first :]
