"""Reconcile names exactly the rows in which a store and the log differ, and the batches that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.jobs import job, stream_rows
from oncegate.spark_sink.options import FlowOptions
from oncegate.spark_sink.reconcile import DIFFERENCES_MAX, Reconciled, reconcile
from oncegate.stores import claimed_store
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.expiry import live
from oncegate.stores.stream_rows import STREAM_ROWS
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode

NEWEST = StoreTable("newest", (Column("key", ColumnType.TEXT), Column("value", ColumnType.INT64)), ("key",))
COUNTS = StoreTable("counts", (Column("batch", ColumnType.INT64), Column("items", ColumnType.INT64)), ("batch",))
TABLES = (NEWEST, COUNTS, DEAD_LETTERS)

Rows = dict[str, dict[Any, dict[str, Any]]]


def derive(batch: FlowBatch) -> Iterator[Change]:
    """The newest value of each key, and how many items each batch has."""
    for item in batch:
        if item.value is None:
            yield item.delete(NEWEST, key=item.key)
        elif item.json() < 0:
            yield item.reject("below zero")
        else:
            yield item.upsert(NEWEST, key=item.key, value=item.json())
    yield batch.upsert(COUNTS, batch=batch.number, items=batch.items.num_rows)


def batches_of(*batches: list[tuple[str, Any]]) -> dict[int, FlowBatch]:
    made, commit = {}, 10
    for number, items in enumerate(batches, 1):
        made[number] = FlowBatch.of(*items, number=number, first_commit=commit)
        commit += len(items) + number  # commits of other tables lie between
    return made


class Held:
    """Rows that a test may change, behind the part of a store that reconcile uses."""

    def __init__(self, batches: dict[int, FlowBatch]) -> None:
        """What a plain loop over the items leaves."""
        self.rows: Rows = {table.name: {} for table in TABLES}
        for batch in batches.values():
            for item in batch:
                if item.value is None:
                    self.rows["newest"].pop(item.key, None)
                elif item.json() >= 0:
                    self.rows["newest"][item.key] = {"key": item.key, "value": item.json(), WRITE_TS: item.commit}
                else:
                    letter = {**item._asdict(), "job": "j", "flow": "flow", "batch": batch.number, "item_key": item.key}
                    letter |= {"raw": item.value.encode(), "error": "below zero", WRITE_TS: item.commit}
                    self.rows[DEAD_LETTERS.name][item.commit] = letter
            last = {"batch": batch.number, "items": batch.items.num_rows, WRITE_TS: batch.last_commit}
            self.rows["counts"][batch.number] = last

    def tables(self) -> list[str]:
        return list(self.rows)

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        rows = [{name: row[name] for name in table.schema.names} for row in self.rows[table.name].values()]
        for at in range(0, len(rows), 3):
            yield pa.RecordBatch.from_pylist(rows[at : at + 3], schema=table.schema)


ENDS = StoreTable(
    "ends",
    (Column("key", ColumnType.TEXT), Column("until", ColumnType.TIMESTAMP, nullable=True)),
    ("key",),
    expires="until",
)


def ending(batch: FlowBatch) -> Iterator[Change]:
    """Each item's value is the second at which its row ends, none: never."""
    for item in batch:
        yield item.upsert(ENDS, key=item.key, until=end_ms(item))


def end_ms(item: Any) -> int | None:
    return None if item.value is None else int(item.json()) * 1000


class Ending(Held):
    """Rows that end while they are scanned: ``pause`` seconds pass before each part of a scan and after the last."""

    def __init__(self, batches: dict[int, FlowBatch], pause: int) -> None:
        self.rows = {"ends": {}}
        for batch in batches.values():
            for item in batch:
                self.rows["ends"][item.key] = {"key": item.key, "until": end_ms(item), WRITE_TS: item.commit}
        self.pause, self.now, self.scanned_by = pause, 0, 0

    def clock(self) -> float:
        return self.now

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        for rows in super().scan(table):
            self.now += self.pause
            yield live(table, rows, self.now * 1000)
        self.now += self.pause
        self.scanned_by = self.scanned_by or self.now * 1000


def reconciled(batches: dict[int, FlowBatch], store: Any, first: int = 1, last: int = 0, **how: Any) -> Reconciled:
    applier = Applier(derive, "j")
    return reconcile(batches.__getitem__, first, last or len(batches), applier, store, tables=TABLES, **how)


def named(found: Reconciled) -> set[tuple[str, str, Any]]:
    return {(one.kind, one.table, one.key[next(iter(one.key))]) for one in found.differences}


