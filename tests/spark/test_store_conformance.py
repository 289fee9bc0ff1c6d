"""What every store promises (`stores.store`), run on each of them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import Cluster, Session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.stores import WRITE_TS, Clustering, Column, ColumnType, Store, StoreTable, limits, open_store
from oncegate.stores.cassandra import sending
from oncegate.stores.devcassandra import DevCluster
from oncegate.stores.errors import BadRows, Rejected, StoreCode, StoreError
from oncegate.stores.limits import KEY_BYTES_MAX, ROW_BYTES_MAX
from tests.spark.patience import PATIENT

NOTES = StoreTable(
    name="notes",
    columns=(
        Column("owner", ColumnType.TEXT),
        Column("shelf", ColumnType.INT64),
        Column("place", ColumnType.INT64),
        Column("number", ColumnType.INT64),
        Column("text", ColumnType.TEXT),
        Column("raw", ColumnType.BLOB),
    ),
    partition_key=("owner", "shelf"),
    clustering=(Clustering("place", descending=True),),
)
POSTS = StoreTable(
    name="posts",
    columns=(
        Column("owner", ColumnType.TEXT),
        Column("commit", ColumnType.INT64),
        Column("trace", ColumnType.TEXT, nullable=True),
        Column("raw", ColumnType.BLOB, nullable=True),
        Column("text", ColumnType.TEXT),
    ),
    partition_key=("owner",),
    clustering=(Clustering("commit"),),
)
LARGEST = 2**63 - 1


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        opened.create([NOTES, POSTS])
        yield opened


def row(place: int, ts: int, **values: Any) -> dict[str, Any]:
    return {"owner": "ann", "shelf": 1, "place": place, "number": 5, "text": "t", "raw": b"r", WRITE_TS: ts, **values}


def rows(*found: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=NOTES.schema)


def keys(*found: tuple[int, int]) -> pa.RecordBatch:
    columns = [{"owner": "ann", "shelf": 1, "place": place, WRITE_TS: ts} for place, ts in found]
    return pa.RecordBatch.from_pylist(columns, schema=NOTES.key_schema)


def all_rows(store: Store) -> list[dict[str, Any]]:
    found = [row for batch in store.scan(NOTES) for row in batch.to_pylist()]
    return sorted(found, key=lambda one: (one["owner"], one["shelf"], -one["place"]))


def test_rows_come_back_with_every_value_and_their_timestamp(store: Store) -> None:
    wide = row(2, LARGEST, owner="ÿ \x01 '\"", shelf=-(2**63), number=-(2**63), text="", raw=bytes(range(256)))
    store.write(NOTES, rows(row(1, 7), wide))
    assert all_rows(store) == [row(1, 7), wide]
    assert store.get(NOTES, {"owner": "ann", "shelf": 1, "place": 1}) == row(1, 7)
    assert store.get(NOTES, {"owner": wide["owner"], "shelf": -(2**63), "place": 2}) == wide
    assert store.get(NOTES, {"owner": "ann", "shelf": 1, "place": 9}) is None
    assert store.count(NOTES) == 2


def test_newer_write_wins_in_either_order(store: Store) -> None:
    store.write(NOTES, rows(row(1, 10, text="old"), row(2, 20, text="new")))
    store.write(NOTES, rows(row(1, 20, text="new"), row(2, 10, text="old")))
    assert [found["text"] for found in all_rows(store)] == ["new", "new"]
    assert [found[WRITE_TS] for found in all_rows(store)] == [20, 20]


def test_newest_of_one_key_wins_within_a_batch(store: Store) -> None:
    store.write(NOTES, rows(row(1, 2, text="b"), row(1, 3, text="a"), row(1, 1, text="c")))
    assert all_rows(store) == [row(1, 3, text="a")]


def test_equal_timestamp_larger_value_wins_as_unsigned_bytes(store: Store) -> None:
    store.write(NOTES, rows(row(1, 5, number=-1, text="b", raw=b"\x01"), row(2, 5, number=3, text="Z", raw=b"")))
    store.write(NOTES, rows(row(1, 5, number=2, text="a", raw=b"\xff"), row(2, 5, number=-9, text="a", raw=b"\x00")))
    assert all_rows(store) == [
        row(2, 5, number=-9, text="a", raw=b"\x00"),
        row(1, 5, number=-1, text="b", raw=b"\xff"),
    ]


def test_deletion_at_equal_timestamp_beats_write_in_either_order(store: Store) -> None:
    store.write(NOTES, rows(row(1, 5)))
    store.delete(NOTES, keys((1, 5), (2, 5)))
    store.write(NOTES, rows(row(2, 5)))
    assert all_rows(store) == []
    assert store.count(NOTES) == 0
    assert store.get(NOTES, {"owner": "ann", "shelf": 1, "place": 1}) is None


def test_older_write_stays_dead_and_newer_one_lives(store: Store) -> None:
    store.delete(NOTES, keys((1, 10), (2, 10), (3, 10)))
    store.write(NOTES, rows(row(1, 9), row(2, 11)))
    store.delete(NOTES, keys((2, 10)))
    assert all_rows(store) == [row(2, 11)]


def test_rewriting_old_batches_between_newer_ones_changes_nothing(store: Store) -> None:
    batches = [rows(*(row(place, ts, text=f"{ts}") for place in range(20))) for ts in range(1, 6)]
    chosen = random.Random(7)
    for batch in [*batches, *chosen.choices(batches, k=20)]:
        store.write(NOTES, batch)
    assert all_rows(store) == [row(place, 5, text="5") for place in reversed(range(20))]


def test_rows_of_many_partitions_and_a_large_row_arrive(store: Store) -> None:
    many = [row(place % 7, 1 + place, owner=f"user {place}", shelf=place) for place in range(5_000)]
    store.write(NOTES, rows(*many, row(1, 1, raw=b"x" * 200_000)))
    assert store.count(NOTES) == 5_001
    assert sum(len(found["raw"]) for found in all_rows(store)) == 205_000


def test_empty_batches_are_fine(store: Store) -> None:
    store.write(NOTES, rows())
    store.delete(NOTES, keys())
    assert all_rows(store) == []


def test_creating_again_keeps_rows_and_another_shape_is_refused(store: Store) -> None:
    store.write(NOTES, rows(row(1, 1)))
    store.create([NOTES])
    assert store.count(NOTES) == 1
    other = StoreTable(
        "notes", (*NOTES.columns, Column("more", ColumnType.INT64)), NOTES.partition_key, NOTES.clustering
    )
    with pytest.raises(StoreError) as refused:
        store.create([other])
    assert refused.value.code is StoreCode.STORE_MISMATCH


def test_rows_that_do_not_fit_are_refused(store: Store) -> None:
    loose = pa.schema([field.with_nullable(True) for field in NOTES.schema])
    bad = {
        "null": pa.RecordBatch.from_pylist([row(1, 1, text=None)], schema=loose),
        "type": rows(row(1, 1)).set_column(3, "number", pa.array(["5"])),
        "missing": rows(row(1, 1)).drop_columns(["raw"]),
        "timestamp": rows(row(1, 0)),
    }
    for batch in bad.values():
        with pytest.raises(StoreError) as refused:
            store.write(NOTES, batch)
        assert refused.value.code is StoreCode.BAD_ROWS
    assert store.count(NOTES) == 0


ONE = StoreTable("one", (Column("key", ColumnType.TEXT), Column("raw", ColumnType.BLOB)), ("key",))


def test_rows_over_the_limits_are_named_and_all_others_are_written(store: Store) -> None:
    store.create([ONE])
    longest, long, large = "k" * KEY_BYTES_MAX, "k" * (KEY_BYTES_MAX + 1), b"x" * (ROW_BYTES_MAX + 1)
    cells = [("", b""), (longest, b""), ("a", b""), (long, b""), ("b", large), ("c", large[:-2]), ("d", None)]
    loose = pa.schema([field.with_nullable(True) for field in ONE.schema])
    for _ in range(2):
        given = [{"key": key, "raw": raw, WRITE_TS: 1 + (key == "a")} for key, raw in cells]
        given.append({"key": "e", "raw": b"", WRITE_TS: 0})
        with pytest.raises(BadRows) as refused:
            store.write(ONE, pa.RecordBatch.from_pylist(given, schema=loose))
        assert [one.index for one in refused.value.rejected] == [0, 3, 4, 6, 7]
        assert refused.value.code is StoreCode.BAD_ROWS
        assert len(str(refused.value)) < 500
        assert store.count(ONE) == 3
    with pytest.raises(BadRows) as refused:
        store.delete(ONE, pa.RecordBatch.from_pylist([{"key": key, WRITE_TS: 3} for key, _ in cells], ONE.key_schema))
    assert [one.index for one in refused.value.rejected] == [0, 3]
    assert store.count(ONE) == 0


def test_limit_of_keys_is_of_the_serialised_partition_and_of_all_clustering_columns(store: Store) -> None:
    pair = StoreTable(
        "pair",
        (*(Column(name, ColumnType.TEXT) for name in "abcd"), Column("n", ColumnType.INT64)),
        ("a", "b"),
        (Clustering("c"), Clustering("d")),
    )
    store.create([pair])
    # Two lengths and two ends, of three bytes together, frame two values.
    cells = [
        ("", "", "", ""),
        ("a" * (KEY_BYTES_MAX - 7), "b", "", ""),
        ("a" * (KEY_BYTES_MAX - 6), "b", "", ""),
        ("a", "b", "c" * (KEY_BYTES_MAX - 1), "d"),
        ("a", "b", "c" * KEY_BYTES_MAX, "d"),
    ]
    given = [dict(zip("abcd", cell, strict=True)) | {"n": 1, WRITE_TS: 1} for cell in cells]
    with pytest.raises(BadRows) as refused:
        store.write(pair, pa.RecordBatch.from_pylist(given, schema=pair.schema))
    assert [one.index for one in refused.value.rejected] == [2, 4]
    assert store.count(pair) == 3


def test_text_that_is_none_is_refused_and_the_rest_is_written(store: Store) -> None:
    broken = pa.array([b"a", b"\xff", b"b"], pa.binary()).view(pa.string())
    batch = rows(row(1, 1), row(2, 1), row(3, 1)).set_column(4, NOTES.schema.field("text"), broken)
    with pytest.raises(BadRows) as refused:
        store.write(NOTES, batch)
    assert refused.value.rejected == (Rejected(1, "text is not UTF-8"),)
    assert [found["text"] for found in all_rows(store)] == ["b", "a"]


def test_refused_rows_survive_pickling() -> None:
    """Spark carries a task's error to the driver so; we pickle nothing ourselves."""
    error = BadRows([Rejected(index, "the key is empty") for index in range(1_000)])
    assert pickle.loads(pickle.dumps(error)).rejected == error.rejected
    assert "997 more" in str(error)


