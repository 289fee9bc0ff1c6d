"""A claimed store over one in memory: what is asked of the store, what readers see of its rows, and who is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.stores import WRITE_TS, ClaimedStore, Store, StoreTable, claimed
from oncegate.stores.claimed import claimed_store, place_of, process_store
from oncegate.stores.claims import STORE_META, Claim, adopt, wipe
from oncegate.stores.errors import LostRow, StoreCode, StoreError
from oncegate.stores.store import RANGE_ROWS_DEFAULT
from oncegate.stores.write_times import timestamp, written
from tests.spark.test_claimed_model import CLUSTERS, HALLS, SEATS, Key, Reference, Row

A, B, _ = CLUSTERS
OTHERS = StoreTable("others", SEATS.columns, SEATS.partition_key, SEATS.clustering)


class Memory(Store):
    """Rows by table and key, the newest of each, and what was asked."""

    clock: Callable[[], float] = staticmethod(time.time)

    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self.asked: list[str] = []
        self.closed = False
        self.before_the_last: Callable[[], object] = lambda: None
        """Is called while a reader has most of a scan, or of a range."""

    def create(self, tables: Iterable[StoreTable]) -> None:
        for table in tables:
            self.rows.setdefault(table.name, {})

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        self._put("write", table, rows)

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        self._put("update", table, rows)

    def _put(self, what: str, table: StoreTable, rows: pa.RecordBatch) -> None:
        self.asked.append(f"{what} {table.name}")
        for row in rows.to_pylist():
            self.rows[table.name][tuple(row[name] for name in table.key)] = row

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        self.asked.append(f"delete {table.name} at {keys.column(WRITE_TS).to_pylist()}")
        for row in keys.to_pylist():
            del self.rows[table.name][tuple(row[name] for name in table.key)]

    def get(self, table: StoreTable, key: Mapping[str, Any]) -> dict[str, Any] | None:
        self.asked.append(f"get {table.name}")
        return self.rows[table.name].get(tuple(key[name] for name in table.key))

    def range(
        self,
        table: StoreTable,
        prefix: Mapping[str, Any],
        start: Any = None,
        stop: Any = None,
        *,
        after: Mapping[str, Any] | None = None,
        limit: int = RANGE_ROWS_DEFAULT,
        reverse: bool = False,
    ) -> pa.Table:
        assert limit >= 1
        assert after is None or len(prefix) < len(table.key), "there is no further row of one key"
        self.asked.append(f"range {limit}")
        found = [
            row
            for _, row in sorted(self.rows[table.name].items(), reverse=reverse)
            if all(row[name] == value for name, value in prefix.items())
            and (start is None or row["seat"] >= start)
            and (stop is None or row["seat"] < stop)
            and (after is None or (row["seat"] < after["seat"] if reverse else row["seat"] > after["seat"]))
        ]
        self.before_the_last()
        return pa.Table.from_pylist(found[:limit], table.schema)

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        for row in self.rows[table.name].values():
            yield pa.RecordBatch.from_pylist([row], schema=table.schema)
        self.before_the_last()
        yield pa.RecordBatch.from_pylist([], schema=table.schema)

    def count(self, table: StoreTable) -> int:
        return len(self.rows[table.name])

    def tables(self) -> list[str]:
        self.asked.append("tables")
        return list(self.rows)

    def replace(self, table: StoreTable, before: Mapping[str, Any] | None, row: Mapping[str, Any]) -> bool:
        key = tuple(row[name] for name in table.key)
        known = self.rows[table.name].get(key)
        if (known and known["value"]) != (before and before["value"]):
            return False
        self.rows[table.name][key] = dict(row)
        return True

    def clear(self, tables: Iterable[str]) -> None:
        for name in tables:
            self.rows[name].clear()

    def durability(self) -> str:
        return "none"

    def close(self) -> None:
        self.closed = True


def held(cluster: str = A, epoch: int = 0, **given: Any) -> tuple[Memory, ClaimedStore]:
    """Return an empty store and the one that holds it."""
    store = Memory()
    ClaimedStore(store, "here", A).create([SEATS])
    return store, ClaimedStore(store, "here", cluster, epoch=epoch, **given)


def batch(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    found = [{"hall": hall, "seat": seat, "guest": "g", WRITE_TS: commit} for hall, seat, commit in rows]
    return pa.RecordBatch.from_pylist(found, schema=SEATS.schema)


def mismatch(does: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as refused:
        does()
    assert refused.value.code is StoreCode.STORE_MISMATCH
    return refused.value.detail


# --- readers -------------------------------------------------------------------------------------------------------

planted = st.dictionaries(
    st.tuples(st.sampled_from(HALLS), st.integers(0, 9)), st.tuples(st.integers(0, 5), st.integers(1, 4))
)
bounds = st.none() | st.integers(0, 10)
PLACES = [(hall, seat) for hall in HALLS for seat in range(10)]


def planted_store(rows: Mapping[Key, tuple[int, int]], floor: int = 2) -> tuple[Memory, ClaimedStore, Reference]:
    """Return a store at epoch 5, wiped at ``floor``, that inherits of epochs 2 and 4; rows of epoch 0 have a clock's
    time."""
    store, mine = held()
    model = Reference()
    model.epoch, model.floor, model.inherited = 5, floor, {2: 3, 4: 2}
    claim = Claim(A, 5, floor, inherited=((2, 3), (4, 2)))
    store.rows[STORE_META.name]["claim",]["value"] = msgspec.json.encode(claim).decode()
    for (hall, seat), (epoch, commit) in rows.items():
        model.rows[hall, seat] = Row(epoch, commit, "g")
        ts = timestamp(epoch, commit) if epoch else commit
        store.rows[SEATS.name][hall, seat] = {"hall": hall, "seat": seat, "guest": "g", WRITE_TS: ts}
    return store, mine, model


def _rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[Key, tuple[str, int]]]:
    return [((row["hall"], row["seat"]), (row["guest"], row[WRITE_TS])) for row in found]


@given(planted, st.sampled_from([0, 2]))
def test_get_and_scan_show_of_each_row_what_its_epoch_and_the_claim_say(
    rows: dict[Key, tuple[int, int]], floor: int
) -> None:
    _, mine, model = planted_store(rows, floor)
    for hall, seat in PLACES:
        found = mine.get(SEATS, {"hall": hall, "seat": seat})
        assert (found and (found["guest"], found[WRITE_TS])) == model.seen((hall, seat))
        if model.lost((hall, seat)):
            with pytest.raises(LostRow) as lost:
                mine.get(SEATS, {"hall": hall, "seat": seat}, refuses_lost=True)
            assert lost.value.code is StoreCode.STORE_MISMATCH
            epoch, commit = rows[hall, seat]
            assert f"as commit {commit} of" in lost.value.detail
            assert f"with commit {model.inherited[epoch]}:" in lost.value.detail
        else:
            assert mine.get(SEATS, {"hall": hall, "seat": seat}, refuses_lost=True) == found
    scanned = [row for rows_of in mine.scan(SEATS) for row in rows_of.to_pylist()]
    assert sorted(_rows(scanned)) == [(key, seen) for key in sorted(PLACES) if (seen := model.seen(key)) is not None]


@given(planted, bounds, bounds, st.none() | st.integers(0, 9), st.integers(1, 12), st.booleans())
def test_range_shows_as_many_rows_as_there_are_within_its_bounds_whatever_stands_between_them(
    rows: dict[Key, tuple[int, int]], start: int | None, stop: int | None, after: int | None, limit: int, reverse: bool
) -> None:
    _, mine, model = planted_store(rows)
    wanted = [
        (("h", seat), seen)
        for seat in (range(9, -1, -1) if reverse else range(10))
        if (seen := model.seen(("h", seat))) is not None
        and (start is None or seat >= start)
        and (stop is None or seat < stop)
        and (after is None or (seat < after if reverse else seat > after))
    ]
    behind = None if after is None else {"hall": "h", "seat": after}
    found = mine.range(SEATS, {"hall": "h"}, start, stop, after=behind, limit=limit, reverse=reverse)
    assert found.schema == SEATS.schema
    assert _rows(found.to_pylist()) == wanted[:limit]
    if not reverse and start is stop is after is None:
        assert _rows(mine.range(SEATS, {"hall": "h"}).to_pylist()) == wanted, "without more than that: from the first"


@given(planted, st.integers(1, 3))
def test_range_of_a_whole_key_is_that_row(rows: dict[Key, tuple[int, int]], limit: int) -> None:
    store, mine, model = planted_store(rows)
    for hall, seat in PLACES:
        store.asked.clear()
        found = _rows(mine.range(SEATS, {"hall": hall, "seat": seat}, limit=limit).to_pylist())
        seen = model.seen((hall, seat))
        assert found == ([] if seen is None else [((hall, seat), seen)])
        assert [asked for asked in store.asked if "range" in asked] == [f"range {limit}"]


def test_range_asks_for_no_more_than_it_lacks_and_by_default_for_a_thousand() -> None:
    store, mine, _ = planted_store({("h", 0): (1, 1), ("h", 1): (5, 1), ("h", 2): (1, 1), ("h", 3): (5, 2)})
    mine.range(SEATS, {"hall": "h"}, limit=2)
    mine.range(SEATS, {"hall": "h"})
    assert [asked for asked in store.asked if "range" in asked] == ["range 2", "range 1", "range 1", "range 1000"]


@pytest.mark.parametrize("epoch", [6, 9])
def test_row_of_a_later_epoch_than_the_claims_is_refused_with_the_epoch_to_adopt_at(epoch: int) -> None:
    key = {"hall": "h", "seat": 1}
    _, mine, _ = planted_store({("h", 1): (epoch, 1), ("h", 2): (5, 1)})
    reads: list[Callable[[], object]] = [
        lambda: mine.get(SEATS, key),
        lambda: list(mine.scan(SEATS)),
        lambda: mine.range(SEATS, {"hall": "h"}),
    ]
    for read in reads:
        detail = mismatch(read)
        assert detail.startswith(f"here holds rows of epoch {epoch}, later than its claim's 5,")
        assert f"--epoch {epoch + 1}`" in detail


def test_claim_is_looked_at_once_for_rows_of_the_present_epoch_and_again_for_each_other() -> None:
    store, mine, _ = planted_store({("h", 1): (5, 1), ("h", 2): (3, 1)})
    meta, seats = f"get {STORE_META.name}", f"get {SEATS.name}"
    for seat, asked in ((1, ["tables", meta, seats]), (1, [seats]), (2, [seats, meta]), (3, [seats, meta])):
        store.asked.clear()
        mine.get(SEATS, {"hall": "h", "seat": seat})
        assert store.asked == asked


def test_claim_that_is_lost_meanwhile_is_told_as_one_that_was_never_there() -> None:
    store, mine = held()
    mine.claim()
    store.rows[STORE_META.name].clear()
    assert mismatch(mine.claim).startswith("here holds tables of an earlier version, seats,")
    assert mismatch(lambda: mine.create([])).startswith("here holds tables of an earlier version, seats,")


# --- writers -------------------------------------------------------------------------------------------------------


def test_rows_are_written_updated_and_deleted_at_the_timestamp_of_epoch_and_commit() -> None:
    store, mine, _ = planted_store({})
    mine.write(SEATS, batch(("h", 1, 7), ("h", 2, 8)))
    assert [written(row[WRITE_TS]) for row in store.rows[SEATS.name].values()] == [(5, 7), (5, 8)]
    assert mine.count(SEATS) == 2
    mine.update(SEATS, batch(("h", 1, 9)))
    assert written(store.rows[SEATS.name]["h", 1][WRITE_TS]) == (5, 9)
    mine.delete(SEATS, batch(("h", 2, 10)).select(["hall", "seat", WRITE_TS]))
    assert list(store.rows[SEATS.name]) == [("h", 1)]
    done = [asked for asked in store.asked if SEATS.name in asked]
    assert done == ["write seats", "update seats", f"delete seats at [{timestamp(5, 10)}]"]


def test_store_is_claimed_when_its_first_tables_are_created_by_whoever_has_a_name() -> None:
    store = Memory()
    assert mismatch(lambda: ClaimedStore(store, "here").create([SEATS])).startswith("here holds no store")
    assert store.rows == {}, "nobody's store stays as it is"
    ClaimedStore(store, "here", A, cluster_name="prod").create([SEATS])
    assert ClaimedStore(store, "here").claim() == Claim(A, 1, 1, "prod")
    ClaimedStore(store, "here").create([OTHERS])
    assert ClaimedStore(store, "here").tables() == ["seats", "others"]
    told = mismatch(lambda: ClaimedStore(store, "here", B).create([]))
    assert told.startswith(f"here holds rows of cluster {A} (prod), and this is cluster {B}:")


def test_store_claimed_without_a_name_has_none() -> None:
    _, mine = held()
    assert mine.claim() == Claim(A, 1, 1, "")


def test_consumer_has_begun_where_it_was_noted_and_not_once_the_store_was_wiped() -> None:
    store, mine = held()
    assert not mine.began("f", "c")
    mine.begin("f", "c")
    assert [mine.began(*pair) for pair in (("f", "c"), ("f", "d"), ("g", "c"))] == [True, False, False]
    wipe(store, "here", A)
    assert not ClaimedStore(store, "here", A).began("f", "c")


DOES: dict[str, Callable[[ClaimedStore], object]] = {
    "claim": lambda one: one.claim(),
    "create": lambda one: one.create([OTHERS]),
    "began": lambda one: one.began("f", "c"),
    "begin": lambda one: one.begin("f", "c"),
    "write": lambda one: one.write(SEATS, batch(("h", 1, 1))),
    "update": lambda one: one.update(SEATS, batch(("h", 1, 1))),
    "delete": lambda one: one.delete(SEATS, batch(("h", 1, 1)).select(["hall", "seat", WRITE_TS])),
    "get": lambda one: one.get(SEATS, {"hall": "h", "seat": 1}),
    "scan": lambda one: list(one.scan(SEATS)),
    "range": lambda one: one.range(SEATS, {"hall": "h"}),
    "count": lambda one: one.count(SEATS),
}


@pytest.mark.parametrize("does", DOES.values(), ids=DOES)
@pytest.mark.parametrize("fresh", [True, False])
def test_who_does_not_hold_the_store_is_refused_and_changes_nothing(
    does: Callable[[ClaimedStore], object], fresh: bool
) -> None:
    store, mine = held()
    if not fresh:
        mine.claim()
    adopt(store, "here", B, "other")
    before = repr(store.rows)
    assert mismatch(lambda: does(mine)).startswith(f"here holds rows of cluster {B} (other)")
    assert repr(store.rows) == before


@pytest.mark.parametrize("does", DOES.values(), ids=DOES)
def test_who_began_in_another_epoch_is_refused(does: Callable[[ClaimedStore], object]) -> None:
    store, mine = held(epoch=1)
    assert mine.claim().epoch == 1
    adopt(store, "here", A, epoch=4)
    assert mismatch(lambda: does(mine)).startswith("here is at epoch 4, this process began at 1:")
    assert mismatch(lambda: does(ClaimedStore(store, "here", A, epoch=5))).startswith("here is at epoch 4, ")
    assert ClaimedStore(store, "here", A, epoch=4).claim().epoch == 4


def test_epoch_of_who_names_none_is_that_of_its_first_look() -> None:
    store, mine = held("")
    assert mine.claim().epoch == 1
    adopt(store, "here", B)
    assert "epoch 2, this process began at 1" in mismatch(mine.claim)


@pytest.mark.parametrize("read", ["scan", "range"])
def test_store_that_changes_hands_while_it_is_read_shows_no_end(read: str) -> None:
    store, mine = held()
    mine.write(SEATS, batch(("h", 1, 1)))
    store.before_the_last = lambda: adopt(store, "here", B)
    mismatch(lambda: DOES[read](mine))


# --- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:///data/rows?shards=4", "sqlite:///data/rows"),
        ("cassandra://host:9042,other/ks?retry_s=5", "cassandra://host:9042,other/ks"),
        ("cassandra://user@host/ks", "cassandra://host/ks"),
        ("cassandra://a@b@host/ks", "cassandra://host/ks"),
    ],
)
def test_place_of_a_store_is_its_url_without_users_and_options(url: str, place: str) -> None:
    assert place_of(url) == place


def test_store_is_closed_at_the_end_of_its_block_and_says_what_it_survives() -> None:
    store, mine = held()
    with mine as entered:
        assert entered is mine
        assert mine.durability() == "none"
        assert not store.closed
    assert store.closed


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Memory]]]:
    """By URL, the stores that were opened there, all of them one cluster's at epoch 1."""
    found: dict[str, list[Memory]] = {}

    def open_memory(url: str) -> Store:
        store = Memory()
        ClaimedStore(store, "here", A, cluster_name="prod").create([SEATS])
        found.setdefault(url, []).append(store)
        return store

    monkeypatch.setattr(claimed, "open_store", open_memory)
    claimed._shared.clear()
    yield found
    claimed._shared.clear()


