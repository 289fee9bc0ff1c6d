"""What the commands of an entry name is read ahead of them: all of it, in order, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import look_ahead
from oncegate.gateway.machine.rows import DictRows
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from oncegate.rifl.key_records import MemoryKeys
from oncegate.rifl.key_table import NO_TIME, KeyTable

ONE, PRINT = SequenceNumber(1), Fingerprint(0)
Place = tuple[str, str]
Told = tuple[c.Command, Sequence[Place], Sequence[str]]
"""A command, the rows that it writes or reads one by one, and the names of its keys."""
places = st.tuples(st.sampled_from(["t", "u", "s", "nowhere"]), st.sampled_from("abc"))


def op(place: Place) -> c.Op:
    return c.Op(ONE, int(c.OpKind.GET), *place, PRINT)


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[c.Op | c.Transaction], list[Place]]:
    """Draw writes and transactions, and the rows of all of them."""
    ops, rows = list[c.Op | c.Transaction](), list[Place]()
    for many in draw(st.lists(st.lists(places, min_size=1, max_size=3), max_size=3)):
        writes = [op(place) for place in many]
        rows += many
        if draw(st.booleans()):
            ops.append(c.Transaction(ONE, PRINT, [c.Condition("t", "unread", c.Test.ABSENT)], writes))
        else:
            ops += writes
    return ops, rows


@st.composite
def told(draw: st.DrawFn) -> Told:
    """Draw a command of any kind, with what it names."""
    tenant, whose = draw(st.sampled_from(["", "bob"])), (1, 1, ONE)
    kind = draw(st.integers(0, 2))
    if kind == 0:
        parts, rows = list[c.Op | c.Transaction | c.Puts](), list[Place]()
        for many in draw(st.lists(st.lists(places, min_size=1, max_size=3), max_size=3)):
            if draw(st.booleans()):
                parts.append(c.Puts(ONE, many[0][0], b"", [key for _, key in many], []))
                rows += [(many[0][0], key) for _, key in many]
            else:
                ops, others = draw(mixed())
                parts += ops
                rows += others
        return c.Operate(*whose, parts, tenant), rows, []
    if kind == 1:
        ops, rows = draw(mixed())
        under = [c.KeyedOp(f"m{at}", NO_TIME, one) for at, one in enumerate(ops)]
        return c.Keyed(9, under, tenant), rows, [f"{tenant}\0m{at}" for at in range(len(ops))]
    other = [c.Range(*whose, "s", ONE, bytes(8), b"", tenant), c.DeclareTable("t", "resident", 9), c.ForgetKeys()]
    return draw(st.sampled_from(other)), [], []


class NotedRows(DictRows):
    """Rows that note what is read ahead of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: list[list[str]] = []

    def look_ahead(self, keys: list[str]) -> None:
        self.ahead.append(keys)


class NotedKeys(MemoryKeys):
    """Records of keys that note what is read ahead of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: list[list[str]] = []

    def look_ahead(self, names: list[str]) -> None:
        self.ahead.append(names)


@given(st.lists(told(), max_size=5))
def test_every_row_and_key_that_is_named_is_read_ahead_at_once_and_no_other(entry: list[Told]) -> None:
    """But for a table's only row, and for tables that keep no rows."""
    commands = [command for command, _, _ in entry]
    rows: dict[str, list[str]] = {}
    for table, key in [place for _, places, _ in entry for place in places]:
        rows[table] = [*rows.get(table, []), key]
    under = [name for _, _, names in entry for name in names]
    stored, records = {name: NotedRows() for name in "tus"}, NotedKeys()
    tables = {name: Table(name, "stream" if name == "s" else "resident", 9, stored[name]) for name in "tus"}
    look_ahead(commands, tables, KeyTable(records))
    for name in "tu":
        wanted = rows.get(name, [])
        assert stored[name].ahead == ([wanted] if len(wanted) > 1 else [])
    assert stored["s"].ahead == []
    assert records.ahead == ([under] if under else [])
