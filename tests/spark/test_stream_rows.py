"""Items of a stream table become rows of the store: the newest of a key, deletions kept, in any order, any number."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.source import BATCH_FIELD
from oncegate.stores.stream_rows import STREAM_ROWS, rows_of

Items = dict[int, tuple[str, str | None]]
"""Key and value by commit."""

found_items = st.dictionaries(
    st.integers(1, 2**62), st.tuples(st.sampled_from(["a", "b", "ü "]), st.none() | st.sampled_from(["1", '""', "{}"]))
)


def batch(items: Items, order: list[int] | None = None) -> pa.RecordBatch:
    commits = order if order is not None else sorted(items)
    columns = [
        pa.array(commits, pa.int64()),
        pa.array([items[commit][0] for commit in commits], pa.string()),
        pa.array([items[commit][1] for commit in commits], pa.string()),
        *(pa.array([7] * len(commits), pa.int64()) for _ in range(3)),
        pa.nulls(len(commits), pa.string()),
        pa.array([1] * len(commits), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*PLAIN_SCHEMA, BATCH_FIELD]))


def newest(items: Items) -> dict[str, tuple[int, str]]:
    return {items[commit][0]: (commit, items[commit][1] or "") for commit in sorted(items)}


def rows_by_key(*pieces: pa.RecordBatch) -> dict[str, tuple[int, str]]:
    """What a store holds after these: the largest timestamp wins."""
    held: dict[str, tuple[int, str]] = {}
    for row in (row for piece in pieces for row in piece.to_pylist()):
        held[row["key"]] = max(held.get(row["key"], (0, "")), (row["write_ts"], row["value"]))
    return held


def test_a_row_has_source_key_json_text_and_the_commit_as_its_timestamp() -> None:
    [piece] = rows_of(batch({11: ("k", '{"a":1}'), 12: ("gone", None)}), "events", 10)
    assert piece.schema == STREAM_ROWS.schema
    assert piece.to_pylist() == [
        {"source": "events", "key": "k", "value": '{"a":1}', "write_ts": 11},
        {"source": "events", "key": "gone", "value": "", "write_ts": 12},
    ]


@given(found_items, st.randoms(use_true_random=False), st.integers(1, 4))
@settings(deadline=None)
def test_only_the_newest_of_a_key_is_written_whatever_the_order(
    items: Items, shuffle: random.Random, rows_max: int
) -> None:
    order = list(items)
    shuffle.shuffle(order)
    pieces = list(rows_of(batch(items, order), "events", rows_max))
    assert all(piece.num_rows <= rows_max for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == len(newest(items))
    assert rows_by_key(*pieces) == newest(items)


@given(found_items, st.lists(st.integers(0, 20), max_size=4), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_batches_cut_anywhere_replayed_and_reordered_leave_the_same_rows(
    items: Items, cuts: list[int], shuffle: random.Random
) -> None:
    commits, ends = sorted(items), sorted({0, len(items), *(min(cut, len(items)) for cut in cuts)})
    batches = [batch(items, commits[begin:end]) for begin, end in pairwise(ends)]
    arriving = [*batches, *shuffle.choices(batches, k=3)] if batches else []
    shuffle.shuffle(arriving)
    assert rows_by_key(*(piece for one in arriving for piece in rows_of(one, "events", 100))) == newest(items)
