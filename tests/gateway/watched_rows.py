"""Rows that change and are watched: a machine, its history, and a model that keeps everything."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pytest
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ordering
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import RowChange
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.gateway.node.watching import WatchersMax, Watching

TABLES = ("t", "u")
Told: TypeAlias = tuple[int, int, str, bytes | None]
"""A change as a watch tells it: its commit number, that of its event, key, value."""


class Rows:
    """A machine with two tables, its history, and every state it was in."""

    def __init__(self, changes_max: int = 1000, bytes_max: int = 2**20) -> None:
        self.machine = Machine()
        self.watching = Watching(ChangeHistory(changes_max, bytes_max), WatchersMax(100, 100))
        self.states: dict[int, dict[str, bytes]] = {0: {}}
        self.changes: list[tuple[int, str, str, bytes | None]] = []
        self.untils: list[int] = []
        """Of each change, the commit number of the last that took effect together with it."""
        self.sequence = 0
        self.apply(*(c.DeclareTable(table, "resident", 1 << 30) for table in TABLES), c.OpenSession("n", 60_000, 512))

    def apply(self, *commands: c.Command) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ordering, "RUN_MIN", 2)
            apply(self.machine, 1, 1, c.encode_entry(0, [ordering.in_columns(command) for command in commands]))
        self.watching.history.record(self.machine.changes, self.machine.commit, self.machine.joined)
        self.watching.tell(self.machine.changes)

    def write(self, *ops: tuple[str, str, int | None], together: bool = False) -> None:
        """Put (table, key, value), or delete with None, in one entry; ``together``: as a transaction."""
        made: list[c.Op] = []
        for table, key, value in ops:
            self.sequence += 1
            kind = c.OpKind.DELETE if value is None else c.OpKind.PUT
            text = None if value is None else b"%d" % value
            made.append(c.Op(self.sequence, kind, table, key, 0, text))
        before = self.machine.commit
        if together:
            self.apply(c.Operate(1, 1, self.sequence, [c.Transaction(self.sequence, 0, [], made)]))
        elif made:
            plain = [c.Op(one.sequence, one.kind, one.table, one.key, 0, one.value) for one in made]
            self.apply(c.Operate(1, 1, made[0].sequence, plain))
        assert self.machine.commit == before + len(ops)
        begun = len(self.changes)
        for commit, (table, key, value) in enumerate(ops, before + 1):
            state = dict(self.states[commit - 1])
            if value is None:
                if state.pop(f"{table}/{key}", None) is not None:
                    self.changes.append((commit, table, key, None))
            else:
                state[f"{table}/{key}"] = b"%d" % value
                self.changes.append((commit, table, key, b"%d" % value))
            self.states[commit] = state
        for change in self.changes[begun:]:
            self.untils.append(self.machine.commit if together else change[0])  # of writes that change nothing, too


OPS = st.tuples(
    st.sampled_from(TABLES), st.sampled_from(["a", "ab", "abc", "b", "ba", "c"]), st.none() | st.integers(0)
)
ENTRIES = st.lists(st.lists(OPS, min_size=1, max_size=4), max_size=25)


def simplified(changes: list[RowChange]) -> list[tuple[int, str, str, bytes | None]]:
    return [
        (commit, table, key, None if after is None else after.value) for commit, _, table, key, _, after, _ in changes
    ]


class _Row(msgspec.Struct):
    key: str
    commit: int
    value: msgspec.Raw = msgspec.Raw()
    deleted: bool = False


class _Event(msgspec.Struct):
    commit: int
    changes: list[_Row]


def told(events: bytes) -> list[Told]:
    """Return the changes that events of a watch tell."""
    found: list[Told] = []
    *whole, rest = events.split(b"\n\n")
    assert not rest
    for text in whole:
        number, name, data = text.split(b"\n")
        assert name == b"event: changes"
        event = msgspec.json.decode(data.removeprefix(b"data: "), type=_Event)
        assert number == b"id: %d" % event.commit
        assert event.changes
        for row in event.changes:
            assert row.deleted is (not bytes(row.value))
            found.append((row.commit, event.commit, row.key, None if row.deleted else bytes(row.value)))
    return found
