"""Sustained events: the recount accounts for each single one, and a small run with Spark ends exact."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.children import Failed, talking
from bench.stream import page
from bench.stream.__main__ import FIRST_CALLER as OPENER
from bench.stream.__main__ import measured, thinned
from bench.stream.events import RUNS, TABLE, Int64s, Runs, derive, key_of, numbers_of, recount, runs_of
from bench.stream.parts import Sample
from bench.stream.reader import in_store, retained
from oncegate.gateway.machine.commands import VALUE_BYTES_MAX
from oncegate.spark_sink.derivation import FlowBatch, Upsert
from oncegate.stores import open_store
from oncegate.stores.tables import WRITE_TS
from oncegate.testing import FakeGateway


def column(*values: int) -> Int64s:
    return np.array(values, dtype=np.int64)


def runs(*of: tuple[int, int, int]) -> Runs:
    return Runs(*(column(*(one[at] for one in of)) for at in range(3)))


def test_whole_events_are_exact_in_any_order_of_their_runs() -> None:
    assert recount({1: 10, 2: 3}, runs((1, 6, 10), (2, 1, 3), (1, 1, 5))).exact


@pytest.mark.parametrize(
    ("found", "lost", "twice", "unknown"),
    [
        (runs((1, 1, 4), (1, 6, 10)), 1, 0, 0),
        (runs((1, 2, 10)), 1, 0, 0),
        (runs((1, 1, 9)), 1, 0, 0),
        (runs((1, 1, 5), (1, 5, 10)), 0, 1, 0),
        (runs((1, 1, 10), (1, 3, 4)), 0, 2, 0),
        (runs((1, 1, 4), (1, 6, 10), (1, 7, 7)), 1, 1, 0),
        (runs((1, 1, 12)), 0, 0, 2),
        (runs((1, 0, 10)), 0, 0, 1),
        (runs((1, 1, 10), (2, 1, 1)), 0, 0, 1),
        (runs(), 10, 0, 0),
    ],
)
def test_each_lost_repeated_or_unknown_event_is_counted(found: Runs, lost: int, twice: int, unknown: int) -> None:
    seen = recount({1: 10}, found)
    assert (seen.lost, seen.twice, seen.unknown) == (lost, twice, unknown)
    assert not seen.exact


def test_events_before_what_is_retained_are_not_missed() -> None:
    assert recount({1: 10}, runs((1, 4, 10)), {1: 4}).exact
    assert recount({1: 10}, runs((1, 4, 6), (1, 8, 10)), {1: 4}).lost == 1


def test_recount_of_retained_batches_misses_nobody_but_whom_it_knows_to_have_ended_before() -> None:
    """The opener's only event went with the first batch; a caller that has none of the rest has lost them."""
    runs = Runs(np.array([1, 2]), np.array([51, 31]), np.array([90, 80]))
    acknowledged = {1: 90, 2: 80, OPENER: 1}
    assert retained(acknowledged, runs, 7, OPENER).exact
    assert retained({**acknowledged, 3: 5}, runs, 7, OPENER).lost == 5
    assert retained({**acknowledged, 2: 81}, runs, 7, OPENER).lost == 1
    assert retained(acknowledged, runs, 1, OPENER).lost == 50 + 30 + 1, "the first batch would have had them"


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 12)), max_size=40),
    st.dictionaries(st.integers(1, 3), st.integers(0, 12)),
)
def test_recount_of_runs_is_that_of_the_single_events(
    events: list[tuple[int, int]], acknowledged: dict[int, int]
) -> None:
    callers, numbers = column(*(caller for caller, _ in events)), column(*(number for _, number in events))
    found = recount(acknowledged, runs_of(callers, numbers))
    seen = Counter(events)
    wanted = {(caller, number) for caller, count in acknowledged.items() for number in range(1, count + 1)}
    assert found.lost == len(wanted - seen.keys())
    assert found.unknown == len(seen.keys() - wanted)
    assert found.twice == seen.total() - len(seen)
    assert found.acknowledged == len(wanted)


def test_job_keeps_each_event_of_a_batch_in_runs_with_keys_of_their_own() -> None:
    chance = random.Random(1)
    left = {caller: list(range(1, 200)) for caller in (1, 2, 3)}
    order = [caller for caller in left for _ in left[caller]]
    chance.shuffle(order)
    events = [(caller, left[caller].pop(0)) for caller in order]
    del events[100]
    events.insert(50, events[40])
    (change,) = derive(FlowBatch.of(*((key_of(*event), "v") for event in events), number=7))
    assert isinstance(change, Upsert)
    assert change.rows.schema == RUNS.schema
    rows = change.rows.to_pylist()
    assert len({tuple(row[name] for name in RUNS.key) for row in rows}) == len(rows)
    assert {row["batch"] for row in rows} == {7}
    made = [(row["caller"], at) for row in rows for at in range(row["first"], row["last"] + 1)]
    assert Counter(made) == Counter(events)


def test_key_that_is_no_events_is_refused() -> None:
    caller, number = numbers_of(pa.array([key_of(12, 345)]))
    assert (caller.tolist(), number.tolist()) == ([12], [345])
    with pytest.raises(ValueError):
        numbers_of(pa.array(["other"]))