values = st.one_of(st.none(), st.integers(-1, 3))
written = st.lists(st.tuples(st.sampled_from("abcdef"), values), min_size=1, max_size=6)
tampers = st.lists(
    st.tuples(st.sampled_from(["drop", "change", "add", "back"]), st.sampled_from("abcdefgh"), st.integers(0, 9)),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(written, min_size=1, max_size=6), tampers)
@example([[("a", 0), ("d", 1)]], [("back", "d", 0)])  # another item of the same batch
def test_exactly_the_rows_that_were_changed_are_named(
    contents: list[list[tuple[str, Any]]], changes: list[tuple[str, str, int]]
) -> None:
    batches = batches_of(*contents)
    store, truth = Held(batches), Held(batches).rows["newest"]
    last_commit = batches[len(batches)].last_commit
    mine = store.rows["newest"]
    for what, key, number in changes:
        match what:
            case "drop":
                mine.pop(key, None)
            case "change" if key in mine:
                mine[key] = {**mine[key], "value": number}
            case "add" if key not in mine:
                mine[key] = {"key": key, "value": number, WRITE_TS: min(10 + number, last_commit)}
            case "back" if key in mine:
                mine[key] = {**mine[key], WRITE_TS: 10}
            case _:
                pass
    differing = {
        ("missing" if key not in mine else "surplus" if key not in truth else "differs", "newest", key)
        for key in truth.keys() | mine.keys()
        if truth.get(key) != mine.get(key)
    }
    found = reconciled(batches, store)
    assert named(found) == differing
    assert found.counts.total() == len(differing)
    assert found.equal == (not differing)
    assert found.rows == sum(len(rows) for rows in Held(batches).rows.values())


def test_rows_that_swapped_their_values_are_found() -> None:
    batches = batches_of([("a", 1), ("b", 2)])
    store = Held(batches)
    rows = store.rows["newest"]
    rows["a"]["value"], rows["b"]["value"] = 2, 1
    assert named(reconciled(batches, store)) == {("differs", "newest", "a"), ("differs", "newest", "b")}


def test_range_judges_its_own_rows_alone_and_names_their_batch() -> None:
    batches = batches_of([("a", 1), ("b", 1)], [("c", 2)], [("d", 3), ("b", 3)])
    store = Held(batches)
    del store.rows["newest"]["a"], store.rows["newest"]["d"]
    found = reconciled(batches, store, 2, 2)
    assert found.equal
    assert found.rows == 2
    found = reconciled(batches, store, 3, 3)
    assert [(one.kind, one.batch, one.key) for one in found.differences] == [("missing", 3, {"key": "d"})]
    assert found.batches_differing == {3}
    store.rows["counts"][2]["items"] = 9
    assert [(one.kind, one.batch) for one in reconciled(batches, store, 2, 3).differences] == [
        ("missing", 3),
        ("differs", 2),
    ]


def test_rows_that_a_running_job_has_written_since_are_not_judged() -> None:
    batches = batches_of([("a", 1), ("b", 1), ("c", 1)], [("a", 2), ("b", None)])
    store = Held(batches)
    del store.rows["newest"]["c"]
    found = reconciled(batches, store, 1, 1)
    assert named(found) == {("missing", "newest", key) for key in "abc"}
    assert named(reconciled(batches, store, 1, 1, newest=lambda: 2)) == {("missing", "newest", "c")}


def test_rows_of_other_jobs_in_a_shared_table_are_none_of_its_business() -> None:
    batches = batches_of([("a", -1), ("b", 1)])
    store = Held(batches)
    letters = store.rows[DEAD_LETTERS.name]
    letters["other"] = {**letters[10], "job": "another job"}
    assert reconciled(batches, store).equal
    letters["mine"] = {**letters[10], "commit": 11, WRITE_TS: 11}
    assert named(reconciled(batches, store)) == {("surplus", DEAD_LETTERS.name, "j")}
    other = {"key": "z", "value": 1, WRITE_TS: 11}
    store.rows["newest"]["z"] = other
    del letters["mine"]
    assert reconciled(batches, store, only={"newest": {"key": "b"}}).equal


def test_rows_that_a_replay_gave_another_timestamp_are_as_they_should_be() -> None:
    batches = batches_of([("a", 1)], [("b", -1), ("c", 2)])
    store = Held(batches)
    for table in ("counts", DEAD_LETTERS.name):
        for row in store.rows[table].values():
            row[WRITE_TS] = 1000
    assert reconciled(batches, store).equal
    store.rows["counts"][2]["items"] = 7
    assert named(reconciled(batches, store)) == {("differs", "counts", 2)}


