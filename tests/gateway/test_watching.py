"""Watches of a busy table: what a change costs, whose turn it is, and that nobody is told less, more or otherwise."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.answer_values import encoding_of
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.rows import RowChange, StoredRow
from oncegate.gateway.node import change_events, turns, watching
from oncegate.gateway.node.change_events import ChangeEvents
from oncegate.gateway.node.change_history import ChangeHistory, HistoryExceeded
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.node.turns import Turns, released
from oncegate.gateway.node.watching import Watcher, WatchersMax, Watching
from oncegate.gateway.testing.state import SharedState
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.watched_rows import OPS, Rows, Told, told

FILTERS = [("", False), ("a", False), ("ab", False), ("ab", True), ("b", True), ("z", False)]


class Reader:
    """A watch as a route reads it: it takes, writes, waits; while ``open`` is not set its client reads nothing."""

    def __init__(self, rows: Rows, text: str, position: int, *, exact: bool) -> None:
        self.text, self.exact = text, exact
        self.watcher = rows.watching.open("t", text, position, "", exact=exact)
        self.began = self.watcher.position
        """The end of the transition that the position is in."""
        assert position <= self.began <= max(position, rows.machine.commit)
        self.told: list[Told] = []
        self.takes = 0
        self.gone: HistoryExceeded | None = None
        self.open = asyncio.Event()
        self.open.set()
        self._rows = rows
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            while True:
                self.takes += 1
                self.told += told(self.watcher.take())
                await self.open.wait()
                await self.watcher.wait()
        except HistoryExceeded as gone:
            self.gone = gone

    def matches(self, key: str) -> bool:
        return key == self.text if self.exact else key.startswith(self.text)

    @property
    def expected(self) -> list[Told]:
        """What the model has for it, from where it began on."""
        return [
            (commit, until, key, value)
            for (commit, table, key, value), until in zip(self._rows.changes, self._rows.untils, strict=True)
            if commit > self.began and table == "t" and self.matches(key)
        ]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._rows.watching.close(self.watcher)


async def settled(readers: list[Reader]) -> None:
    """Wait until nobody has a turn to come."""
    async with asyncio.timeout(60):
        while any(reader.watcher.has_more and reader.open.is_set() and reader.gone is None for reader in readers):
            await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)


WRITES = st.lists(OPS | st.tuples(st.just("t"), st.sampled_from(["a", "ab"]), st.integers(0)), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITES, st.booleans()),
        st.tuples(st.just("write"), WRITES, st.booleans()),
        st.tuples(st.just("open"), st.sampled_from(FILTERS), st.floats(0, 1)),
        st.tuples(st.sampled_from(["pause", "resume", "wake", "close"]), st.integers(0, 7), st.none()),
        st.tuples(st.just("turn"), st.integers(1, 6), st.none()),
    ),
    min_size=15,
    max_size=40,
)


@given(STEPS, st.data())
def test_every_watch_is_told_exactly_its_changes_however_it_pauses(steps: list[Any], data: st.DataObject) -> None:
    """In commit order, each once, what took effect together in one event; or that the history is over, at a change."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watching, "PENDING_MAX", data.draw(st.integers(1, 5)))
        patched.setattr(watching, "SLICE_CHANGES", data.draw(st.integers(1, 5)))
        patched.setattr(turns, "SLICE_TURNS_MAX", data.draw(st.integers(1, 3)))
        patched.setattr(change_events, "PIECE_BYTES_MAX", data.draw(st.sampled_from([1, 200, 10**6])))
        asyncio.run(_told_of(steps, Rows(changes_max=data.draw(st.sampled_from([8, 1000])))))