def row_of(**changed: Any) -> dict[str, Any]:
    counted = {"acknowledged": 100, "found": 100, "lost": 0, "twice": 0, "unknown": 0}
    return {
        "mode": "singles", "events": 100, "events_per_s": 50_000.0, "delivered_per_s": 40_000.0, "seconds": 600.0,
        "samples": 100, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0, "stall_ms": 4.0, "nodes_cpu_us": 30.0,
        "spark_cpu_us": 3.0, "client_cpu_us": 7.0, "nodes_cores": 1.0, "lag_max": 10, "caught_up_s": 1.0,
        "replay": {
            "first": 2, "batches": 3, "from_s": 1.0, "until_s": 2.0, "seconds": 1.0, "status": 0, "beside_load": True,
        },
        "job_status": 0, "rows": counted, "batches": {**counted, "first": 1, "last": 9}, "exact": True,
        "over_time": [(1.0, 50_000.0, 5), (2.0, 51_000.0, 7), (3.0, 49_000.0, 0)], **changed,
    }  # fmt: skip


def line_of(quick: bool = False, **changed: Any) -> dict[str, Any]:
    return {
        "mode": "singles", "quick": quick, "run": "r", "commit": "abc", "cpu": "a processor", "cores": 2,
        "kernel": "6.1", "python": "3.11", "seed": 1, "durability": "flushed", "fdatasync_4k_ms": 0.1,
        "bare_posts_per_s": 8_000.0, "load_average": 0.5, "store": "sqlite", "rows": [row_of(**changed)],
    }  # fmt: skip


def text_of(line: dict[str, Any]) -> str:
    return "\n\n".join(page.section({"singles": line})) + "\n"


def test_whole_runs_only_are_judged_and_by_what_was_delivered() -> None:
    def judged(**changed: Any) -> tuple[bool | None, str]:
        found = page.judgements({"singles": line_of(**changed)})[0]
        return found.met, found.why_not

    assert judged()[0] is True
    assert judged(delivered_per_s=19_000.0)[0] is False
    assert judged(exact=False)[0] is False, "what loses events is not fast"
    assert judged(quick=True, delivered_per_s=19_000.0) == (None, "a sample")
    assert "**not exact**" in page.judgements({"singles": line_of(exact=False)})[0].reached
    assert [(one.met, one.why_not) for one in page.judgements({})] == [(None, "not measured")] * 2
    assert "A sample" in text_of(line_of(quick=True))
    assert "Not measured yet." in "\n".join(page.section({}))


def test_page_tells_losses_repetitions_and_a_replay_that_failed() -> None:
    lost = {"acknowledged": 100, "found": 99, "lost": 2, "twice": 1, "unknown": 0}
    replay = {"first": 1, "batches": 3, "from_s": 9.0, "seconds": 1.0, "status": 4, "beside_load": False}
    text = text_of(line_of(rows=lost, replay=replay))
    assert "| the job's rows | 100 | 99 | **2** | **1** | 0 |" in text
    assert "| batches 1 to 9 | 100 | 100 | 0 | 0 | 0 |" in text
    assert "**It ended with status 4.**" in text.replace("\n", " ")
    assert "**after** the traffic" in text.replace("\n", " ")
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "!"))) <= 120
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_plot_shades_the_replay_and_stands_without_it() -> None:
    plot = page.drawing({"singles": line_of()})
    assert plot is not None
    assert plot.count('class="fault"') == 2
    late = page.drawing({"singles": line_of(replay={"from_s": 99.0})})
    assert late is not None
    assert 'class="fault"' not in late
    assert page.drawing({}) is None


def test_rates_over_time_are_those_between_the_kept_samples() -> None:
    samples = [Sample(float(second), 100 * second, second, 0, 0) for second in range(1_000)]
    found = thinned(samples)
    assert 100 <= len(found) <= 130
    assert all(rate == pytest.approx(100.0) for _, rate, _ in found)
    assert thinned(samples[:1]) == []


async def test_load_whose_write_fails_ends_although_its_input_stays_open(tmp_path: Path) -> None:
    words = ["--mode", "singles", "--seconds", "600", "--callers", "1", "--value-bytes", f"{VALUE_BYTES_MAX + 1}"]
    async with FakeGateway() as gateway:
        gateway.declare(TABLE, "stream")
        asked = ["--endpoints", ",".join(gateway.endpoints), *words]
        with (
            talking("bench.stream.writer", *asked, log=tmp_path / "log") as load,
            pytest.raises(Failed, match=r"no result \(ended\)"),
        ):
            await asyncio.to_thread(load.wait, "result", 120.0)


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.timeout(900)
def test_small_run_with_spark_and_a_replay_is_exact_and_planted_faults_are_found(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store"
    row, acknowledged = measured("ranges", url, tmp_path, seconds=3.0, rate=4_000.0, value_bytes=60)
    assert row["exact"], row
    assert row["rows"]["found"] == row["batches"]["found"] == row["events"] == sum(acknowledged.values())
    assert row["replay"]["status"] == 0
    with open_store(url) as store:
        (rows, *_) = store.scan(RUNS)
        planted = rows.slice(0, 1)
        events = planted.column("last")[0].as_py() - planted.column("first")[0].as_py() + 1
        stamp = planted.column(WRITE_TS)[0].as_py() + 1
        at = [*planted.schema.names].index("batch")
        elsewhere = planted.set_column(at, "batch", pa.array([1_000_000], pa.int64()))
        store.write(RUNS, elsewhere)
    assert in_store(url, acknowledged).twice == events
    with open_store(url) as store:
        keys = pa.RecordBatch.from_pylist(
            [{**{name: planted.column(name)[0].as_py() for name in RUNS.key}, WRITE_TS: stamp}]
        )
        store.delete(RUNS, keys)
        later = elsewhere.select([*RUNS.key]).append_column(WRITE_TS, pa.array([stamp], pa.int64()))
        store.delete(RUNS, later)
    found = in_store(url, acknowledged)
    assert (found.lost, found.twice) == (events, 0)
    assert not found.exact