def test_all_differences_are_counted_and_the_first_are_named() -> None:
    batches = batches_of([(f"k{i}", i) for i in range(DIFFERENCES_MAX + 200)])
    store = Held(batches)
    store.rows["newest"].clear()
    found = reconciled(batches, store)
    assert found.counts == {"missing": DIFFERENCES_MAX + 200}
    assert len(found.differences) == DIFFERENCES_MAX


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 12))), min_size=1, max_size=12),
    st.integers(0, 4),
    st.sets(st.sampled_from("abcdef"), max_size=1),
)
def test_row_that_ends_before_or_during_the_scan_is_no_difference_and_one_that_lasts_is_judged(
    items: list[tuple[str, int | None]], pause: int, lost: set[str]
) -> None:
    """The store leaves out what has ended when it gives a part; time passes before each part and after the last."""
    batches = batches_of(items)
    store = Ending(batches, pause)
    rows = store.rows["ends"]
    for key in lost:
        rows.pop(key, None)
    found = reconcile(batches.__getitem__, 1, 1, Applier(ending, "j"), cast(ClaimedStore, store), clock=store.clock)
    scanned_by = store.scanned_by
    newest = dict(items)
    gone = {key for key in lost & newest.keys() if newest[key] is None or newest[key] * 1000 > scanned_by}
    assert found.counts == ({"missing": len(gone)} if gone else {})
    assert named(found) == {("missing", "ends", key) for key in gone}


@pytest.mark.parametrize("missed", [None, 2])
def test_what_a_job_wrote_to_a_real_store_is_reconciled(tmp_path: Path, missed: int | None) -> None:
    batches = batches_of([("a", 1), ("b", -1), ("", 3)], [("a", None), ("c", 4)], [("b", 5), ("d" * 70_000, 1)])
    with claimed_store(f"sqlite://{tmp_path}/store", CLUSTER) as store:
        store.create(TABLES)
        for number, batch in batches.items():
            if number != missed:
                Applier(derive, "j").apply(batch, store, Done())
        found = reconciled(batches, store)
    assert found.rows == 8, "b and c, three counts, three dead letters: below zero, no key, a long key"
    if missed is None:
        assert found.equal
    else:
        assert named(found) == {("surplus", "newest", "a"), ("missing", "newest", "c"), ("missing", "counts", 2)}
        assert found.batches_differing == {1, 2}


def test_job_compares_what_it_has_finished_and_says_so_by_its_exit_status(
    flow: FakeFlow, node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.seal_all([(commit, f"k{commit % 7}" if commit <= 30 else "new", str(commit)) for commit in range(1, 41)], 10)
    place = {"store": f"sqlite://{tmp_path}/store", "checkpoint": str(tmp_path / "checkpoint")}
    arguments = ["--endpoints", node.url, "--table", flow.name, "--timeout-s", "1", "--reconcile"]
    arguments += [word for name, value in place.items() for word in (f"--{name}", value)]
    assert job.main("rows", stream_rows.parse(arguments)) == 2, "it has finished nothing yet"
    with claimed_store(place["store"], CLUSTER) as store:
        store.create([STREAM_ROWS, DEAD_LETTERS])
        lease = flow.attach("rows", "n")
        derivation = stream_rows.StreamRows(flow.name)
        client = FlowOptions.parse({"endpoints": node.url, "flow": flow.name}).client()
        other = {"source": "another table", "key": "z", "value": "1", WRITE_TS: 5}
        store.write(STREAM_ROWS, pa.RecordBatch.from_pylist([other], schema=STREAM_ROWS.schema))
        for number in range(1, 4):
            Applier(derivation, "rows").apply(FlowBatch(flow.name, number, client.batch(number)), store, Done())
        flow.move("rows", 3, lease.fence)
        assert job.main("rows", stream_rows.parse(arguments)) == 0
        assert "equal: 7 rows" in capsys.readouterr().out
        wrong = {"source": flow.name, "key": "k2", "value": "wrong", WRITE_TS: 30}
        store.write(STREAM_ROWS, pa.RecordBatch.from_pylist([wrong], schema=STREAM_ROWS.schema))
        assert job.main("rows", stream_rows.parse(arguments)) == 6
        said = capsys.readouterr().out
        assert "1 differs, of 7 rows; batches 3" in said
        assert f"differs stream_rows batch 3 source='{flow.name}' key='k2'" in said
        assert job.main("rows", stream_rows.parse([*arguments, "--to-batch", "4"])) == 2, "ahead of the job"
