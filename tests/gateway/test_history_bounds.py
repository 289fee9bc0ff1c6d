"""What the history of changes keeps, and which numbers it knows the states of, against a model that keeps everything.

The entries are made here, without a machine: transitions of one number and of several, some of which change no row,
and runs. Sizes are counted by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine.rows import ChangeRun, RowChange, StoredRow
from oncegate.gateway.node import change_history
from oncegate.gateway.node.change_history import BLOCKS, ChangeHistory, HistoryExceeded
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import CommitNumber

Sizes: TypeAlias = tuple[int | None, int | None]
"""Of the values before and after a write; None: there is no row."""
CHANGE, JOINED = 250, 130
"""Memory of a change beside its key and values, and of a transition of several numbers, in bytes."""

values = st.none() | st.integers(0, 300)
transitions = st.lists(st.none() | st.tuples(values, values), min_size=1, max_size=4)
runs = st.lists(st.tuples(values, st.integers(0, 300)), min_size=2, max_size=5).map(tuple)
entries = st.lists(st.lists(transitions | runs, max_size=4), max_size=25)


class Entry(NamedTuple):
    """What an entry has changed, and the memory of it."""

    changes: list[RowChange]
    bytes: int


class Kept:
    """A history, and all that it was told."""

    def __init__(self, changes_max: int, bytes_max: int) -> None:
        self.history = ChangeHistory(changes_max, bytes_max)
        self.entries: list[Entry] = []
        self.ends: list[int] = [0]
        """Of each commit number, that of the end of its transition."""

    def record(self, entry: list[list[Sizes | None] | tuple[Sizes, ...]]) -> None:
        """Record transitions, each a list, and runs of single writes, each a tuple."""
        made: list[RowChange | ChangeRun] = []
        each: list[RowChange] = []
        joined: list[tuple[int, int]] = []
        for some in entry:
            first, last = len(self.ends), len(self.ends) + len(some) - 1
            several = type(some) is list and len(some) > 1
            changes = [
                _change(commit, last if several else commit, *sizes)
                for commit, sizes in enumerate(some, first)
                if sizes is not None
            ]
            each += changes
            made += [_run(first, changes)] if type(some) is tuple else changes
            if several and changes:
                joined.append((first, last))
            self.ends += [last if several and changes else commit for commit in range(first, last + 1)]
        self.history.record(made, len(self.ends) - 1, joined)
        if each:
            self.entries.append(Entry(each, sum(map(_bytes, each)) + JOINED * len(joined)))

    @property
    def changes(self) -> list[RowChange]:
        return [change for entry in self.entries for change in entry.changes]

    def check(self) -> None:
        """What is kept are the changes above ``first``, and of whole entries; no more than there may be."""
        history = self.history
        kept = [entry for entry in self.entries if entry.changes[-1][0] > history.first]
        assert history.changes == sum(len(entry.changes) for entry in kept)
        assert history.bytes == sum(entry.bytes for entry in kept)
        assert all(change[0] > history.first for entry in kept for change in entry.changes)
        assert (history.last, self.ends[history.first]) == (len(self.ends) - 1, history.first)
        assert kept[-1:] == self.entries[-1:], "the newest is always there"


def _change(commit: int, until: int, before: int | None, after: int | None) -> RowChange:
    was, now = (None if size is None else StoredRow(commit, bytes(size)) for size in (before, after))
    return commit, until, "t", "k" * (commit % 3 + 1), was, now, ""


def _run(first: int, changes: list[RowChange]) -> ChangeRun:
    _, _, _, keys, before, after, _ = zip(*changes, strict=True)
    size = sum(map(_bytes, changes)) - CHANGE * len(changes)
    return ChangeRun(CommitNumber(first), "t", keys, before, after, size)


def _bytes(change: RowChange) -> int:
    _, _, _, key, before, after, _ = change
    return CHANGE + len(key) + sum(len(row.value) for row in (before, after) if row is not None)


def pages(history: ChangeHistory, commit: int, most: int) -> Iterator[list[RowChange]]:
    while commit < history.last:
        some, reached = history.since(commit, most)
        assert reached > commit
        assert history.end_of(reached) == reached, "no position is inside of what took effect together"
        commit = reached
        yield [*some]


def test_who_asks_for_what_is_gone_is_told_from_where_on_it_is_there_and_what_to_do() -> None:
    history = ChangeHistory(1_000, 2**20, 5)
    for ask in (history.check, history.end_of):
        with pytest.raises(HistoryExceeded) as refused:
            ask(3)
        assert (refused.value.code, refused.value.first) == (Code.RETENTION_EXCEEDED, 5)
        said = str(refused.value)
        assert "above commit 3" in said
        assert "those above 5" in said
        assert "ask another node, or read the rows anew" in said


def test_a_history_keeps_as_many_changes_as_it_may_and_drops_a_64th_of_them_at_once() -> None:
    for changes_max, of_an_entry, at_once in ((64, 1, 1), (100, 1, 2), (6_400, 1, 100), (2**17, 128, 1_024)):
        kept = ChangeHistory(changes_max, 2**40)
        for first in range(1, changes_max + 1, of_an_entry):
            numbers = range(first, first + of_an_entry)
            kept.record([_change(commit, commit, None, 1) for commit in numbers], numbers[-1])
        assert (kept.changes, kept.first) == (changes_max, 0)
        kept.record([_change(changes_max + 1, changes_max + 1, None, 1)], changes_max + 1)
        assert (kept.changes, kept.first) == (changes_max + 1 - at_once, at_once)


@pytest.mark.parametrize("over", [0, 63])
def test_a_history_keeps_as_many_bytes_as_it_may_and_drops_a_64th_of_them_at_once(over: int) -> None:
    each = _bytes(_change(3, 3, None, 100))
    kept = ChangeHistory(10**6, 64 * each + over)
    for at in range(1, 65):
        kept.record([_change(3 * at, 3 * at, None, 100)], 3 * at)
    assert (kept.bytes, kept.first) == (64 * each, 0)
    kept.record([_change(195, 195, None, 100)], 195)
    assert (kept.bytes, kept.first) == (64 * each, 3)


def test_a_run_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is read: all who watch read the same changes."""
    taken: list[int] = []
    each = ChangeRun.each

    def counted(run: ChangeRun) -> list[RowChange]:
        taken.append(run.first)
        return each(run)

    monkeypatch.setattr(ChangeRun, "each", counted)
    history = ChangeHistory(1_000, 2**20)
    made = [_change(commit, commit, None, 1) for commit in range(1, 4)]
    history.record([_run(1, made)], 3)
    found = [history.since(commit, 10)[0] for commit in (0, 0, 1, 2)]
    assert found == [made, made, made[1:], made[2:]]
    assert taken == [1]
    (block,) = history._blocks
    assert block.each() is block.each()