def post(commit: int, owner: str, trace: str | None, raw: bytes | None) -> dict[str, Any]:
    return {"owner": owner, "commit": commit, "trace": trace, "raw": raw, "text": "t", WRITE_TS: commit}


@pytest.mark.parametrize(
    "cells",
    [
        [("00-a", b"1"), (None, None), ("00-b", None), ("", b""), (None, b"22")],
        [("00-a", None), ("00-b", None)],
        [(None, None), (None, None)],
    ],
)
def test_nulls_come_back_as_nulls_however_often_they_are_written(store: Store, cells: list[Any]) -> None:
    found = [post(commit, f"user {commit % 2}", *cell) for commit, cell in enumerate(cells, 1)]
    batch = pa.RecordBatch.from_pylist(found, schema=POSTS.schema)
    for part in (batch, batch, batch.slice(1)):
        store.write(POSTS, part)
    read = [row for part in store.scan(POSTS) for row in part.to_pylist()]
    assert sorted(read, key=lambda row: row["commit"]) == found
    for row in found:
        assert store.get(POSTS, {"owner": row["owner"], "commit": row["commit"]}) == row


def test_null_of_a_row_that_never_changes_loses_to_any_value_in_either_order(store: Store) -> None:
    for cells in ((None, "a"), ("", None)), (("a", None), (None, "")):
        for at in (0, 1):
            found = [post(commit, "ann", cell[at], None) for commit, cell in enumerate(cells, 1)]
            store.write(POSTS, pa.RecordBatch.from_pylist(found, schema=POSTS.schema))
        read = [row for part in store.scan(POSTS) for row in part.to_pylist()]
        assert [row["trace"] for row in sorted(read, key=lambda row: row["commit"])] == ["a", ""]


