"""Types, nulls, partial updates, ranges and ends of rows: the same in every store (`stores.store`)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from cassandra import cqltypes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.stores import WRITE_TS, Clustering, Column, ColumnType, ListOf, MapOf, Store, StoreTable, open_store
from oncegate.stores.cells import cells_of, sortable, unsorted, values_of
from oncegate.stores.column_types import AnyType, name_of, type_of
from oncegate.stores.devcassandra import DevCluster
from oncegate.stores.errors import BadRows, StoreCode, StoreError

TEXT, INT64 = ColumnType.TEXT, ColumnType.INT64
TIME = datetime(2026, 7, 1, 12, tzinfo=UTC)
ONE = uuid.UUID("00112233-4455-4677-8899-aabbccddeeff")
OTHER = uuid.UUID("00112233-4455-1677-8899-aabbccddeeff")
SCALARS: dict[AnyType, list[Any]] = {
    INT64: [-(2**63), -1, 0, 7, 2**63 - 1],
    ColumnType.FLOAT64: [float("-inf"), -2.5, -1e-300, 0.0, 0.1, 1e300, float("inf")],
    ColumnType.DECIMAL: [Decimal(text) for text in ("-7", "-0.000000001", "0", "0.000000127", "128", "9" * 29 + ".5")],
    TEXT: ["", "a", "z", "é"],
    ColumnType.BLOB: [b"", b"\0", b"a", b"\xff"],
    ColumnType.BOOL: [False, True],
    ColumnType.TIMESTAMP: [datetime(1, 1, 1, tzinfo=UTC), TIME, TIME + timedelta(milliseconds=1)],
    ColumnType.UUID: [uuid.UUID(int=0), OTHER, ONE],
    ColumnType.JSON: ["{}", '{"a": [1, null]}', "3"],
}
NESTED: dict[AnyType, list[Any]] = {
    ListOf(TEXT): [[], ["b", "a", "b"], ["é"]],
    ListOf(ColumnType.TIMESTAMP): [[], [TIME]],
    MapOf(INT64): [{}, {"b": -1, "a": 2}, {"": 0}],
    MapOf(ColumnType.DECIMAL): [{"x": Decimal("1.5")}],
}
VALUES = SCALARS | NESTED
KEY_TYPES = [kind for kind in SCALARS if kind is not ColumnType.JSON]


def column_of(kind: AnyType) -> str:
    return "v_" + "".join(letter if letter.isalnum() else "_" for letter in name_of(kind)).strip("_")


ALL = StoreTable(
    "all_types",
    (Column("k", TEXT), *(Column(column_of(kind), kind, nullable=True) for kind in VALUES)),
    ("k",),
)
CELLS = replace(ALL, name="all_cells", partial=True)
"""Cells with timestamps of their own."""
STAYS = replace(ALL, name="all_certain", columns=(*ALL.columns, Column("certain", INT64)))
VISITS = StoreTable("visits", (Column("room", TEXT), Column("guest", INT64)), ("room",), (Clustering("guest"),))
"""A key, and nothing else."""
TABLES = [ALL, CELLS, STAYS, VISITS]


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        opened.create(TABLES)
        yield opened


def rows(table: StoreTable, *found: dict[str, Any], schema: pa.Schema | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=schema or table.schema)


def all_rows(store: Store, table: StoreTable) -> list[dict[str, Any]]:
    return [row for part in store.scan(table) for row in part.to_pylist(maps_as_pydicts="strict")]


def test_every_type_comes_back_with_value_and_timestamp_and_so_does_null(store: Store) -> None:
    for table in (ALL, CELLS):
        widest = max(map(len, VALUES.values()))
        given = [
            {"k": f"k{at}", WRITE_TS: at + 1}
            | {column_of(kind): values[at] if at < len(values) else None for kind, values in VALUES.items()}
            for at in range(widest + 1)
        ]
        store.write(table, rows(table, *given))
        assert sorted(all_rows(store, table), key=lambda row: row["k"]) == given
        assert [store.get(table, {"k": row["k"]}) for row in given] == given
        assert store.count(table) == len(given)


def test_names_of_types_are_read_back() -> None:
    assert [type_of(name_of(kind)) for kind in VALUES] == list(VALUES)
    for table in TABLES:
        assert StoreTable.from_json(table.to_json()) == table


@pytest.mark.parametrize("kind", VALUES, ids=name_of)
def test_a_slice_of_a_column_has_the_cells_of_its_own_values(kind: AnyType) -> None:
    values = pa.array([*VALUES[kind], None, VALUES[kind][-1]], kind.arrow)
    whole = cells_of(values, kind)[0]
    shown = values_of(whole, kind).to_pylist()
    for at in range(1, len(values)):
        assert cells_of(values.slice(at), kind)[0].equals(whole.slice(at))
        assert values_of(whole.slice(at), kind).to_pylist() == shown[at:]
    if kind in KEY_TYPES:
        cells = whole.drop_null()
        keys = sortable(cells, kind)
        for at in range(1, len(cells)):
            assert sortable(cells.slice(at), kind).equals(keys.slice(at))
            assert unsorted(keys.slice(at), kind).equals(cells.slice(at))


def test_a_decimal_that_another_client_wrote_with_another_scale_is_read_by_its_value() -> None:
    def cell(scale: int, unscaled: int) -> bytes:
        return scale.to_bytes(4, signed=True) + unscaled.to_bytes(9, signed=True)

    written = pa.array([cell(2, -150), cell(9, 1), cell(-3, 4), cell(11, 12_345)], pa.binary())
    expected = [Decimal("-1.5"), Decimal("0.000000001"), Decimal(4000), Decimal("0.000000123")]
    assert values_of(written, ColumnType.DECIMAL).to_pylist() == expected
    ordered = sortable(written, ColumnType.DECIMAL).to_pylist()
    assert sorted(range(4), key=ordered.__getitem__) == [0, 1, 3, 2]


@pytest.mark.parametrize("kind", KEY_TYPES, ids=name_of)
def test_every_type_is_a_key_and_a_partition_has_its_order(store: Store, kind: AnyType) -> None:
    name = column_of(kind)
    for descending in (False, True):
        table = StoreTable(
            f"by_{name}_{descending}".lower(),
            (Column("p", kind), Column("c", kind), Column("n", INT64)),
            ("p",),
            (Clustering("c", descending=descending),),
        )
        store.create([table])
        values = SCALARS[kind]
        # An empty text is a partition key that no store takes.
        parts = [value for value in values if value not in ("", b"")]
        given = [{"p": part, "c": value, "n": at, WRITE_TS: 1} for part in parts for at, value in enumerate(values)]
        random.Random(7).shuffle(given)
        store.write(table, rows(table, *given))
        for part in parts:
            found = store.range(table, {"p": part}).to_pylist()
            expected = sorted(enumerate(values), reverse=descending)
            if kind is ColumnType.UUID:
                # Cassandra orders by version first.
                expected = [(0, values[0]), (1, OTHER), (2, ONE)][:: -1 if descending else 1]
            assert [(row["n"], row["c"]) for row in found] == expected
            assert [row["p"] for row in found] == [part] * len(values)
        key = {"p": parts[0], "c": values[-1]}
        assert store.get(table, key) == {**key, "n": len(values) - 1, WRITE_TS: 1}
        store.delete(table, rows(table, {**key, WRITE_TS: 2}, schema=table.key_schema))
        assert store.get(table, key) is None
        assert store.count(table) == len(given) - 1


def test_values_that_are_none_of_their_type_are_refused_by_row_and_the_rest_is_written(store: Store) -> None:
    def broken(name: str, *values: Any) -> pa.RecordBatch:
        batch = rows(ALL, *({"k": f"k{at}", WRITE_TS: 1} for at in range(len(values))))
        field = ALL.schema.field(name)
        return batch.set_column(batch.schema.get_field_index(name), field, pa.array(values, field.type))

    late = pa.array([253_402_300_800_000, 0], pa.int64()).cast(ColumnType.TIMESTAMP.arrow)
    for name, values, why in (
        ("v_float64", [float("nan"), 1.0], "v_float64 is NaN"),
        ("v_json", ["{", "{}"], "v_json is wrong: Input data was truncated"),
        ("v_list_text", [["a", None], []], "v_list_text is wrong: an element is null"),
        ("v_map_text__int64", [[("a", 1), ("a", 2)], []], "v_map_text__int64 is wrong: a key repeats"),
        ("v_timestamp", late, "v_timestamp is not in the years 1 to 9999"),
    ):
        with pytest.raises(BadRows) as refused:
            store.write(ALL, broken(name, *values))
        assert [(one.index, one.reason) for one in refused.value.rejected] == [(0, why)]
        assert [row["k"] for row in all_rows(store, ALL)] == ["k1"]


def test_null_overwrites_what_is_older_and_beats_a_value_of_its_own_timestamp(store: Store) -> None:
    for table in (ALL, CELLS, STAYS):
        for first, second, left in ((1, 2, None), (2, 1, "a"), (2, 2, None)):
            for swapped in (False, True):
                key = f"{first} {second} {swapped}"
                more = {"certain": 1} if table is STAYS else {}
                writes = [
                    {"k": key, "v_text": "a", "v_int64": -1, "v_list_text": ["a"], WRITE_TS: first, **more},
                    {"k": key, WRITE_TS: second, **more},
                ]
                for write in writes[:: -1 if swapped else 1]:
                    store.write(table, rows(table, write))
                found = store.get(table, {"k": key})
                assert found is not None
                assert (found["v_text"], found["v_int64"]) == (left, left and -1)
                assert found["v_list_text"] == (left and ["a"])


def test_table_of_keys_alone_keeps_deletes_and_counts_them(store: Store) -> None:
    def visit(guest: int, ts: int) -> dict[str, Any]:
        return {"room": "r", "guest": guest, WRITE_TS: ts}

    for _ in range(2):
        store.write(VISITS, rows(VISITS, *(visit(guest, 5) for guest in range(4))))
        store.delete(VISITS, rows(VISITS, visit(1, 5), visit(2, 4), visit(3, 6), schema=VISITS.key_schema))
    store.write(VISITS, rows(VISITS, visit(3, 7)))
    assert store.range(VISITS, {"room": "r"}).to_pylist() == [visit(0, 5), visit(2, 5), visit(3, 7)]
    assert store.count(VISITS) == 3


@pytest.mark.cassandra
def test_table_full_of_nulls_is_scanned_and_read_in_order(cassandra: DevCluster) -> None:
    """A server refuses to read a page over 100,000 tombstones: nulls are some."""
    names = [f"n{at}" for at in range(24)]
    table = StoreTable(
        "sparse",
        (Column("p", TEXT), Column("c", INT64), *(Column(name, TEXT, nullable=True) for name in names)),
        ("p",),
        (Clustering("c"),),
    )
    count = 5_000
    with open_store(cassandra.url("sparse")) as store:
        store.create([table])
        store.write(table, rows(table, *({"p": "a", "c": at, WRITE_TS: 1} for at in range(count))))
        assert store.count(table) == count
        assert sum(part.num_rows for part in store.scan(table)) == count
        assert store.range(table, {"p": "a"}, limit=count).num_rows == count


def test_update_writes_the_named_cells_and_a_row_that_is_not_there_comes_to_be(store: Store) -> None:
    def update(ts: int, **values: Any) -> None:
        store.update(CELLS, rows(CELLS, {"k": "a", WRITE_TS: ts, **values}, schema=CELLS.update_schema(values)))

    def found() -> dict[str, Any]:
        row = store.get(CELLS, {"k": "a"})
        return {} if row is None else {name: value for name, value in row.items() if value is not None and name != "k"}

    update(5, v_text="t5")
    update(3, v_text="t3", v_int64=3)
    assert found() == {"v_text": "t5", "v_int64": 3, WRITE_TS: 5}
    update(6, v_int64=None)
    update(4, v_int64=4)
    assert found() == {"v_text": "t5", WRITE_TS: 6}
    gone = {"k": "a", WRITE_TS: 5}
    store.delete(CELLS, rows(CELLS, gone, schema=CELLS.key_schema))
    assert found() == {WRITE_TS: 6}, "the deletion is newer than the text, and older than the row"
    store.delete(CELLS, rows(CELLS, {**gone, WRITE_TS: 8}, schema=CELLS.key_schema))
    update(8, v_text="dead")
    assert (found(), store.count(CELLS)) == ({}, 0)
    update(9, v_bool=True)
    assert found() == {"v_bool": True, WRITE_TS: 9}


def test_updates_of_other_tables_and_of_no_column_are_refused(store: Store) -> None:
    for table, names in ((ALL, ["v_text"]), (CELLS, []), (CELLS, ["else"])):
        with pytest.raises(StoreError) as refused:
            table.update_schema(["k", *names, WRITE_TS])
        assert refused.value.code is StoreCode.BAD_ROWS
    with pytest.raises(StoreError) as refused:
        store.update(ALL, rows(ALL, {"k": "a", "v_text": "b", WRITE_TS: 1}))
    assert refused.value.code is StoreCode.BAD_ROWS


def test_declarations_that_no_store_could_keep_are_refused() -> None:
    key, text = Column("k", TEXT), Column("text", TEXT)
    ends = Column("ends", ColumnType.TIMESTAMP, nullable=True)
    for columns, more in (
        ((key, text), {"partial": True}),
        ((key,), {"partial": True}),
        ((key, ends), {"partial": True, "expires": "ends"}),
        ((key, text), {"expires": "text"}),
        ((key, text), {"expires": "ends"}),
        ((key, replace(ends, nullable=False)), {"expires": "ends"}),
        ((replace(key, nullable=True), text), {}),
        ((replace(key, type=ListOf(TEXT)), text), {}),
        ((replace(key, type=ColumnType.JSON), text), {}),
        ((key, Column("oncegate_row", ColumnType.BOOL)), {}),
    ):
        with pytest.raises(StoreError) as refused:
            StoreTable("refused", columns, ("k",), **more)
        assert refused.value.code is StoreCode.BAD_TABLE


CQL: dict[AnyType, Any] = {
    INT64: cqltypes.LongType,
    ColumnType.FLOAT64: cqltypes.DoubleType,
    ColumnType.DECIMAL: cqltypes.DecimalType,
    TEXT: cqltypes.UTF8Type,
    ColumnType.BLOB: cqltypes.BytesType,
    ColumnType.BOOL: cqltypes.BooleanType,
    ColumnType.TIMESTAMP: cqltypes.DateType,
    ColumnType.UUID: cqltypes.UUIDType,
    ColumnType.JSON: cqltypes.UTF8Type,
}


def cql_bytes(kind: AnyType, value: Any) -> bytes:
    """The bytes by which Cassandra compares two cells, as its driver makes them."""
    match kind:
        case ListOf(element):
            return bytes(cqltypes.ListType.apply_parameters([CQL[element]]).serialize(value, 4))
        case MapOf(element):
            if element is ColumnType.DECIMAL:
                value = {key: one.quantize(Decimal("1e-9")) for key, one in value.items()}
            return bytes(
                cqltypes.MapType.apply_parameters([CQL[TEXT], CQL[element]]).serialize(dict(sorted(value.items())), 4)
            )
        case ColumnType.DECIMAL:
            return bytes(CQL[kind].serialize(pa.scalar(value, kind.arrow).as_py(), 4))
        case _:
            return bytes(CQL[kind].serialize(value, 4))


class Model:
    """The rule, by the letter, of one row: each cell, the row's mark and the deletion have a timestamp."""

    def __init__(self) -> None:
        self.cells: dict[str, tuple[int, Any]] = {}
        self.written = self.deleted = 0

    def write(self, ts: int, values: dict[str, Any]) -> None:
        self.written = max(self.written, ts)
        for name, value in values.items():
            known, old = self.cells.get(name, (0, None))
            if ts == known:
                kind = next(column.type for column in ALL.columns if column.name == name)
                tied = None in (value, old)
                value = None if tied else max(value, old, key=lambda one: cql_bytes(kind, one))
            if ts >= known:
                self.cells[name] = (ts, value)

    def delete(self, ts: int) -> None:
        self.deleted = max(self.deleted, ts)

    def row(self, key: str) -> dict[str, Any] | None:
        if self.written <= self.deleted:
            return None
        alive = {name: value for name, (ts, value) in self.cells.items() if ts > self.deleted}
        return {"k": key, **{column.name: alive.get(column.name) for column in ALL.values}, WRITE_TS: self.written}