@given(entries, st.integers(1, 40), st.integers(300, 12_000), st.integers(1, 8), st.integers(1, 5))
def test_a_history_keeps_the_newest_entries_and_knows_the_end_of_each_number_that_it_keeps(
    told: list[list[list[Sizes | None] | tuple[Sizes, ...]]],
    changes_max: int,
    bytes_max: int,
    blocks: int,
    most: int,
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(change_history, "BLOCKS", blocks)
        kept = Kept(changes_max, bytes_max)
    for entry in told:
        kept.record(entry)
        kept.check()
    history = kept.history
    numbers = range(history.first, history.last + 1)
    assert [history.end_of(commit) for commit in numbers] == [kept.ends[commit] for commit in numbers]
    for commit in {kept.ends[one] for one in numbers[:: 1 + len(numbers) // 6]}:
        found = [change for page in pages(history, commit, most) for change in page]
        assert found == [change for change in kept.changes if change[0] > commit]
    if history.first:
        with pytest.raises(HistoryExceeded):
            history.end_of(history.first - 1)
    history.reset(history.last + 3)
    assert (history.first, history.last, history.changes, history.bytes) == (len(kept.ends) + 2,) * 2 + (0, 0)
    with pytest.raises(HistoryExceeded):
        history.since(history.first - 1, most)


@pytest.mark.parametrize("of_a_block", [1, 4, 100])
def test_a_number_means_the_end_of_its_transition_wherever_that_meets_the_end_of_a_block(of_a_block: int) -> None:
    """All successions of three transitions of up to three writes, each of which changes a row or none.

    A block holds one of them, two, or all.
    """
    kinds: list[list[Sizes | None]] = [[*one] for size in (1, 2, 3) for one in product((None, (1, 1)), repeat=size)]
    for told in product(kinds, repeat=3):
        kept = Kept(of_a_block * BLOCKS, 2**20)
        for one in told:
            kept.record([one])
        history = kept.history
        assert [history.end_of(commit) for commit in range(history.last + 1)] == kept.ends, told