def test_store_of_a_url_is_held_in_its_place_for_the_cluster_and_epoch_that_are_named(
    opened: dict[str, list[Memory]],
) -> None:
    assert claimed_store("x://u@h/a?b=1", A, epoch=1).claim() == Claim(A, 1, 1, "prod")
    assert claimed_store("x://u@h/a?b=1").claim().cluster == A
    assert mismatch(claimed_store("x://u@h/a?b=1", B).claim).startswith("x://h/a holds rows of cluster")
    assert "began at 2" in mismatch(claimed_store("x://u@h/a?b=1", A, epoch=2).claim)
    fresh = claimed_store("x://h/b", A, cluster_name="new")
    for rows in opened["x://h/b"][0].rows.values():
        rows.clear()
    del opened["x://h/b"][0].rows[SEATS.name]
    fresh.create([])
    assert fresh.claim().cluster_name == "new"


def test_store_of_a_url_alone_is_what_it_is_found_to_be(opened: dict[str, list[Memory]]) -> None:
    found = claimed_store("x://h/a")
    adopt(opened["x://h/a"][0], "here", B)
    assert (found.claim().cluster, found.claim().epoch) == (B, 2)
    fresh = claimed_store("x://h/b", A)
    for rows in opened["x://h/b"][0].rows.values():
        rows.clear()
    del opened["x://h/b"][0].rows[SEATS.name]
    fresh.create([])
    assert fresh.claim().cluster_name == ""


