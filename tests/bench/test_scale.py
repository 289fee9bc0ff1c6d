"""How cost grows: windows become rows, sizes become a page and a plot, and a small run measures real nodes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.experiments.plot import CURVES_MAX, Curve, Panel, draw
from bench.harness import best
from bench.load import Window
from bench.scale import page
from bench.scale.__main__ import measured
from bench.scale.cases import CASES, Keys, Rows, Tables, key_of, scattered, value_of
from bench.scale.growth import row
from bench.scale.watches import TableWatches
from oncegate import Client
from oncegate.gateway.testing.nodes import FakeGateway


def window_of(operations: int, latency_s: float, cpu_s: float, stall_s: float = 0.01) -> Window:
    return Window(operations, 1.0, [latency_s] * operations, stall_s, cpu_s, cpu_s / 2)


def line_of(case: str, *, quick: bool = False, run: str = "r", sizes: tuple[int, ...] = (1, 10)) -> dict[str, Any]:
    rows = []
    for size in sizes:
        of_size = row(size, [window_of(100, 0.002, 0.1 * size)], [window_of(100, 0.001, 0.1)])
        rows.append({**of_size, "grown_s": 1.0, "growing_stall_ms": 7.0, "memory_mib": 50.0, "disk_mib": 60.0})
    return {
        "case": case, "quick": quick, "run": run, "commit": "abc", "cpu": "a processor", "cores": 2, "kernel": "6.1",
        "python": "3.11", "seed": 1, "durability": "flushed", "fdatasync_4k_ms": 0.1, "bare_posts_per_s": 8_000.0,
        "load_average": 0.5, "rows": rows,
    }  # fmt: skip


def test_ratios_are_formed_within_a_turn_and_costs_over_all_of_them() -> None:
    windows = [window_of(100, 0.002, 0.1), window_of(50, 0.004, 0.1, stall_s=0.2), window_of(100, 0.002, 0.3)]
    beside = [window_of(100, 0.001, 0.1), window_of(50, 0.001, 0.1), window_of(100, 0.002, 0.1)]
    found = row(7, windows, beside)
    assert found["size"] == 7
    assert found["cpu_ratio"] == pytest.approx(1.0)
    assert found["p50_ratio"] == pytest.approx(2.0)
    assert found["nodes_cpu_us"] == pytest.approx(1e6 * 0.5 / 250)
    assert found["stall_ms"] == pytest.approx(200.0)
    assert found["samples"] == 250


def test_a_turn_without_its_reference_is_refused() -> None:
    with pytest.raises(ValueError):
        row(1, [window_of(1, 1.0, 1.0)], [])


def test_values_and_keys_have_the_size_that_is_asked_for_and_differ() -> None:
    for size in (*Keys.sizes, *Keys.quick):
        keys = {key_of(number, size) for number in range(1_000)}
        assert len(keys) == 1_000
        assert {len(key) for key in keys} == {size}
    for size in (20, 200, 20_000, 200_000):
        values = {value_of(number, size) for number in range(100)}
        assert len(values) == 100
        assert {len(value) + 2 for value in values} == {size}
    with pytest.raises(ValueError):
        value_of(1, 5)


def test_scattered_numbers_stay_inside_and_reach_most_rows() -> None:
    found = {scattered(number, 1_000) for number in range(10_000)}
    assert min(found) >= 0
    assert max(found) < 1_000
    assert len(found) > 900


def test_every_case_grows_from_its_reference_and_its_sample_is_smaller() -> None:
    assert {case.name for case in CASES} == {
        "rows", "values", "keys", "sessions", "remembered", "tables", "flows", "watchers", "busy-table", "nodes",
    }  # fmt: skip
    for case in CASES:
        base = case.sizes[0] if case.reference is None else case.reference
        assert base in case.sizes
        assert max(case.quick) < max(case.sizes) or case is Keys
        assert base in case.quick or case.reference is None
    assert max(Rows.sizes) == 10_000_000


def test_the_page_has_a_table_for_each_case_and_says_what_is_a_sample_or_missing() -> None:
    runs = {"rows": line_of("rows"), "keys": line_of("keys", quick=True)}
    text = "\n\n".join(page.section(runs)) + "\n"
    by_case = {part.split("\n")[0]: part for part in text.split("### ")[1:]}
    assert set(by_case) == {case.title for case in CASES}
    assert "| 10 | 100 | 2.00 |" in by_case["Rows of a table"]
    assert "A sample" not in by_case["Rows of a table"]
    assert "A sample" in by_case["Size of a key"]
    assert "Not measured yet." in by_case["Tables"]
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "!"))) <= 120
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_sample_is_shown_only_where_no_whole_run_is_stored() -> None:
    lines = [
        line_of("rows", run="1"), line_of("rows", run="2"), line_of("rows", run="3", quick=True),
        line_of("keys", run="4", quick=True), line_of("keys", run="5", quick=True),
    ]  # fmt: skip
    assert {case: line["run"] for case, line in best(lines, "case").items()} == {"rows": "2", "keys": "5"}


def test_the_plot_has_every_size_inside_and_refuses_more_curves_than_can_be_told_apart() -> None:
    plot = page.drawing({"rows": line_of("rows", sizes=(10, 1_000, 100))})
    assert plot is not None
    assert page.drawing({}) is None
    root = ET.fromstring(plot)
    places = {"10", "100", "1,000"}
    texts = [one for one in root.iter("{http://www.w3.org/2000/svg}text") if one.attrib["text-anchor"] == "middle"]
    assert [one.text for one in texts if one.text in places] == ["10", "100", "1,000"] * 2
    width, height = (float(word) for word in root.attrib["viewBox"].split()[2:])
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.attrib["class"].startswith("line") and "L" in path.attrib["d"]:
            points = re.findall(r"([\d.]+) ([\d.]+)", path.attrib["d"])
            assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
    with pytest.raises(ValueError):
        draw("too many", [Panel("p", [Curve(str(n), [(0, 1)]) for n in range(CURVES_MAX + 1)])])


async def test_watches_of_a_table_are_told_in_a_process_of_their_own_and_a_third_reads_nothing() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client, client.session() as session:
        fake.declare("t")
        watches = await TableWatches.open(fake.endpoints[0], "t", 6)
        assert fake.watching.watchers == 6
        (audience,) = fake.watching._all()
        await session.put("t", "k", 1)
        async with asyncio.timeout(60):
            while len(audience.waiting) < 6:  # all of them were told
                await asyncio.sleep(0.01)
        assert 0 <= await watches.close() <= 4


@pytest.mark.faults
def test_a_small_run_measures_real_nodes_at_each_size(tmp_path: Path) -> None:
    async def play() -> list[dict[str, Any]]:
        return [one async for one in measured(Tables(), (1, 5), tmp_path, rounds=2, seconds=0.3, seed=1)]

    rows = asyncio.run(play())
    assert [one["size"] for one in rows] == [1, 5]
    for one in rows:
        assert one["samples"] > 0
        assert one["nodes_cpu_us"] > 0
        assert one["memory_mib"] > 1
        assert one["stall_ms"] > 0
    assert page.drawing({"tables": {**line_of("tables"), "rows": rows}})