async def _told_of(steps: list[Any], rows: Rows) -> None:
    closed = list[Reader]()
    readers = [Reader(rows, text, 0, exact=exact) for text, exact in FILTERS[:4]]
    rows.watching.history._block_changes = 2
    for kind, what, how in steps:
        which = readers[what % len(readers)] if kind in ("pause", "resume", "wake", "close") and readers else None
        match kind:
            case "write":
                rows.write(*what, together=how)
            case "open":
                first = rows.watching.history.first
                position = first + round(how * (rows.machine.commit - first))
                readers.append(Reader(rows, what[0], position, exact=what[1]))
            case "turn":
                for _ in range(what):
                    await asyncio.sleep(0)
            case "pause" if which is not None:
                which.open.clear()
            case "resume" if which is not None:
                which.open.set()
            case "wake" if which is not None:
                which.watcher.wake()
            case "close" if which is not None:
                readers.remove(which)
                closed.append(which)
                await which.close()
    for reader in readers:
        reader.open.set()
    await settled(readers)
    for reader in readers:
        if reader.gone is None:
            assert reader.told == reader.expected
        await reader.close()
    for reader in (*readers, *closed):
        assert reader.told == reader.expected[: len(reader.told)]
        later = reader.expected[len(reader.told) :]
        assert not reader.told or not later or reader.told[-1][1] != later[0][1], "a transaction is told as a whole"
    assert (rows.watching.watchers, rows.watching._tables, rows.watching._of_tenant) == (0, {}, {})


@given(st.lists(st.tuples(st.text(max_size=5), st.sampled_from([b"1", b'"\xc3\xa9"', b' "AAE="', None]))), st.data())
def test_events_are_those_of_the_contract(rows: list[tuple[str, bytes | None]], data: st.DataObject) -> None:
    changes: list[RowChange] = []
    for commit, (key, value) in enumerate(rows, 1):
        row = None if value is None else StoredRow(commit, value)
        changes.append((commit, commit, "t", key, None, row, data.draw(st.sampled_from(["", "ttl"]))))
    cut = data.draw(st.integers(0, len(changes)))
    changes[cut:] = [(one[0], len(changes), *one[2:]) for one in changes[cut:]]
    wanted = b""
    for until, together in groupby(changes, lambda one: one[1]):
        event = wire.RowChanges(until, [])
        for commit, _, _, key, _, after, cause in together:
            if after is None:
                event.changes.append(wire.ChangedRow(key, commit, deleted=True, cause=cause))
            else:
                value, encoding = msgspec.Raw(after.value), encoding_of(after.value)
                event.changes.append(wire.ChangedRow(key, commit, value=value, cause=cause, encoding=encoding))
        wanted += b"id: %d\nevent: changes\ndata: %s\n\n" % (until, msgspec.json.encode(event))
    for events in (ChangeEvents(2**20), ChangeEvents(0)):
        assert events.of(changes, 10**6) == (wanted, 10**6)
        assert events.of(changes, 10**6) == (wanted, 10**6), "the second time it is kept"


def test_encoded_changes_are_bounded() -> None:
    events = ChangeEvents(10_000)
    for commit in range(1, 1000):
        events.of([(commit, commit, "t", "k", None, StoredRow(commit, b"1" * (commit % 700)), "")], commit)
        assert events.bytes == sum(len(text) + change_events.KEPT_BYTES for text in events._kept.values()) <= 10_000
    assert events._kept
    events.of([(1000, 1000, "t", "k", None, StoredRow(1000, b"1" * 20_000), "")], 1000)
    assert 1000 not in events._kept
    events.clear()
    assert (events.bytes, events._kept) == (0, {})


async def test_a_change_is_encoded_once_however_many_watch_it_and_whenever_they_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: Counter[int] = Counter()
    encoded = change_events.encoded

    def counting(change: RowChange) -> bytes:
        counted[change[0]] += 1
        return encoded(change)

    monkeypatch.setattr(change_events, "encoded", counting)
    monkeypatch.setattr(watching, "PENDING_MAX", 4)
    rows = Rows()
    rows.write(*[("t", "ab", n) for n in range(8)])
    readers = [Reader(rows, text, 0, exact=exact) for text, exact in FILTERS for _ in range(10)]
    for reader in readers[::3]:
        reader.open.clear()
    for n in range(20):
        rows.write(("t", "ab", n), ("t", "abc", n), together=n % 2 == 0)
        await asyncio.sleep(0)
    for reader in readers:
        reader.open.set()
    await settled(readers)
    for reader in readers:
        assert reader.told == reader.expected
        await reader.close()
    assert counted == dict.fromkeys(range(1, rows.machine.commit + 1), 1)