_example = count()
_cells = {column_of(kind): st.none() | st.sampled_from(values) for kind, values in VALUES.items()}
_whole = st.tuples(st.just("write"), st.integers(1, 4), st.fixed_dictionaries(_cells))
_some = st.tuples(
    st.just("update"),
    st.integers(1, 4),
    st.sets(st.sampled_from(sorted(_cells)), min_size=1, max_size=4).flatmap(
        lambda names: st.fixed_dictionaries({name: _cells[name] for name in sorted(names)})
    ),
)
_delete = st.tuples(st.just("delete"), st.integers(1, 4), st.none())


@pytest.mark.parametrize("table", [ALL, CELLS], ids=["rows", "cells"])
@given(data=st.data(), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_writes_in_any_order_and_number_end_as_the_rule_says(
    store: Store, table: StoreTable, data: st.DataObject, seed: int
) -> None:
    kinds = [_whole, _delete] if table is ALL else [_whole, _some, _delete]
    script = data.draw(st.lists(st.one_of(kinds), min_size=1, max_size=8))
    chosen = random.Random(seed)
    again = [*script, *chosen.choices(script, k=3)]
    chosen.shuffle(again)
    key, model = f"example {next(_example)}", Model()
    for kind, ts, values in again:
        row = {"k": key, WRITE_TS: ts, **(values or {})}
        if kind == "delete":
            model.delete(ts)
            store.delete(table, rows(table, row, schema=table.key_schema))
            continue
        assert values is not None
        model.write(ts, values)
        if kind == "update":
            store.update(table, rows(table, row, schema=table.update_schema(row)))
        else:
            store.write(table, rows(table, row))
    assert store.get(table, {"k": key}) == model.row(key)
