"""When rows end survives every copy of the state; what was saved before rows ended is read, and a build before refuses.

That a restart equals a replay, whenever the process dies, is in test_state_saves.py: its logs have such rows too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate.gateway.backup.fence import CLOCK_MARGIN_MS, fence
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.state import MachineState, layout, state_digest
from oncegate.gateway.machine.state.errors import StateCorrupt, StateVersionUnknown
from oncegate.gateway.machine.tables import StoredRow
from oncegate.rifl.ids import CommitNumber, SequenceNumber
from tests.gateway.state_harness import Fed, ship
from tests.gateway.test_cascades import format_of

LEASE_MS = 60_000


def begun(path: Path, level: int = 3) -> Fed:
    """A state with the table "t" behind another one, and two sessions."""
    fed = Fed(path)
    tables = [c.DeclareTable(name, "resident", 1 << 20) for name in ("first", "t")]
    fed.do(c.RaiseLevel(level), *tables, *(c.OpenSession(f"n{number}", LEASE_MS, 512) for number in (1, 2)))
    return fed


def write(fed: Fed, key: str, number: int, *, client: int = 1, at_ms: int = 0, **late: Any) -> None:
    draft = c.Write(SequenceNumber(number), c.OpKind.PUT, "t", key, number, b'"text"', **late)  # type: ignore[arg-type]
    (done,) = fed.do(c.OperateMixed(client, 1, SequenceNumber(1), [draft]), at_ms=at_ms)
    assert type(done.verdicts[0]).__name__ == "Applied"


def test_ends_are_found_again_after_saves_restarts_and_snapshots(tmp_path: Path) -> None:
    fed = begun(tmp_path / "one")
    for number, key in enumerate(("moved", "ends", "stays", "\N{SNOWMAN}", "gone"), 1):
        write(fed, key, number, ttl_ms=1_000, bound=key == "moved")
    fed.save()
    write(fed, "moved", 6, ttl_ms=9_000)
    write(fed, "stays", 7)
    write(fed, "bound", 8, bound=True)
    fed.do(c.EndRows({"t": ["gone"]}), at_ms=1_000)
    assert fed.machine.tables["t"].rows.get("gone") is None
    fed.save()
    assert format_of(fed) == 7
    fed = fed.reopened()
    other = MachineState(tmp_path / "two")
    ship(fed.state, other).install()
    for machine in (fed.machine, other.machine):
        assert machine.ends.due(2_000, 99) == {"t": ["ends", "\N{SNOWMAN}"]}
        assert machine.ends.due(99_000, 99) == {"t": ["ends", "\N{SNOWMAN}", "moved"]}
        assert machine.ends.bound_places(1) == [("t", "bound")]
        assert (len(machine.ends), machine.tables["t"].ending, machine.tables["first"].ending) == (4, 4, 0)
        assert machine.tables["t"].rows.get("moved").life == Life(9_000, 0)  # type: ignore[union-attr]
    for fated in (fed, other):
        command = c.encode_entry(3_000, [c.EndRows({"t": ["ends"]}), c.CloseSession(1, 1)])
        ended, closed = fated.machine.apply(100, 1, command)
        assert ([one.key for one in ended.rows], [one.key for one in closed.rows]) == (["ends"], ["bound"])
    assert state_digest(fed.machine) == state_digest(other.machine)
    fed.close()
    other.close()


def test_row_without_an_end_is_saved_byte_for_byte_as_before_and_below_level_3_nothing_changes(tmp_path: Path) -> None:
    assert layout.encode_row(StoredRow(CommitNumber(258), b"1")) == b"\0\0\0\0\0\0\1\2" + b"1"
    for life in (None, Life(5, 0), Life(0, 7), Life(2**53, 2**53)):
        row = StoredRow(CommitNumber(2**53), b'"x"', life)
        assert layout.decode_row(layout.encode_row(row)) == row
    for level, version in ((1, 3), (2, 6)):
        fed = begun(tmp_path / str(level), level)
        fed.do(c.Operate(1, 1, SequenceNumber(1), [c.Op(SequenceNumber(1), 1, "t", "k", 1, b"1")]))  # type: ignore[arg-type]
        fed.save()
        assert format_of(fed) == version
        assert list(fed.state._store.scan(layout.ENDS)) == []
        fed.close()


def test_state_of_a_build_before_is_read_and_a_build_before_refuses_format_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = begun(tmp_path, 2)
    meta = fed.state._store
    fed.save()
    version, known = layout.decode_meta(tmp_path, meta.value(layout.META_KEY) or b"")
    before = b"\0\0\0\6" + msgspec.msgpack.encode(msgspec.structs.astuple(known)[:-2])
    plain = msgspec.structs.replace(known, tables_declared=-1)
    assert layout.decode_meta(tmp_path, before) == (version, plain), "fields that are missing have their defaults"
    fed.do(c.RaiseLevel(3))
    write(fed, "k", 1, ttl_ms=1)
    fed.save()
    fed.close()
    monkeypatch.setattr(layout, "FORMAT", 6)
    with pytest.raises(StateVersionUnknown, match="7; this build reads up to 6: start the build that wrote it"):
        MachineState(tmp_path)


@pytest.mark.parametrize("what", ["missing", "of no session", "of no table", "cut short"])
def test_state_whose_ends_are_not_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    fed = begun(tmp_path)
    write(fed, "k", 1, ttl_ms=1, bound=True)
    if what == "missing":
        fed.machine.ends.take_changes()
    elif what == "of no session":
        fed.machine.ends.take_changes()
        fed.machine.ends._changes = {"t": {"k": Life(1, 9)}}
    elif what == "of no table":
        monkeypatch.setattr("oncegate.gateway.machine.state.frozen.end_key", lambda number, key: layout.end_key(9, key))
    else:
        monkeypatch.setattr("oncegate.gateway.machine.state.frozen.encode_end", lambda life: b"\0" * 15)
    fed.save()
    fed.close()
    with pytest.raises(StateCorrupt):
        MachineState(tmp_path)


def test_restored_cluster_ends_bound_rows_by_its_own_log_and_others_keep_their_time(tmp_path: Path) -> None:
    fed = begun(tmp_path)
    write(fed, "timed", 1, ttl_ms=1_000, at_ms=500)
    write(fed, "bound", 2, bound=True, at_ms=500)
    write(fed, "both", 3, bound=True, ttl_ms=1_000, at_ms=500)
    fed.do(at_ms=600)
    machine = fed.machine
    fence(machine, identity="new", age_ms=0, block=0)
    now = machine.time_ms
    assert now == 600 + CLOCK_MARGIN_MS
    fed.save()
    fed = fed.reopened()
    machine = fed.machine
    assert machine.ends.due(now + 100, 9) == {"t": ["both", "bound"]}
    assert not list(machine.ends.owners())
    (ended,) = fed.do(c.EndRows({"t": ["bound", "both", "timed"]}), at_ms=now)
    assert [one.key for one in ended.rows] == ["bound", "both"]
    assert machine.tables["t"].rows.get("timed").ends_ms == now + 900  # type: ignore[union-attr]
    fed.close()
