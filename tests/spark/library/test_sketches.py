"""Sketches against exact counts: within their bounds, whatever was merged and compacted, and the same bytes again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from oncegate.spark import FlowBatch, Store, Upsert, apply, open_store
from oncegate.spark_sink.library.aggregates import Aggregate
from oncegate.spark_sink.library.fields import real, text, whole
from oncegate.spark_sink.library.sketches import distinct, most_frequent, quantiles
from oncegate.stores.errors import StoreCode, StoreError

BATCHES, ITEMS = 30, 2_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store?shards=1") as opened:
        yield opened


def batches(values: list[Any]) -> list[FlowBatch]:
    """All values under the key "all", in batches."""
    size = -(-len(values) // BATCHES)
    return [
        FlowBatch.of(
            *((str(at), {"of": "all", "x": value}) for at, value in enumerate(values[first : first + size])),
            number=first // size + 1,
            first_commit=first + 1,
        )
        for first in range(0, len(values), size)
    ]


def read(store: Store, job: Aggregate, values: list[Any]) -> dict[str, Any]:
    """What is read after the first half was compacted twice; the same before."""
    apply(job, store, job.tables, *batches(values))
    before = job.read(store).to_pylist()
    for through in (7, 15):
        job.partials.compact(store, through)
    [row] = job.read(store).to_pylist()
    assert (row["through"], row["batches"]) == (15, list(range(16, BATCHES + 1)))
    assert before[0]["batches"] == list(range(1, BATCHES + 1))
    return {name: value for name, value in row.items() if name not in ("of", "through", "batches")}


@pytest.mark.parametrize("different", [1, 90, 3_000, 50_000])
def test_a_distinct_count_is_within_its_bounds(store: Store, different: int) -> None:
    chance = random.Random(different)
    values = [chance.randrange(different) for _ in range(BATCHES * ITEMS)]
    found = read(store, distinct("d", [text("of")], whole("x")), values)
    exact = len(set(values))
    assert found["low"] <= exact <= found["high"]
    assert found["low"] <= found["estimate"] <= found["high"]
    assert found["high"] - found["low"] <= 4.2 * 0.0163 * exact + 2
    if different < 100:
        assert found["estimate"] == exact


@pytest.mark.parametrize("lg_size", [6, 10])
def test_numbers_of_frequent_values_are_within_their_bounds_and_none_is_missing(store: Store, lg_size: int) -> None:
    chance = random.Random(lg_size)
    values = [f"v{int(chance.paretovariate(0.7)) % 5_000}" for _ in range(BATCHES * ITEMS)]
    items = read(store, most_frequent("t", [text("of")], text("x"), lg_size=lg_size), values)["items"]
    exact, error = Counter(values), 3.5 / 2**lg_size * len(values)
    for item in items:
        assert item["low"] <= exact[item["value"]] <= item["high"] <= item["low"] + error
    assert {value for value, count in exact.items() if count > error} <= {item["value"] for item in items}
    assert [item["high"] for item in items] == sorted((item["high"] for item in items), reverse=True)
    if lg_size == 10:
        assert [item["value"] for item in items[:5]] == [value for value, _ in exact.most_common(5)]


@pytest.mark.parametrize("shape", ["uniform", "pareto", "steps", "rising", "falling", "two values"])
def test_quantiles_are_of_ranks_within_a_hundredth(store: Store, shape: str) -> None:
    chance, count = random.Random(shape), BATCHES * ITEMS
    values = {
        "uniform": lambda at: chance.random(),
        "pareto": lambda at: chance.paretovariate(0.5),
        "steps": lambda at: chance.randrange(10),
        "rising": lambda at: at,
        "falling": lambda at: -at,
        "two values": lambda at: 10.0 ** (at % 2 * 12),
    }[shape]
    drawn = [float(values(at)) for at in range(count)]
    ranks = (0.001, 0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
    found = read(store, quantiles("q", [text("of")], real("x"), ranks=ranks), drawn)
    ordered = np.sort(drawn)
    assert (found["count"], found["least"], found["greatest"]) == (count, ordered[0], ordered[-1])
    for rank in ranks:
        answer = found[f"q{rank:g}".replace(".", "_")]
        low, high = (np.searchsorted(ordered, answer, side) / count for side in ("left", "right"))  # type: ignore[call-overload]
        assert low - 0.01 <= rank <= high + 0.01, (rank, answer)


@pytest.mark.parametrize(
    "job",
    [
        distinct("d", [text("of")], whole("x"), lg_size=4),
        most_frequent("t", [text("of")], whole("x"), lg_size=4),
        quantiles("q", [text("of")], whole("x"), k=10),
    ],
    ids=["distinct", "most frequent", "quantiles"],
)
def test_a_batch_that_comes_again_makes_the_same_bytes(job: Aggregate) -> None:
    chance = random.Random(1)
    [first, *_] = batches([chance.randrange(5_000) for _ in range(BATCHES * ITEMS)])

    def made() -> list[pa.RecordBatch]:
        return [change.rows for change in job(first) if isinstance(change, Upsert)]

    assert made() == made()


def test_keys_are_apart(store: Store) -> None:
    job = distinct("d", [text("of"), whole("day")], text("x"))
    items = [(str(at), {"of": f"o{at % 3}", "day": at % 2, "x": str(at % 12)}) for at in range(120)]
    apply(job, store, job.tables, FlowBatch.of(*items))
    rows = job.read(store).to_pylist()
    assert [(row["of"], row["day"], row["estimate"]) for row in rows] == [
        (f"o{of}", day, 2) for of in range(3) for day in range(2)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: distinct("d", [text("of")], real("x")),
        lambda: distinct("d", [text("of")], text("of")),
        lambda: distinct("d", [text("of")], text("x"), lg_size=22),
        lambda: most_frequent("t", [text("of")], text("x"), lg_size=3),
        lambda: quantiles("q", [text("of")], text("x")),
        lambda: quantiles("q", [text("of")], whole("x"), ranks=[1.1]),
        lambda: quantiles("q", [], whole("x")),
        lambda: distinct("d", [text("of", column="batches")], text("x")),
    ],
)
def test_a_malformed_declaration_is_refused(wrong: Any) -> None:
    with pytest.raises(StoreError) as refused:
        wrong()
    assert refused.value.code is StoreCode.BAD_TABLE
