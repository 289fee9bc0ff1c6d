"""Who waits for rows has a turn exactly when there is a reason, against a model; and what is kept until it reads.

The changes are made here, without a machine, and no time passes: whoever should have a turn has it within a few turns
of the loop, so a lost one is found at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine.rows import RowChange, StoredRow
from oncegate.gateway.node.change_events import KEPT_BYTES, ChangeEvents, encoded
from oncegate.gateway.node.change_history import ChangeHistory, HistoryExceeded
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.node.turns import Turns
from oncegate.gateway.node.watching import Audience, Watcher, WatchersMax, Watching
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.watched_rows import Told, told

MANY = WatchersMax(100, 100)
Row = tuple[str, str, bytes | None]
"""Table, key, value; None: it is deleted."""


class Rows(NamedTuple):
    """Whose changes a watch is told."""

    table: str
    text: str
    exact: bool

    def have(self, change: RowChange) -> bool:
        _, _, table, key, *_ = change
        return table == self.table and (key == self.text if self.exact else key.startswith(self.text))


class Feed:
    """A node's watches, and all that has changed."""

    def __init__(self, most: WatchersMax = MANY, changes_max: int = 10_000, bytes_max: int = 2**24) -> None:
        self.turns = Turns(lambda: 0.0)
        self.watching = Watching(ChangeHistory(changes_max, bytes_max), most, self.turns)
        self.changes: list[RowChange] = []
        self.ends: list[int] = [0]
        """Of each commit number, that of the end of its transition."""

    @property
    def commit(self) -> int:
        return len(self.ends) - 1

    def write(self, *rows: Row, together: bool = False) -> None:
        first, last = self.commit + 1, self.commit + len(rows)
        ends = [last] * len(rows) if together else [*range(first, last + 1)]
        made = [
            (commit, until, table, key, None, None if value is None else StoredRow(commit, value), "")
            for commit, until, (table, key, value) in zip(range(first, last + 1), ends, rows, strict=True)
        ]
        self.ends += ends
        self.changes += made
        self.watching.history.record([*made], last, [(first, last)] if together and len(rows) > 1 else [])
        self.watching.tell([*made])

    def open(self, text: str, position: int = 0, tenant: str = "", *, exact: bool = False) -> Watcher:
        return self.watching.open("t", text, position, tenant, exact=exact)


class Watch:
    """One watch, of the tenant whose name is that of its rows, and what the model knows of it."""

    def __init__(self, feed: Feed, rows: Rows, position: int, known_from: int) -> None:
        self.rows, self._feed, self.known_from = rows, feed, known_from
        """``known_from``: whether these rows have changed is known since then; before, there was nobody."""
        self.watcher = feed.watching.open(*rows[:2], position, rows.text, exact=rows.exact)
        self.told_to = feed.ends[position]
        self.called = self.gone = False
        """``called``: somebody has woken it since its last turn. ``gone``: another state came before it was told."""
        self.waits: asyncio.Task[None] | None = None

    @property
    def untold(self) -> list[Told]:
        own = [change for change in self._feed.changes if change[0] > self.told_to and self.rows.have(change)]
        return [(commit, until, key, after and after.value) for commit, until, _, key, _, after, _ in own]

    def take(self) -> None:
        if self.gone:
            with pytest.raises(HistoryExceeded):
                self.watcher.take()
            return
        found = told(self.watcher.take())
        while self.watcher.has_more:
            position = self.watcher.position
            found += told(self.watcher.take())
            assert self.watcher.position > position, "each piece brings it forward, or it would read without end"
        assert found == self.untold
        self.told_to = self._feed.commit

    def settle(self) -> None:
        """See that its wait has ended exactly if there is a reason."""
        waits = self.waits
        reason = self.called or self.gone or self.told_to < self.known_from or bool(self.untold)
        assert (self.watcher in self.watcher.audience.waiting) is (waits is not None and not reason)
        if waits is None:
            return
        assert waits.done() is reason
        if reason:
            waits.result()
            self.waits, self.called = None, False


async def turned() -> None:
    """Let all that have a turn to come have it: nobody of so few has to wait for a slice."""
    for _ in range(5):
        await asyncio.sleep(0)


async def waiting(*watchers: Watcher) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(one.wait()) for one in watchers]
    await turned()
    return tasks