async def test_what_many_watches_of_the_same_rows_are_told_is_one_object() -> None:
    rows = Rows()
    watchers = [rows.watching.open("t", "a", 0, "", exact=False) for _ in range(5)]
    rows.write(("t", "a", 1))
    first, *others = [watcher.take() for watcher in watchers]
    assert told(first) == [(1, 1, "a", b"1")]
    assert all(other is first for other in others)


async def test_others_have_their_turn_between_slices() -> None:
    """Between two slices everything that the loop has to do goes first, as often as the slices come."""
    rows, log = Rows(), list[str]()
    rows.watching._watchers_max = WatchersMax(1000, 1000)
    rows.watching.turns = Turns(lambda: 0.0)  # no time passes: slices have their largest size, and need no rest
    readers = [Reader(rows, "", 0, exact=False) for _ in range(200)]
    await settled(readers)
    take = Watcher.take
    over = False

    def taking(self: Watcher) -> bytes:
        log.append("turn")
        return take(self)

    def other() -> None:
        log.append("other")
        if not over:
            asyncio.get_running_loop().call_soon(other)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Watcher, "take", taking)
        other()
        rows.write(("t", "k", 1))
        await settled(readers)
    over = True
    slices = [len([*together]) for kind, together in groupby(log) if kind == "turn"]
    assert sum(slices) == 200
    assert max(slices) <= turns.SLICE_TURNS_MAX
    for reader in readers:
        assert reader.told == [(1, 1, "k", b"1")]
        await reader.close()


class Clock:
    """Time that the work itself takes, and a loop that has nothing else to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.rested = 0.0
        loop = asyncio.get_running_loop()

        def later(delay: float, call: Any, *args: Any) -> asyncio.Handle:
            self.now += delay
            self.rested += delay
            return loop.call_soon(call, *args)

        monkeypatch.setattr(loop, "call_later", later)

    def crowd(self, count: int, each_s: float) -> Iterator[bool]:
        for _ in range(count):
            asyncio.get_running_loop().call_soon(self._work, each_s)
            yield True

    def _work(self, took_s: float) -> None:
        self.now += took_s


async def given_all(one: Turns) -> None:
    while one._next is not None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("each_s", [1e-5, 1e-4, 1e-3])
async def test_turns_take_their_share_of_the_time_while_entries_are_applied(
    monkeypatch: pytest.MonkeyPatch, each_s: float
) -> None:
    clock = Clock(monkeypatch)
    one, began = Turns(lambda: clock.now), clock.now
    for _ in range(50):
        one.applied()
        one.add(clock.crowd(40, each_s))
        while one._next is not None:
            one.applied()
            await asyncio.sleep(0)
    worked, took = 50 * 40 * each_s, clock.now - began
    slack = turns.BURST_S + turns.SLICE_TURNS_MAX * each_s
    assert worked <= turns.SHARE * took + slack
    assert took == pytest.approx(worked + clock.rested)
    assert worked >= turns.SHARE * (took - turns.SLICE_TURNS_MAX * each_s / turns.SHARE) - slack, "and all of it"


async def test_turns_need_no_rest_where_nothing_is_applied_and_for_the_first_hundred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    one = Turns(lambda: clock.now)
    one.applied()
    one.add(clock.crowd(100, 3e-5))
    await given_all(one)
    assert clock.rested == 0
    clock.now += turns.BUSY_S
    one.add(clock.crowd(10_000, 3e-5))
    await given_all(one)
    assert clock.rested == 0


async def test_a_slice_in_which_the_process_was_stopped_owes_a_short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    one = Turns(lambda: clock.now)
    one.add(clock.crowd(17, 0.0))
    clock.now += 60.0  # stopped, and continued
    one.applied()
    while one._next is not None:
        one.applied()
        await asyncio.sleep(0)
    assert clock.rested <= turns.SLICE_S_MAX / turns.SHARE


async def test_who_has_left_takes_nobodys_turn() -> None:
    loop = asyncio.get_running_loop()
    waiting = [loop.create_future() for _ in range(50)]
    for one in waiting[::2]:
        one.cancel()
    given = Turns()
    given.add(released(waiting))
    await given_all(given)
    assert all(one.done() for one in waiting)


async def test_a_watch_that_is_not_read_costs_a_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not called, nothing is kept for it, and once it reads again it finds each change, once."""
    rows, calls = Rows(changes_max=100_000), Counter[str]()
    begin, add = Watcher.begin, Turns.add

    def beginning(self: Watcher, position: int) -> bool:
        calls["begin"] += 1
        return begin(self, position)

    def adding(self: Turns, crowd: turns.Crowd) -> None:
        calls["add"] += 1
        add(self, crowd)

    readers = [Reader(rows, "", 0, exact=False) for _ in range(50)]
    for reader in readers:
        reader.open.clear()
    await settled(readers)
    rows.write(("t", "k", -1))
    monkeypatch.setattr(Watcher, "begin", beginning)
    monkeypatch.setattr(Turns, "add", adding)
    takes = [reader.takes for reader in readers]
    for n in range(500):
        rows.write(("t", "k", n))
        await asyncio.sleep(0)
    assert not calls
    assert [reader.takes for reader in readers] == takes
    (audience,) = rows.watching._all()
    assert len(audience._changes) <= watching.PENDING_MAX
    for reader in readers:
        reader.open.set()
    await settled(readers)
    assert calls["begin"] < 50 * 20, "they catch up in pieces of many changes"
    for reader in readers:
        assert reader.told == reader.expected
        await reader.close()


