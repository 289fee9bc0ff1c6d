"""Rows that end against a dictionary: any order of writes, time, closes, leases that end, saves and restores."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.row_ends import BUCKET_MS, Life
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from tests.gateway.state_harness import Fed

LEASE_MS = 5_000
KEYS = ("a", "b", "c")
TABLES = ("t", "u")
KINDS = ("put", "put", "put", "delete", "increment", "append")

places = st.tuples(st.sampled_from(TABLES), st.sampled_from(KEYS))
lives = st.tuples(st.sampled_from((0, 0, 1, 90, 100, 2_000)), st.booleans())
writes = st.tuples(st.just("write"), st.integers(0, 1), places, st.sampled_from(KINDS), lives)
others = st.one_of(
    st.tuples(st.just("time"), st.sampled_from((1, 50, 99, 100, 1_000, 6_000))),
    st.tuples(st.sampled_from(("close", "reap", "take over", "replay")), st.integers(0, 1)),
    st.tuples(st.sampled_from(("end all", "save", "restart", "snapshot"))),
)


class Tried:
    """A machine on disk, and what a dictionary says that its rows are."""

    def __init__(self, path: Any) -> None:
        self.path, self.copies = path, 0
        self.fed = Fed(path / "s0")
        self.now = self.nonce = 0
        self.rows: dict[tuple[str, str], tuple[bytes, Life | None]] = {}
        self.sessions: list[int] = []
        self.renewed: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.sent: dict[int, c.Operate] = {}
        self.do(*(c.DeclareTable(name, "resident", 1 << 20) for name in TABLES))
        self.sessions = [self.open(), self.open()]

    def do(self, *commands: c.Command) -> list[Any]:
        return self.fed.do(*commands, at_ms=self.now)

    def open(self) -> int:
        self.nonce += 1
        client = int(self.do(c.OpenSession(f"n{self.nonce}", LEASE_MS, 512))[0].client_id)
        self.renewed[client], self.numbers[client] = self.now, 0
        return client

    def write(self, who: int, place: tuple[str, str], what: str, life: tuple[int, bool]) -> None:
        client = self.sessions[who]
        if self.renewed[client] + LEASE_MS < self.now:
            return
        self.renewed[client] = self.now
        self.numbers[client] += 1
        kind, (ttl_ms, bound) = c.OpKind[what.upper()], life if what != "delete" else (0, False)
        value = b"%d" % self.numbers[client] if what in ("put", "append") else None
        op = c.Op(
            SequenceNumber(self.numbers[client]),
            kind,
            *place,
            Fingerprint(7),
            value,
            1,
            options=c.Options(ttl_ms=ttl_ms, bound=bound),
        )
        epoch = self.fed.machine.sessions.get(client).epoch  # type: ignore[union-attr]
        self.sent[client] = c.Operate(client, epoch, SequenceNumber(1), [op])
        (done,) = self.do(self.sent[client])
        result = done.verdicts[0].record.result
        if result is not None and result.refusal is not None:
            return
        if what == "delete":
            self.rows.pop(place, None)
            return
        before, was = self.rows.get(place, (b"[]" if what == "append" else b"0", None))
        ends, owner = (self.now + ttl_ms if ttl_ms else 0), (client if bound else 0)
        if what != "put" and was is not None:
            ends, owner = ends or was.ends_ms, owner or was.owner
        text = {
            "put": value or b"",
            "increment": b"%d" % (int(before) + 1) if before.isdigit() else b"",
            "append": before[:-1] + (b"," if len(before) > 2 else b"") + (value or b"") + b"]",
        }[what]
        self.rows[place] = text, (Life(ends, owner) if ends or owner else None)

    def replay(self, who: int) -> None:
        """Send the newest request of a session again: nothing changes, whatever has ended since."""
        if self.sessions[who] in self.sent:
            self.do(self.sent[self.sessions[who]])

    def gone(self, client: int) -> None:
        self.rows = {at: row for at, row in self.rows.items() if row[1] is None or row[1].owner != client}
        self.sessions[self.sessions.index(client)] = self.open()

    def close(self, who: int) -> None:
        client = self.sessions[who]
        (done,) = self.do(c.CloseSession(client, self.fed.machine.sessions.get(client).epoch))  # type: ignore[union-attr]
        if not isinstance(done, OncegateError):
            self.gone(client)

    def reap(self, who: int) -> None:
        client = self.sessions[who]
        if self.do(c.Reap([client]))[0].sessions:
            assert self.renewed[client] + LEASE_MS < self.now
            self.gone(client)

    def take_over(self, who: int) -> None:
        self.nonce += 1
        (done,) = self.do(c.TakeOver(self.sessions[who], f"n{self.nonce}"))
        if not isinstance(done, OncegateError):
            self.renewed[self.sessions[who]] = self.now

    def end_all(self) -> None:
        """Propose every row: only those go whose time is over."""
        self.do(c.EndRows({name: list(KEYS) for name in TABLES}))
        self.rows = {at: row for at, row in self.rows.items() if not (row[1] and 0 < row[1].ends_ms <= self.now)}

    def time(self, ms: int) -> None:
        """Do what the leader does then: what it finds is over, and all that has been over for a bucket is found."""
        self.now += ms
        self.do()
        found = self.fed.machine.ends.due(self.now, c.END_MAX)
        over = {at for at, (_, life) in self.rows.items() if life and 0 < life.ends_ms <= self.now - BUCKET_MS}
        proposed = {(name, key) for name, keys in found.items() for key in keys}
        assert over <= proposed
        if found:
            self.do(c.EndRows(found))
        for place in proposed:
            life = self.rows.pop(place)[1]
            assert life is not None
            assert 0 < life.ends_ms <= self.now

    def copy(self, what: str) -> None:
        self.copies += 1
        self.fed = self.fed.after(what, self.path / f"s{self.copies}")

    def check(self) -> None:
        machine = self.fed.machine
        found = {(t, key): (row.value, row.life) for t in TABLES for key, row in machine.tables[t].rows.items()}
        assert found == self.rows
        ending = {at for at, (_, life) in self.rows.items() if life is not None}
        assert machine.ends.places() == ending
        assert len(machine.ends) == len(ending) == sum(machine.tables[name].ending for name in TABLES)
        assert {life.owner for _, life in self.rows.values() if life and life.owner} == set(machine.ends.owners())
        assert all(machine.sessions.get(owner) is not None for owner in machine.ends.owners())


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(writes | writes | others, max_size=30))
def test_rows_that_end_are_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("state")
    tried = Tried(path)
    for what, *more in plan:
        if what in ("save", "restart", "snapshot"):
            tried.copy(what)
        else:
            getattr(tried, what.replace(" ", "_"))(*more)
        tried.check()
    tried.fed.close()
    shutil.rmtree(path)