async def ended(*tasks: asyncio.Task[None]) -> None:
    for one in tasks:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one


FILTERS = [Rows(table, *one) for table in "tu" for one in (("", False), ("a", False), ("b", False), ("ab", True))]
WRITTEN = st.lists(
    st.tuples(st.sampled_from("ttu"), st.sampled_from(["a", "ab", "b", "c"]), st.sampled_from([b"1", b"23", None])),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITTEN, st.booleans()),
        st.tuples(st.just("open"), st.sampled_from(FILTERS), st.floats(0, 1)),
        st.tuples(st.sampled_from(["take", "wait", "wait", "wake", "cancel", "close"]), st.integers(0, 9), st.none()),
        st.tuples(st.just("all wait"), st.booleans(), st.none()),
        st.tuples(st.sampled_from(["wake all", "replaced"]), st.integers(1, 9), st.none()),
        st.tuples(st.just("dropped"), st.sets(st.sampled_from("tu")), st.none()),
    ),
    min_size=8,
    max_size=30,
)
OPENED = st.lists(st.sampled_from(FILTERS), min_size=1, max_size=6)


class Model:
    """The watches of a node under steps, and their state as it has to be."""

    def __init__(self, opened: list[Rows]) -> None:
        self.feed = Feed()
        self.calls: Counter[Rows] = Counter()
        self.watches = [Watch(self.feed, rows, 0, 0) for rows in opened]

    async def run(self, steps: list[Any]) -> None:
        for what, which, how in steps:
            await self.step(what, which, how)
            await turned()
            self.check()
        for one in [*self.watches]:
            await self.close(one)
        assert (self.feed.watching.watchers, self.feed.watching._tables, self.feed.watching._of_tenant) == (0, {}, {})

    async def step(self, what: str, which: Any, how: Any) -> None:
        feed, watches = self.feed, self.watches
        one = watches[which % len(watches)] if isinstance(which, int) and watches else None
        match what:
            case "write":
                feed.write(*which, together=how)
            case "open":
                position = round(how * feed.commit)
                if position < feed.watching.history.first:
                    with pytest.raises(HistoryExceeded):
                        Watch(feed, which, position, feed.commit)
                    return
                known_from = next((each.known_from for each in watches if each.rows == which), feed.commit)
                watches.append(Watch(feed, which, position, known_from))
            case "all wait":
                for each in watches:
                    if which and each.waits is None:
                        each.take()
                    self.wait(each)
            case "wake all":
                self.call(*watches)
                feed.watching.wake_all()
            case "dropped":
                self.call(*(each for each in watches if each.rows.table not in which))
                feed.watching.dropped(which)
            case "replaced":
                feed.ends += [feed.commit + which] * which
                feed.watching.replaced(feed.commit)
                for each in watches:
                    each.gone = True
            case "take" if one is not None and one.waits is None:
                one.take()
            case "wait" if one is not None:
                self.wait(one)
            case "wake" if one is not None:
                one.called = True
                one.watcher.wake()
            case "cancel" if one is not None and one.waits is not None:
                await ended(one.waits)
                one.waits = None
            case "close" if one is not None:
                await self.close(one)

    def wait(self, one: Watch) -> None:
        if one.waits is None:
            one.waits = asyncio.ensure_future(one.watcher.wait())

    def call(self, *watches: Watch) -> None:
        for one in watches:
            one.called = True
        self.calls.update({one.rows for one in watches})

    async def close(self, one: Watch) -> None:
        self.watches.remove(one)
        self.feed.watching.close(one.watcher)
        assert one.watcher not in one.watcher.audience.waiting
        if one.rows not in {other.rows for other in self.watches}:
            del self.calls[one.rows]  # whoever comes next is another audience
        if one.waits is not None:
            await ended(one.waits)

    def check(self) -> None:
        for one in self.watches:
            one.settle()
        assert self.feed.watching.watchers == len(self.watches)
        assert self.feed.watching._of_tenant == Counter(one.rows.text for one in self.watches)
        tables = self.feed.watching._tables
        assert set(tables) == {one.rows.table for one in self.watches}
        belong = Counter(one.rows for one in self.watches)
        audiences = {Rows(one.table, one.text, one.exact): one for one in self.feed.watching._all()}
        assert {rows: one.watchers for rows, one in audiences.items()} == belong
        assert {rows: one.calls for rows, one in audiences.items() if one.calls} == dict(self.calls)
        for table, found in tables.items():
            assert found.watchers == sum(one.rows.table == table for one in self.watches)
            lengths = Counter(len(one.text) for one in belong if one.table == table and not one.exact)
            assert dict(found.lengths) == dict(lengths)
        for rows, audience in audiences.items():
            if all(one.waits is not None for one in self.watches if one.rows == rows):
                assert [*audience.above(0)] == [], "nothing is kept once all were told"