async def test_watches_that_wait_are_called_once_for_all_that_changes_until_their_turn_comes() -> None:
    rows = Rows()
    readers = [Reader(rows, "", 0, exact=False) for _ in range(50)]
    await settled(readers)
    before = [reader.takes for reader in readers]
    for n in range(30):
        rows.write(("t", "k", n))
    await settled(readers)
    assert all(reader.takes - earlier <= 2 for reader, earlier in zip(readers, before, strict=True))
    for reader in readers:
        assert len(reader.told) == 30
        await reader.close()


async def test_a_watch_whose_rows_seldom_change_outlives_the_history() -> None:
    """While it waits others' changes push the past out of the history: nothing of its rows was among them."""
    rows = Rows(changes_max=64)
    reader = Reader(rows, "b", 0, exact=True)
    await settled([reader])
    for n in range(300):
        rows.write(("t", "a", n))
    assert rows.watching.history.first > 0
    rows.write(("t", "b", 1))
    for n in range(300):
        rows.write(("t", "a", n))
    await settled([reader])
    assert (reader.gone, reader.told) == (None, [(301, 301, "b", b"1")])
    await reader.close()


async def test_one_that_is_a_few_changes_behind_outlives_the_history_though_others_were_told() -> None:
    rows = Rows(changes_max=64)
    slow, quick = (Reader(rows, "b", 0, exact=True) for _ in range(2))
    slow.open.clear()
    await settled([quick])
    for n in range(3):
        rows.write(("t", "b", n))
        await settled([quick])
    for n in range(300):
        rows.write(("t", "a", n))
    assert rows.watching.history.first > 3
    slow.open.set()
    await settled([slow, quick])
    assert slow.told == quick.told == slow.expected
    assert slow.gone is None
    for reader in (slow, quick):
        await reader.close()


async def test_a_watch_that_is_woken_while_it_writes_looks_again_when_it_is_done() -> None:
    rows = Rows()
    reader = Reader(rows, "", 0, exact=False)
    reader.open.clear()
    await settled([reader])
    reader.watcher.wake()
    assert reader.takes == 1
    reader.open.set()
    async with asyncio.timeout(60):
        while reader.takes == 1:
            await asyncio.sleep(0)
    await settled([reader])
    assert reader.takes == 2, "once"
    await reader.close()


async def test_watch_of_a_prefix_is_told_also_where_another_of_that_length_has_ended() -> None:
    rows = Rows()
    gone, stays = (Reader(rows, text, 0, exact=False) for text in ("a", "b"))
    await gone.close()
    rows.write(("t", "b", 1))
    await settled([stays])
    assert stays.told == stays.expected == [(1, 1, "b", b"1")]
    await stays.close()
    assert not rows.watching._tables