def test_deleted_row_with_nulls_stays_dead(store: Store) -> None:
    rows = pa.RecordBatch.from_pylist([post(1, "ann", "00-a", None)], schema=POSTS.schema)
    store.write(POSTS, rows)
    store.delete(POSTS, pa.RecordBatch.from_pylist([post(1, "ann", None, None)], schema=POSTS.key_schema))
    store.write(POSTS, rows)
    assert store.count(POSTS) == 0


def test_two_stores_at_one_place_see_the_same(store_url: str, store: Store) -> None:
    with open_store(store_url) as other:
        other.create([NOTES])
        other.write(NOTES, rows(row(1, 1)))
        store.write(NOTES, rows(row(2, 1)))
        assert all_rows(other) == all_rows(store) == [row(2, 1), row(1, 1)]


def test_cleared_table_has_forgotten_rows_and_deletions_and_its_tables_are_still_there(store: Store) -> None:
    store.write(NOTES, rows(row(1, 10)))
    store.delete(NOTES, keys((2, 10)))
    store.clear(["notes"])
    store.clear([])
    assert (all_rows(store), store.count(NOTES)) == ([], 0)
    store.write(NOTES, rows(row(1, 1), row(2, 1)))
    assert all_rows(store) == [row(2, 1), row(1, 1)]
    assert store.tables() == ["notes", "posts"]


