"""What a node counts: every request once, on whichever side; durations in buckets; names as Prometheus wants them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.consensus.core.progress import Progress
from oncegate.consensus.histogram import BOUNDS_S, Histogram
from oncegate.gateway.http.server import ROUTES, running
from oncegate.gateway.observability.exposition import Metric
from oncegate.gateway.observability.process import disk_figures, process_figures
from oncegate.gateway.observability.request_times import GONE, RequestTimes, outcome
from tests.conftest import Api
from tests.gateway.http_contract import declare, founded, one_node, put, serving
from tests.gateway.three_nodes import three
from tests.observability.promlint import problems

SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


async def scraped(api: Api) -> dict[str, float]:
    """Return the samples of a node, by name and labels as they are written."""
    status, _, text = await api.call("GET", "/metrics")
    assert status == 200
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@given(st.lists(st.floats(0, 20, allow_nan=False) | st.sampled_from(BOUNDS_S)))
def test_a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.observe(seconds)
    expected = [sum(seconds <= bound for seconds in durations) for bound in (*BOUNDS_S, float("inf"))]
    assert histogram.cumulative() == expected
    assert histogram.count == len(durations)
    assert histogram.sum_s == pytest.approx(sum(durations))
    both = Histogram()
    both.add(histogram)
    both.add(histogram)
    assert both.cumulative() == [2 * count for count in expected]


def test_a_histogram_is_written_with_its_buckets_sum_and_count() -> None:
    one = Histogram()
    one.observe(0.0001)
    one.observe(11.0)
    lines = Metric("wait_seconds", "histogram", "how long", lambda _: {("a",): one}, ("who",)).lines(None)
    assert lines[:3] == [
        "# HELP oncegate_wait_seconds how long",
        "# TYPE oncegate_wait_seconds histogram",
        'oncegate_wait_seconds_bucket{who="a",le="0.0001"} 1',
    ]
    assert lines[-3:] == [
        'oncegate_wait_seconds_bucket{who="a",le="+Inf"} 2',
        'oncegate_wait_seconds_sum{who="a"} 11.0001',
        'oncegate_wait_seconds_count{who="a"} 2',
    ]
    assert problems("\n".join(lines)) == []


def test_requests_are_counted_by_route_and_status_and_timed_by_outcome() -> None:
    first, second = object(), object()
    times = RequestTimes({first: ("GET", "/a"), second: ("PUT", "/b")})
    for route, status, seconds in ((first, 200, 1.0), (first, 304, 2.0), (second, 503, 0.1), (None, 404, 0.2)):
        times.observe(route, status, seconds)
    assert times.counts() == {
        ("GET", "/a", "200"): 1,
        ("GET", "/a", "304"): 1,
        ("PUT", "/b", "503"): 1,
        ("other", "none", "404"): 1,
    }
    assert {labels: one.sum_s for labels, one in times.by_outcome().items()} == {
        ("GET", "/a", "ok"): 3.0,
        ("PUT", "/b", "failed"): 0.1,
        ("other", "none", "refused"): 0.2,
    }
    assert [outcome(status) for status in (200, 304, 400, 429, GONE, 500)] == [
        *("ok", "ok", "refused", "refused", "gone", "failed")
    ]


@pytest.mark.parametrize("hot", [True, False])
async def test_every_request_is_counted_once_on_either_side(tmp_path: Path, hot: bool) -> None:
    settings = one_node(tmp_path)
    async with (
        running(settings, hot=hot) as node,
        aiohttp.ClientSession(base_url=settings.address.http) as http,
    ):
        await founded(node)
        api = Api(http)
        await declare(api)
        client_id = await api.session()
        for _ in range(3):
            await api.operate(client_id, put(1, "a", 1))
        refused, _, _ = await api.call("POST", "/v1/operations", {"client_id": client_id})
        unknown, _, _ = await api.call("GET", "/v1/nothing")
        assert (refused, unknown) == (400, 404)
        found = await scraped(api)
    operations = 'oncegate_http_requests_total{method="POST",route="/v1/operations",status="%s"}'
    assert found[operations % 200] == 3
    assert found[operations % 400] == 1
    assert found['oncegate_http_requests_total{method="other",route="none",status="404"}'] == 1
    lasted = 'oncegate_http_request_duration_seconds_%s{method="POST",route="/v1/operations",outcome="ok"%s}'
    assert found[lasted % ("count", "")] == found[lasted % ("bucket", ',le="+Inf"')] == 3
    assert 0 < found[lasted % ("sum", "")] < 60


async def test_what_a_node_exports_is_clean_by_promtool_s_rules(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path)) as (api, _):
        await declare(api)
        await declare(api, "events", "stream")
        client_id = await api.session()
        await api.operate(client_id, put(1, "a", 1))
        _, headers, text = await api.call("GET", "/metrics")
        found = await scraped(api)
    assert problems(text.decode()) == []
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert found["oncegate_flush_seconds_count"] >= 1
    assert found["oncegate_entry_seconds_count"] >= 1
    assert found['oncegate_disk_used_bytes{part="raft"}'] > 0
    assert 0 < found["oncegate_disk_free_bytes"] <= found["oncegate_disk_size_bytes"]


async def test_leaders_time_replication_and_entries_and_each_node_its_flushes(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        leader, api = await cluster.leader(), Api(cluster.http)
        for number in range(5):
            body = {"kind": "resident"}
            assert (await api.call("PUT", f"{cluster.url(leader)}/v1/tables/t{number}", body))[0] == 200
        shown = [(await cluster.get(name, "/metrics"))[2].decode() for name in cluster.nodes]
    timed: Counter[str] = Counter()
    for text in shown:
        assert problems(text) == []
        samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        found = {series: float(value) for series, _, value in samples}
        assert found["oncegate_flush_seconds_count"] > 0
        timed.update({name: found[f"oncegate_{name}_seconds_count"] for name in ("entry", "replication")})
    assert timed["entry"] >= 5
    assert timed["replication"] >= 5


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("# HELP x_ms how\n# TYPE x_ms gauge\nx_ms 1", "abbreviated"),
        ("# HELP x_milliseconds how\n# TYPE x_milliseconds gauge\nx_milliseconds 1", "base unit"),
        ("# HELP x how\n# TYPE x counter\nx 1", "_total"),
        ("# HELP x_total how\n# TYPE x_total gauge\nx_total 1", "_total"),
        ("# TYPE x gauge\nx 1", "help"),
        ("# HELP x_count how\n# TYPE x_count gauge\nx_count 1", "histograms"),
        ('# HELP x how\n# TYPE x gauge\nx{le="1"} 1', "histograms"),
        ("# HELP x_gauge how\n# TYPE x_gauge gauge\nx_gauge 1", "type in its name"),
        ("# HELP x how\n# TYPE x gauge\nx 1\nx 2", "twice"),
    ],
)
def test_the_rules_find_what_promtool_finds(line: str, fault: str) -> None:
    assert any(fault in one for one in problems(line))


def test_the_time_of_an_append_is_that_of_the_newest_one_that_the_match_covers() -> None:
    follower = Progress(1, now=0.0)
    follower.matched(0)
    follower.sent(1, 10, 0, now=1.0)
    follower.sent(2, 10, 0, now=2.0)
    follower.sent(3, 10, 0, now=3.0)
    assert follower.matched(2)
    assert follower.acked_sent_at == 2.0
    assert not follower.matched(2)
    assert follower.acked_sent_at is None
    assert follower.in_flight_bytes == 10


def test_the_figures_of_process_and_disk_are_those_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "segments" / "flow").mkdir(parents=True)
    (tmp_path / "segments" / "flow" / "one").write_bytes(b"x" * 100_000)
    (tmp_path / "a file").write_bytes(b"")
    disk = disk_figures(tmp_path)
    assert disk.parts["raft"] == 0
    assert disk.parts["segments"] >= 100_000
    assert set(disk.parts) == {"raft", "segments"}
    before = process_figures()
    with (tmp_path / "a file").open() as _:
        assert process_figures().open_files == (before.open_files or 0) + 1
    assert before.resident_bytes is not None
    assert before.resident_bytes > 10 * 2**20


def test_every_route_has_names_of_its_own() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len({route.handler for route in ROUTES})