async def test_nobody_is_told_of_a_state_that_another_one_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor who is at the place where one was that was told the last piece: pieces are kept for the next watch."""
    monkeypatch.setattr(change_events, "PIECE_BYTES_MAX", 1)
    rows = Rows()
    rows.write(*(("t", "a", n) for n in range(5)))
    watchers = [rows.watching.open("t", "a", 0, "", exact=True) for _ in range(2)]
    assert told(watchers[0].take()) == [(1, 1, "a", b"0")]
    rows.watching.replaced(9)
    for watcher in watchers:
        with pytest.raises(HistoryExceeded):
            watcher.take()


async def test_a_dropped_table_gives_its_watches_a_turn_and_no_others() -> None:
    rows = Rows()
    dropped, at_work, other = (Reader(rows, "", 0, exact=False) for _ in range(3))
    at_work.open.clear()
    await other.close()
    other.watcher = rows.watching.open("u", "", 0, "", exact=False)
    waiting = asyncio.ensure_future(other.watcher.wait())
    await settled([dropped])
    before = dropped.takes, at_work.takes
    rows.apply(c.DropTable("t", 1, True))
    rows.watching.dropped(rows.machine.tables)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (dropped.takes, at_work.takes) == (before[0] + 1, before[1])
    at_work.open.set()
    async with asyncio.timeout(60):
        while at_work.takes == before[1]:
            await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    for reader in (dropped, at_work):
        await reader.close()


def test_watches_of_a_table_are_bounded_and_leave_room_for_other_tables() -> None:
    many = Watching(ChangeHistory(64, 2**20), WatchersMax(8, 3))
    first = [many.open("t", "", 0, "", exact=False) for _ in range(3)]
    with pytest.raises(OncegateError) as refused:
        many.open("t", "k", 0, "", exact=True)
    assert (refused.value.code, refused.value.retry_after_ms) == (Code.OVERLOADED, watching.RETRY_AFTER_MS)
    others = [many.open(f"u{n % 2}", "", 0, "", exact=False) for n in range(5)]
    with pytest.raises(OncegateError):
        many.open("v", "", 0, "", exact=False)
    many.close(first.pop())
    many.open("t", "", 0, "", exact=False)
    assert many.watchers == len(first) + 1 + len(others)


@given(st.integers(8, 20_000), st.integers(0, 20_000), st.integers(0, 20_000))
def test_watches_leave_connections_to_requests(connections: int, of_all: int, of_a_table: int) -> None:
    settings = Settings(connections_max=connections, watchers_max=of_all, watchers_table_max=of_a_table)
    most = WatchersMax.of(settings)
    assert most.of_a_table <= most.of_all <= min(of_all, 0.75 * connections)
    assert most.of_a_table in (of_a_table, most.of_all)


async def test_watchers_of_a_flow_have_their_turns_in_slices_and_those_that_left_are_forgotten() -> None:
    fake = SharedState()
    fake.declare("s", "stream")
    fake.reads._turns = Turns(lambda: 0.0)
    told = list[int]()

    async def watch(number: int) -> None:
        await fake.reads.next_seal("s", 0)
        told.append(number)

    tasks = [asyncio.ensure_future(watch(number)) for number in range(100)]
    await asyncio.sleep(0)
    for task in tasks[50:]:
        task.cancel()
    await asyncio.sleep(0)
    assert len(fake.reads._seal_waiters["s"]) == 50
    fake.reads.sealed("s")
    for turn in range(3):
        await asyncio.sleep(0)
        assert len(told) <= turns.SLICE_TURNS_MAX * (turn + 1)
    assert len(told) < 50
    await asyncio.gather(*tasks, return_exceptions=True)
    assert told == [*range(50)]
    waiting = asyncio.ensure_future(watch(0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not fake.reads._seal_waiters


@pytest.mark.parametrize("seed", range(4))
async def test_a_watch_that_has_been_told_all_says_so_up_to_the_newest_commit_of_any_table(seed: int) -> None:
    """Its client resumes from there: from an older place, the history may not reach back any more."""
    dice, rows = random.Random(seed), Rows()
    watchers = [rows.watching.open("t", prefix, 0, "", exact=False) for prefix in ("a", "b", "none")]
    for _ in range(60):
        rows.write(*((dice.choice("tu"), dice.choice("ab") + "1", dice.randrange(9)) for _ in range(dice.randrange(4))))
        for watcher in dice.sample(watchers, 2):
            while watcher.has_more:
                watcher.take()
            before = watcher.position
            assert watcher.take() == b""
            assert before <= watcher.position == rows.machine.commit
    for watcher in watchers:
        rows.watching.close(watcher)