def test_a_watch_that_begins_inside_a_transition_begins_at_its_end() -> None:
    """Wherever in it: what is told of it is all or nothing, and its piece brings the watch forward."""
    feed = Feed()
    feed.write(("t", "a", b"1"), ("t", "a", b"2"))
    feed.write(("t", "a", b"3"), ("t", "a", b"4"), ("t", "a", b"5"), together=True)
    feed.write(("t", "a", b"6"))
    for position, begins in enumerate((0, 1, 2, 5, 5, 5, 6)):
        watcher = feed.open("a", position)
        assert watcher.position == begins
        assert [one[0] for one in told(watcher.take())] == [*range(begins + 1, 7)]
        assert (watcher.position, watcher.has_more) == (6, False)


async def test_every_call_of_all_reaches_also_those_at_work_that_were_woken_before() -> None:
    """However often they were called: none of the calls is taken for one that was answered."""
    feed = Feed()
    first, second = feed.open(""), feed.open("")
    for how in ("all", "one", "one and all", "all and one", "all"):
        if "one" in how:
            first.wake()
            second.wake()
        if "all" in how:
            feed.watching.wake_all()
        tasks = await waiting(first, second)
        assert all(task.done() for task in tasks), how
        tasks = await waiting(first, second)
        assert not any(task.done() for task in tasks), f"{how}, once"
        await ended(*tasks)


async def test_who_waits_and_is_woken_has_a_turn_at_once_and_once_and_no_other_has_one() -> None:
    feed = Feed()
    one, other = feed.open(""), feed.open("")
    woken, still = await waiting(one, other)
    one.wake()
    await turned()
    assert (woken.done(), still.done()) == (True, False)
    assert one.audience.waiting == {other: None}
    woken.result()
    (again,) = await waiting(one)
    assert not again.done()
    feed.watching.wake_all()
    await turned()
    assert again.done()
    assert still.done()
    await asyncio.gather(again, still)


def test_prefixes_of_one_length_come_and_go_each_by_itself() -> None:
    feed = Feed()
    first, second, third = feed.open("a"), feed.open("b"), feed.open("a")
    lengths = feed.watching._tables["t"].lengths
    assert dict(lengths) == {1: 2}
    feed.watching.close(first)
    assert dict(lengths) == {1: 2}, "somebody else is there for the same"
    feed.watching.close(third)
    assert dict(lengths) == {1: 1}
    feed.write(("t", "b", b"1"))
    assert told(second.take()) == [(1, 1, "b", b"1")]
    feed.open("", feed.commit)
    feed.watching.close(second)
    assert dict(lengths) == {0: 1}


async def test_who_does_not_wait_is_given_no_turn() -> None:
    feed = Feed()
    watcher = feed.open("")
    assert watcher.begin(0) is False, "it has never waited"
    (task,) = await waiting(watcher)
    assert watcher.begin(0) is True
    assert watcher.begin(0) is False, "it has its turn"
    await turned()
    assert task.done()
    assert watcher.begin(0) is False
    (task,) = await waiting(watcher)
    await ended(task)
    assert watcher.begin(0) is False, "it has left"
    assert watcher.audience.waiting == {}


async def test_applied_entries_are_noted_for_the_turns_while_somebody_watches() -> None:
    feed, noted = Feed(), list[int]()
    assert feed.watching.turns is feed.turns
    feed.turns.applied = lambda: noted.append(feed.commit)  # type: ignore[method-assign]
    feed.write(("u", "k", b"1"))
    watcher = feed.open("")
    feed.write(("u", "k", b"2"))
    feed.write(("t", "k", b"3"))
    feed.watching.close(watcher)
    feed.write(("t", "k", b"4"))
    assert noted == [2, 3]


