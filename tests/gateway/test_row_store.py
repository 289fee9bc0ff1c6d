"""Rows in memory and rows on disk behave the same, whatever is saved, forgotten or opened again in between."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncegate.gateway.machine.rows import DictRows, StoredRow
from oncegate.gateway.machine.state import rows as rows_module
from oncegate.gateway.machine.state import store as state_store
from oncegate.gateway.machine.state.errors import StateCorrupt, StoreFailed
from oncegate.gateway.machine.state.layout import ROWS, encode_row
from oncegate.gateway.machine.state.order import in_order
from oncegate.gateway.machine.state.rows import DirtyTally, FrozenRows, StoredRows
from oncegate.gateway.machine.state.store import RocksStore, new_cache
from oncegate.rifl.errors import InvariantViolation

CACHE = new_cache(8 << 20)


def ingest(store: RocksStore, file: Path, cells: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Add cells to a store by a file, as a save does."""
    writer = store.writer(file)
    for key, value in cells:
        writer.put(key, value)
    writer.finish()
    store.ingest(file)


class OnDisk:
    """Stored rows with the saves that keep them going; another table lies below and above them."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.store = RocksStore(self.path / "store", CACHE, create=True)
        self.tally = DirtyTally()
        self.rows = StoredRows(1, self.store, self.tally)
        self.frozen: FrozenRows | None = None
        self.files = 0
        self._write([(ROWS.under(table) + b"k1", encode_row(StoredRow(9, b"other"))) for table in (0, 2)])

    def freeze(self) -> None:
        frozen = self.rows.freeze()
        if frozen is not None:
            self.frozen = frozen[0]

    def save(self) -> None:
        if self.frozen is not None:
            self._write(cell for columns in self.frozen.columns() for cell in zip(*columns, strict=True))
            self.frozen = None

    def _write(self, cells: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.files += 1
        ingest(self.store, self.path / f"f{self.files}", cells)

    def reopen(self) -> None:
        count = len(self.rows)
        self.store.close()
        self.store = RocksStore(self.path / "store", CACHE, create=False)
        self.rows = StoredRows(1, self.store, self.tally, count)

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.path)


keys = st.text(alphabet="ab\N{SNOWMAN}\uffff\U0001f600", min_size=1, max_size=3)


class RowsMachine(RuleBasedStateMachine):
    """Stored rows against a dict."""

    @initialize()
    def begin(self) -> None:
        self.disk = OnDisk()
        self.model: dict[str, StoredRow] = {}
        self.commit = 0

    def teardown(self) -> None:
        self.disk.close()

    @rule(key=keys, value=st.binary(max_size=20))
    def put(self, key: str, value: bytes) -> None:
        self.commit += 1
        before = self.disk.rows.get(key)
        assert before == self.model.get(key)
        self.disk.rows.put(key, StoredRow(self.commit, value), before)
        self.model[key] = StoredRow(self.commit, value)

    @rule(many=st.lists(st.tuples(keys, st.binary(max_size=20)), min_size=1, max_size=6))
    def put_run(self, many: list[tuple[str, bytes]]) -> None:
        """One after the other, and the tally as after as many puts."""
        rows = [StoredRow(self.commit + at, value) for at, (_, value) in enumerate(many, 1)]
        self.commit += len(many)
        found = self.disk.rows.put_run([key for key, _ in many], rows)
        for (key, _), row, before in zip(many, rows, found, strict=True):
            assert before == self.model.get(key)
            self.model[key] = row

    @rule(key=keys)
    def delete(self, key: str) -> None:
        before = self.disk.rows.get(key)
        assert before == self.model.get(key)
        if before is not None:
            self.disk.rows.delete(key, before)
            del self.model[key]

    @rule(wanted=st.lists(keys, max_size=4))
    def look_ahead(self, wanted: list[str]) -> None:
        self.disk.rows.look_ahead(wanted)

    @rule(key=keys)
    def get(self, key: str) -> None:
        assert self.disk.rows.get(key) == self.model.get(key)

    @rule(
        low=st.one_of(st.just(""), keys),
        high=st.one_of(st.none(), keys),
        limit=st.integers(1, 5),
        reverse=st.booleans(),
    )
    def page(self, low: str, high: str | None, limit: int, reverse: bool) -> None:
        expected = sorted((k for k in self.model if low <= k and (high is None or k < high)), reverse=reverse)
        page = self.disk.rows.page(low, high, limit, reverse=reverse)
        assert page == [(k, self.model[k]) for k in expected[:limit]]

    @precondition(lambda self: self.disk.frozen is None)
    @rule()
    def freeze(self) -> None:
        self.disk.freeze()
        assert self.disk.tally.bytes >= 0

    @rule()
    def save(self) -> None:
        self.disk.save()

    @rule()
    def reopen(self) -> None:
        self.disk.save()
        self.disk.freeze()
        self.disk.save()
        self.disk.reopen()

    @invariant()
    def count_is_exact(self) -> None:
        if hasattr(self, "disk"):
            assert len(self.disk.rows) == len(self.model)

    @rule()
    def everything(self) -> None:
        assert list(self.disk.rows.items()) == sorted(self.model.items())


RowsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_stored_rows_equal_a_dict_under_random_steps = RowsMachine.TestCase


@pytest.mark.parametrize("saved", [False, True])
def test_run_of_puts_counts_what_as_many_puts_count_and_finds_what_is_not_older(saved: bool) -> None:
    runs, alone = OnDisk(), OnDisk()
    for disk in (runs, alone):
        for commit, key in enumerate("abc", 1):
            disk.rows.put(key, StoredRow(commit, b"12345"), disk.rows.get(key))
        disk.rows.delete("c", StoredRow(3, b"12345"))
        if saved:
            disk.freeze()
            disk.save()
    keys = ["a", "c", "d", "a"]
    rows = [StoredRow(commit, b"x" * commit) for commit in range(4, 8)]
    found = runs.rows.put_run(keys, rows)
    for key, row, was in zip(keys, rows, found, strict=True):
        before = alone.rows.get(key)
        assert before == was
        alone.rows.put(key, row, before)
    assert (runs.tally.rows, runs.tally.bytes) == (alone.tally.rows, alone.tally.bytes)
    assert [*runs.rows.items()] == [*alone.rows.items()]
    assert len(runs.rows) == len(alone.rows) == 4
    memory = DictRows()
    memory.put("b", StoredRow(2, b"12345"), None)
    for store in (runs.rows, memory):
        with pytest.raises(InvariantViolation):
            store.put_run(["z", "b"], [StoredRow(1, b""), StoredRow(2, b"")])
        assert store.get("b") == StoredRow(2, b"12345")
    runs.close()
    alone.close()


def test_runs_read_ahead_do_what_as_many_puts_do_wherever_their_rows_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "RUN_KEYS", 16)
    monkeypatch.setattr(rows_module, "_RUN_MASK", 15)
    put_new, rng, new = StoredRows._put_new, random.Random(60), 0

    def counted(rows: StoredRows, *run: Any) -> None:
        nonlocal new
        new += 1
        put_new(rows, *run)

    monkeypatch.setattr(StoredRows, "_put_new", counted)
    runs, alone = OnDisk(), OnDisk()
    commit = 0
    for turn in range(120):
        # Most rows are new at first; towards the end most are on disk, in what is saved, or just written.
        keys = [f"k{rng.randrange(40 + 120 * (120 - turn)):05d}" for _ in range(rng.randrange(2, 50))]
        if turn % 2:
            keys = list(dict.fromkeys(keys))
        rows = [StoredRow(commit + at, b"x" * rng.randrange(9)) for at in range(1, len(keys) + 1)]
        commit += len(keys)
        runs.rows.look_ahead(keys)
        found = runs.rows.put_run(keys, rows)
        for key, row, was in zip(keys, rows, found, strict=True):
            before = alone.rows.get(key)
            assert before == was
            alone.rows.put(key, row, before)
        assert (runs.tally.rows, runs.tally.bytes) == (alone.tally.rows, alone.tally.bytes)
        assert runs.rows._runs == alone.rows._runs
        if turn % 10 == 9:
            for disk in (runs, alone):
                disk.save()
                disk.freeze()
    assert 10 < new < 110
    assert [*runs.rows.items()] == [*alone.rows.items()]
    assert len(runs.rows) == len(alone.rows)
    keys = [key for key, _ in runs.rows.items()][:3]
    for disk in (runs, alone):
        disk.save()
        disk.freeze()
        disk.save()
        disk.freeze()
    runs.reopen()
    runs.rows.look_ahead(keys)
    with pytest.raises(InvariantViolation):
        runs.rows.put_run(keys, [StoredRow(1, b"")] * 3)
    runs.close()
    alone.close()


def test_row_read_ahead_before_it_was_written_is_not_found_again_once_two_saves_are_done() -> None:
    disk = OnDisk()
    disk.rows.look_ahead(["a", "b"])
    for commit, key in enumerate(["a", "b"], 1):
        disk.rows.put(key, StoredRow(commit, b"1"), disk.rows.get(key))
    disk.freeze()
    disk.save()
    disk.rows.put("c", StoredRow(3, b"1"), disk.rows.get("c"))
    disk.freeze()  # from here on the first two are in the store alone
    disk.save()
    assert [disk.rows.get(key) for key in "abc"] == [StoredRow(commit, b"1") for commit in (1, 2, 3)]
    disk.close()


def test_runs_and_layers_of_many_keys_merge_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "RUN_KEYS", 64)
    monkeypatch.setattr(rows_module, "_RUN_MASK", 63)
    disk, model = OnDisk(), DictRows()
    for number in range(3_000):
        key = f"k{number * 7919 % 1000:04d}"
        for rows in (disk.rows, model):
            before = rows.get(key)
            if number % 5:
                rows.put(key, StoredRow(number, b"x"), before)
            elif before is not None:
                rows.delete(key, before)
        if number % 900 == 899:
            disk.save()
            disk.freeze()
    assert list(disk.rows.items()) == list(model.items())
    for reverse in (False, True):
        ends = ("k0510", "k06", 30)
        assert disk.rows.page(*ends, reverse=reverse) == model.page(*ends, reverse=reverse)
    assert len(disk.rows) == len(model)
    disk.close()


def test_sorted_runs_come_in_order_however_they_are_cut() -> None:
    numbers = [n * 7919 % 100_003 for n in range(100_003)]
    runs = [sorted(numbers[low : low + 4096]) for low in range(0, len(numbers), 4096)]
    assert list(in_order(runs)) == list(range(100_003))
    assert list(in_order([[], [3], [1, 2]])) == [1, 2, 3]
    assert list(in_order([])) == []


def test_store_that_is_opened_again_uses_the_cache_it_was_given(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "s", CACHE, create=True)
    ingest(store, tmp_path / "f", [(b"k", b"v" * 1000)])
    store.close()
    cache = new_cache(8 << 20)
    before = cache.get_usage()
    again = RocksStore(tmp_path / "s", cache, create=False)
    assert again.value(b"k") == b"v" * 1000
    assert cache.get_usage() - before > 1000
    again.close()


def _store_of(tmp_path: Path, cells: int) -> RocksStore:
    store = RocksStore(tmp_path / "s", new_cache(8 << 20), create=True)
    ingest(store, tmp_path / "f", [(b"\x20%05d" % number, b"%d" % number) for number in range(cells)])
    return store


def test_store_is_opened_again_hundreds_of_times_while_threads_read_and_every_read_is_right(tmp_path: Path) -> None:
    store = _store_of(tmp_path, 60)
    stopped = threading.Event()

    def read(number: int) -> int:
        reads = 0
        while not stopped.is_set():
            key = b"\x20%05d" % number
            assert store.value(key) == b"%d" % number
            assert store.values([key, b"\x20x"]) == [b"%d" % number, None]
            # Rows are also looked up while a page of them is being read.
            for found, value in store.scan(b"\x20", b"%05d" % (60 - number)):
                assert store.value(found) == value
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, number) for number in (7, 40)]
        try:
            for _ in range(200):
                store.reopen()
        finally:
            stopped.set()
        assert all(reader.result() for reader in readers)
    store.close()


def test_store_of_which_a_scan_is_left_half_way_refuses_to_be_opened_again_and_stays_usable(tmp_path: Path) -> None:
    store = _store_of(tmp_path, 3)
    scan = store.scan(b"\x20")
    next(scan)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(StoreFailed, match="keeps it open"):
            pool.submit(store.reopen, wait_s=0.01).result()
        assert store.value(b"\x2000002") == b"2"
        assert len(list(scan)) == 2
        pool.submit(store.reopen).result()
    assert store.value(b"\x2000002") == b"2"
    store.close()


def test_store_that_could_not_be_opened_again_is_opened_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store_of(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(state_store, "Rdict", lambda *_: (_ for _ in ()).throw(Exception("IO error: no room")))
        with pytest.raises(StoreFailed, match="no room"):
            store.reopen()
    with pytest.raises(StoreFailed):
        store.value(b"\x2000002")
    assert store.refuses_writes, "whoever recovers the store tries again"
    store.reopen()
    assert not store.refuses_writes
    assert store.value(b"\x2000002") == b"2"
    store.close()


def test_rows_read_ahead_from_a_damaged_block_are_refused_never_missing(tmp_path: Path) -> None:
    written, found = {f"k{number:03d}": StoredRow(1, b"k%03d" % number * 20) for number in range(400)}, 0
    store = RocksStore(tmp_path / "whole", new_cache(1 << 20), create=True)
    cells = ((ROWS.under(1) + key.encode(), encode_row(row)) for key, row in written.items())
    ingest(store, tmp_path / "file", cells)
    store.close()
    for place in range(30):
        image = shutil.copytree(tmp_path / "whole", tmp_path / f"s{place}")
        (file,) = image.glob("*.sst")
        data = bytearray(file.read_bytes())
        data[len(data) * place // 40] ^= 1 << place % 8
        file.write_bytes(data)
        store = RocksStore(image, new_cache(1 << 20), create=False)
        rows = StoredRows(1, store, DirtyTally(), len(written))
        try:
            rows.look_ahead(list(written))
            assert {key: rows.get(key) for key in written} == written
        except StateCorrupt:
            assert store.damage is not None
            found += 1
        store.close()
    assert found >= 25