def _fails(url: str, epoch: int, fault: Exception) -> None:
    with process_store(url, A, epoch):
        raise fault


@pytest.mark.parametrize("fault", [StoreError(StoreCode.STORE_UNAVAILABLE, ""), StoreError(StoreCode.BAD_ROWS, "")])
def test_stores_of_a_url_alone_are_opened_anew_once_it_was_not_to_be_reached(
    opened: dict[str, list[Memory]], fault: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = [("u", 1), ("u", 2), ("v", 1)]

    def used() -> list[ClaimedStore]:
        found = []
        for url, epoch in uses:
            with process_store(url, A, epoch) as store:
                found.append(store)
        return found

    first = used()
    assert used() == first
    assert len(set(first)) == 3
    assert "began at 2" in mismatch(first[1].claim)
    assert first[0].claim().cluster == A
    with pytest.raises(StoreError) as raised:
        _fails("u", 1, fault)
    assert raised.value is fault
    unavailable = fault.code is StoreCode.STORE_UNAVAILABLE
    assert [store.closed for url in ("u", "v") for store in opened[url]] == [unavailable, unavailable, False]
    assert [now is before for now, before in zip(used(), first, strict=True)] == [
        not unavailable,
        not unavailable,
        True,
    ]
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    assert not set(used()) & set(first), "a fork has its own"


def test_fault_that_is_no_stores_own_leaves_the_store_open(opened: dict[str, list[Memory]]) -> None:
    with pytest.raises(ValueError, match="mine"):
        _fails("u", 1, ValueError("mine"))
    assert not opened["u"][0].closed