async def test_who_waits_for_the_same_is_told_one_object_wherever_it_began() -> None:
    feed = Feed()
    early = feed.open("a")
    await ended(*await waiting(early))
    for _ in range(4):
        feed.write(("t", "b", b"1"))
    late = [feed.open("a", feed.commit) for _ in range(2)]
    tasks = await waiting(early, *late)
    feed.write(("t", "a", b"1"), ("t", "b", b"2"), ("t", "ab", b"3"), together=True)
    await asyncio.gather(*tasks)
    assert {one.position for one in (early, *late)} == {4}
    first, *others = [one.take() for one in (early, *late)]
    assert told(first) == [(5, 7, "a", b"1"), (7, 7, "ab", b"3")]
    assert all(one is first for one in others)


async def test_a_watch_is_told_at_once_all_that_there_is_though_another_was_told_less_from_there() -> None:
    feed = Feed()
    quick, slow = feed.open("a"), feed.open("a")
    feed.write(("t", "a", b"1"))
    assert told(quick.take()) == [(1, 1, "a", b"1")]
    feed.write(("t", "a", b"2"))
    assert told(slow.take()) == [(1, 1, "a", b"1"), (2, 2, "a", b"2")]


def test_what_one_audience_was_told_is_told_no_other() -> None:
    feed = Feed()
    feed.write(("t", "a", b"1"), ("t", "b", b"2"))
    assert told(feed.open("a").take()) == [(1, 1, "a", b"1")]
    assert told(feed.open("b").take()) == [(2, 2, "b", b"2")]


async def test_what_one_that_does_not_read_has_to_come_is_kept_though_others_wait() -> None:
    feed = Feed(changes_max=64)
    quick, slow, other = feed.open("a"), feed.open("a"), feed.open("a")
    feed.write(("t", "a", b"1"))
    for one in (quick, other):
        one.take()
    tasks = await waiting(quick, other)
    assert [one[0] for one in slow.audience.above(0)] == [1]
    for _ in range(100):
        feed.write(("t", "b", b"2"))
    assert feed.watching.history.first > 1
    assert not slow.is_behind
    assert told(slow.take()) == [(1, 1, "a", b"1")]
    tasks += await waiting(slow)
    assert [*slow.audience.above(0)] == [], "all were told"
    await ended(*tasks)


def test_what_is_kept_for_a_watch_from_where_it_began_outlives_the_history() -> None:
    feed = Feed(changes_max=64)
    watcher = feed.open("a")
    feed.write(("t", "a", b"1"))
    for _ in range(100):
        feed.write(("t", "b", b"2"))
    assert feed.watching.history.first > watcher.position == watcher.audience.since
    assert told(watcher.take()) == [(1, 1, "a", b"1")]


def kept(audience: Audience) -> list[int]:
    return [one[0] for one in audience.above(0)]


def test_an_audience_keeps_64_changes_and_64_kib_of_values() -> None:
    """With one change more, or one byte, none of them; one change is kept, however large."""
    feed = Feed()
    watcher = feed.open("")
    for _ in range(3):  # what was counted of those that are gone counts no more
        first = feed.commit + 1
        feed.write(*[("t", "k", None)] * 64)
        assert kept(watcher.audience) == [*range(first, first + 64)]
        feed.write(("t", "k", None))
        assert kept(watcher.audience) == []
    for size in (1, 32 * 1024, 64 * 1024 - 1):
        first = feed.commit + 1
        feed.write(("t", "k", bytes(64 * 1024 - size)), ("t", "k", None), ("t", "k", bytes(size)))
        assert kept(watcher.audience) == [first, first + 1, first + 2]
        feed.write(("t", "k", b"1"))
        assert kept(watcher.audience) == []
    feed.write(("t", "k", bytes(64 * 1024 + 1)))
    assert kept(watcher.audience) == [feed.commit]
    feed.write(("t", "k", None))
    assert kept(watcher.audience) == []


async def test_nothing_is_kept_of_a_transaction_that_is_too_large_and_all_of_it_is_told() -> None:
    feed = Feed()
    watcher = feed.open("a")
    (task,) = await waiting(watcher)
    feed.write(*[("t", "a", b"%d" % value) for value in range(66)], together=True)
    await task
    assert kept(watcher.audience) == []
    assert watcher.is_behind
    found = told(watcher.take())
    assert [one[:2] for one in found] == [(commit, 66) for commit in range(1, 67)]


