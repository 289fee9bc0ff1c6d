"""When rows end survives every copy of the state; what was saved before rows ended is read, and a build before refuses.

That a restart equals a replay, whenever the process dies, is in test_state_saves.py: its logs have such rows too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncegate.gateway.backup.fence import CLOCK_MARGIN_MS, fence
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state import MachineState, layout, state_digest
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.rifl.ids import CommitNumber, SequenceNumber
from tests.gateway.state_harness import Fed, ship

LEASE_MS = 60_000


def begun(path: Path) -> Fed:
    """A state with the table "t" behind another one, and two sessions."""
    fed = Fed(path)
    tables = [c.DeclareTable(name, "resident", 1 << 20) for name in ("first", "t")]
    fed.do(*tables, *(c.OpenSession(f"n{number}", LEASE_MS, 512) for number in (1, 2)))
    return fed


def write(fed: Fed, key: str, number: int, *, client: int = 1, at_ms: int = 0, **late: Any) -> None:
    draft = c.Op(SequenceNumber(number), c.OpKind.PUT, "t", key, number, b'"text"')  # type: ignore[arg-type]
    draft = c.with_options(draft, **late)
    (done,) = fed.do(c.Operate(client, 1, SequenceNumber(1), [draft]), at_ms=at_ms)
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
        ended, closed = apply(fated.machine, 100, 1, command)
        assert ([one.key for one in ended.rows], [one.key for one in closed.rows]) == (["ends"], ["bound"])
    assert state_digest(fed.machine) == state_digest(other.machine)
    fed.close()
    other.close()


def test_row_without_an_end_is_its_version_and_its_text_and_every_row_is_read_back() -> None:
    assert layout.encode_row(StoredRow(CommitNumber(258), b"1")) == b"\0\0\0\0\0\0\1\2" + b"1"
    for life in (None, Life(5, 0), Life(0, 7), Life(2**53, 2**53)):
        row = StoredRow(CommitNumber(2**53), b'"x"', life)
        assert layout.decode_row(layout.encode_row(row)) == row


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
        of = layout.ENDS.key
        monkeypatch.setattr(layout.ENDS, "key", lambda number, key: of(9, key))
    else:
        monkeypatch.setattr(layout.ENDS, "encode", lambda life: b"\0" * 15)
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