def test_durability_is_stated(store: Store) -> None:
    assert "survives" in store.durability()


@pytest.mark.cassandra
def test_write_that_timed_out_after_it_was_done_converges_on_one_row_and_beats_nothing_newer(
    cassandra: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 38: between the time-out and the retry somebody even writes the row again, with a newer timestamp."""
    url = cassandra.url("timeouts")
    with open_store(url) as store:
        store.create([NOTES])
        send, sent = sending.send_once, []

        def silent_once(session: Session, batches: Sequence[Any], in_flight: int) -> tuple[list[Any], list[Any]]:
            unsent, failures = send(session, batches, in_flight)
            assert not unsent
            assert not failures
            sent.append(len(batches))
            if len(sent) == 1:
                with open_store(url) as other:
                    other.write(NOTES, rows(row(2, 20, text="newer")))
                return [], [(batch, OperationTimedOut()) for batch in batches]
            return unsent, failures

        monkeypatch.setattr(sending, "send_once", silent_once)
        store.write(NOTES, rows(row(1, 10, text="once"), row(2, 10, text="older")))
        assert len(sent) == 3, "ours, the other's, and ours again, in halves"
        assert all_rows(store) == [row(2, 20, text="newer"), row(1, 10, text="once")]


@pytest.mark.cassandra
def test_row_that_only_the_server_refuses_is_found_by_halving(
    cassandra: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES_MAX", 2**30)
    with open_store(cassandra.url("halving")) as store:
        store.create([NOTES, ONE])
        given = [row(place, 1, owner="ann", raw=b"r" * 100) for place in range(50, 0, -1)]
        given[17]["raw"] = b"x" * 9 * 2**20
        with pytest.raises(BadRows) as refused:
            store.write(NOTES, rows(*given))
        assert [one.index for one in refused.value.rejected] == [17]
        assert "oversized" in refused.value.rejected[0].reason
        assert "ann" not in str(refused.value)
        assert store.count(NOTES) == 49


@pytest.mark.cassandra
def test_rows_of_many_partitions_travel_together_and_the_server_warns_of_none(
    cassandra: DevCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send, counts = sending.send_once, []

    def counted(session: Session, batches: Sequence[Any], in_flight: int) -> Any:
        counts.extend(batch.count for batch in batches)
        return send(session, batches, in_flight)

    monkeypatch.setattr(sending, "send_once", counted)
    # The bound is the very threshold above which the server warns.
    with open_store(f"{cassandra.url('together')}?batch_bytes={64 * 1024}") as store:
        store.create([NOTES])
        many = [row(at % 10, 1, owner=f"user {at // 10}", raw=b"r" * (at % 150)) for at in range(8_000)]
        store.write(NOTES, rows(*many))
        assert store.count(NOTES) == 8_000
        assert len(counts) < 50
        store.delete(NOTES, rows(*many).select(NOTES.key_schema.names))
        assert store.count(NOTES) == 0
        assert sum(counts) == 16_000
    assert "Server warning" not in caplog.text


@pytest.mark.cassandra
def test_table_that_went_away_makes_no_row_a_bad_one(cassandra: DevCluster) -> None:
    with (
        open_store(cassandra.url("gone")) as store,
        Cluster(["127.0.0.1"], cassandra.config.native_port, **PATIENT) as other,
    ):
        store.create([NOTES])
        store.write(NOTES, rows(row(1, 1)))
        other.connect().execute("DROP TABLE gone.notes")
        with pytest.raises(StoreError) as refused:
            store.write(NOTES, rows(row(1, 1), row(2, 1)))
        assert refused.value.code is StoreCode.STORE_MISMATCH


@pytest.mark.cassandra
def test_only_create_makes_a_keyspace_and_all_else_names_the_command(cassandra: DevCluster) -> None:
    url, key = cassandra.url("misspelt"), {"owner": "ann", "shelf": 1, "place": 1}
    with open_store(url) as store:
        for use in (
            lambda: store.get(NOTES, key),
            lambda: store.count(NOTES),
            lambda: list(store.scan(NOTES)),
            lambda: store.write(NOTES, rows(row(1, 1))),
            lambda: store.delete(NOTES, keys((1, 1))),
        ):
            with pytest.raises(StoreError, match="oncegate store init") as refused:
                use()
            assert refused.value.code is StoreCode.STORE_MISMATCH
        with Cluster(["127.0.0.1"], cassandra.config.native_port, **PATIENT) as other:
            other.connect()
            assert "misspelt" not in other.metadata.keyspaces
        store.create([NOTES])
        assert store.get(NOTES, key) is None
        with pytest.raises(StoreError, match="oncegate store init"):
            store.get(POSTS, {"owner": "ann", "commit": 1})


@pytest.mark.cassandra
def test_nullable_column_of_a_newer_declaration_is_added_while_the_older_one_writes(cassandra: DevCluster) -> None:
    newer = replace(POSTS, columns=(*POSTS.columns, Column("extra", ColumnType.TEXT, nullable=True)))
    with open_store(cassandra.url("widened")) as old, open_store(cassandra.url("widened")) as new:
        old.create([POSTS])
        old.write(POSTS, pa.RecordBatch.from_pylist([post(1, "ann", "a", None)], schema=POSTS.schema))
        new.create([newer])
        rows = [post(2, "ann", "b", None) | {"extra": "x"}]
        new.write(newer, pa.RecordBatch.from_pylist(rows, schema=newer.schema))
        old.write(POSTS, pa.RecordBatch.from_pylist([post(3, "ann", "c", None)], schema=POSTS.schema))
        old.create([POSTS])
        found = [row for part in new.scan(newer) for row in part.to_pylist()]
        assert sorted((row["commit"], row["extra"]) for row in found) == [(1, None), (2, "x"), (3, None)]
        assert old.count(POSTS) == 3


_example = count()
_write = st.tuples(
    st.just("write"),
    st.integers(0, 2),
    st.integers(1, 4),
    st.fixed_dictionaries(
        {
            "number": st.sampled_from([-(2**63), -1, 0, 1, LARGEST]),
            "text": st.sampled_from(["", "a", "b", "é"]),
            "raw": st.sampled_from([b"", b"\0", b"\xff"]),
        }
    ),
)
_delete = st.tuples(st.just("delete"), st.integers(0, 2), st.integers(1, 4), st.none())


@given(script=st.lists(st.lists(st.one_of(_write, _delete), min_size=1, max_size=6), max_size=6), repeats=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_store_agrees_with_a_dictionary(store: Store, script: list[list[Any]], repeats: st.DataObject) -> None:
    owner = f"example {next(_example)}"
    model: dict[int, tuple[int, bool, dict[str, Any]]] = {}
    again = repeats.draw(st.lists(st.sampled_from(script), max_size=3)) if script else []
    for batch in [*script, *again]:
        written = [row(place, ts, owner=owner, **values) for kind, place, ts, values in batch if kind == "write"]
        deleted = [(place, ts) for kind, place, ts, _ in batch if kind == "delete"]
        store.write(NOTES, rows(*written))
        store.delete(
            NOTES, keys(*deleted).set_column(0, NOTES.key_schema[0], pa.array([owner] * len(deleted), "string"))
        )
        for kind, place, ts, values in batch:
            _apply(model, place, ts, None if kind == "delete" else values)
    alive = {place: (ts, values) for place, (ts, dead, values) in model.items() if not dead}
    found = {one["place"]: one for one in all_rows(store) if one["owner"] == owner}
    assert found == {place: row(place, ts, owner=owner, **values) for place, (ts, values) in alive.items()}


def _apply(model: dict[int, Any], place: int, ts: int, values: dict[str, Any] | None) -> None:
    """The rule, by the letter: larger timestamp; then deletion; then larger value of each column."""
    known = model.get(place)
    if known is None or ts > known[0] or (ts == known[0] and values is None):
        model[place] = (ts, values is None, values or {})
    elif ts == known[0] and not known[1] and values is not None:
        model[place] = (ts, False, {name: max(values[name], known[2][name], key=_unsigned) for name in values})


def _unsigned(value: Any) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(8, "big", signed=True)
    return value.encode() if isinstance(value, str) else value