def test_a_watch_that_is_behind_looks_at_a_thousand_changes_in_a_turn() -> None:
    feed = Feed(changes_max=2**20)
    feed.write(*[("t", "a", None)] * 1_100)
    watcher = feed.open("b")
    assert (watcher.take(), watcher.position, watcher.has_more) == (b"", 1_000, True)
    assert (watcher.take(), watcher.position, watcher.has_more) == (b"", 1_100, False)


@pytest.mark.parametrize("over", [0, 1])
def test_encoded_changes_may_have_a_quarter_of_what_the_history_may_have(over: int) -> None:
    feed = Feed(bytes_max=2**12)
    watcher = feed.open("k")
    fixed = KEPT_BYTES + len(encoded((1, 1, "t", "k", None, StoredRow(1, b"1"), ""))) - 1
    feed.write(("t", "k", b"1" * (2**10 - fixed + over)))
    watcher.take()
    assert feed.watching.events.bytes == (0 if over else 2**10)


@given(st.lists(st.integers(1, 900), max_size=30), st.integers(KEPT_BYTES, 2_000))
def test_encoded_changes_that_are_kept_are_the_newest_that_have_room(sizes: list[int], bytes_max: int) -> None:
    events, kept = ChangeEvents(bytes_max), dict[int, int]()
    for commit, size in enumerate(sizes, 1):
        change = (commit, commit, "t", "k", None, StoredRow(commit, b"1" * size), "")
        text, _ = events.of([change], commit)
        assert text == ChangeEvents(0).of([change], commit)[0]
        if len(encoded(change)) + KEPT_BYTES <= bytes_max:
            kept[commit] = len(encoded(change)) + KEPT_BYTES
        while sum(kept.values()) > bytes_max:
            del kept[min(kept)]
        assert events.bytes == sum(kept.values())


def test_nothing_that_was_encoded_of_one_state_is_told_of_another() -> None:
    feed = Feed()
    watcher = feed.open("k")
    feed.write(("t", "k", b"1"))
    assert told(watcher.take()) == [(1, 1, "k", b"1")]
    feed.watching.close(watcher)
    feed.watching.replaced(0)
    watcher = feed.open("k")
    change = (1, 1, "t", "k", None, StoredRow(1, b"2"), "")
    feed.watching.history.record([change], 1)
    feed.watching.tell([change])
    assert told(watcher.take()) == [(1, 1, "k", b"2")]


def test_a_table_has_as_many_watches_as_it_may_and_who_has_no_token_all_that_are_left() -> None:
    feed = Feed(WatchersMax(4, 3))
    for _ in range(3):
        feed.open("")
    with pytest.raises(OncegateError) as refused:
        feed.open("k", exact=True)
    assert (refused.value.code, refused.value.retry_after_ms) == (Code.OVERLOADED, 1_000)
    feed.watching.open("u", "", 0, "", exact=False)
    with pytest.raises(OncegateError) as refused:
        feed.watching.open("v", "", 0, "", exact=False)
    assert (refused.value.code, refused.value.retry_after_ms) == (Code.OVERLOADED, 1_000)
    assert feed.watching.watchers == 4
    least = Feed(WatchersMax(4, 1))
    assert least.open("").position == 0


@pytest.mark.parametrize(
    ("connections", "of_all", "of_a_table", "expected"),
    [
        (1_000, 900, 800, (750, 750)),
        (1_000, 900, 700, (750, 700)),
        (1_000, 700, 800, (700, 700)),
        (1_000, 700, 600, (700, 600)),
        (9, 700, 600, (6, 6)),
        (1_000, 0, 600, (0, 0)),
    ],
)
def test_watches_have_three_quarters_of_the_connections_at_most(
    connections: int, of_all: int, of_a_table: int, expected: tuple[int, int]
) -> None:
    settings = Settings(connections_max=connections, watchers_max=of_all, watchers_table_max=of_a_table)
    assert WatchersMax.of(settings) == expected


@given(OPENED, STEPS)
def test_a_wait_ends_exactly_if_there_is_something_to_tell_or_the_watch_was_called(
    opened: list[Rows], steps: list[Any]
) -> None:
    async def run() -> None:
        await Model(opened).run(steps)

    asyncio.run(run())
