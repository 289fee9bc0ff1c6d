"""``oncegate top``: frames follow from two samples alone, fit any screen, and come as text where no terminal is."""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from oncegate import Client
from oncegate.consensus.histogram import Histogram
from oncegate.gateway.cli.main import app
from oncegate.gateway.cli.top import Watch
from oncegate.gateway.cli.top_frame import FlowRow, Frame, Latency, NodeRow, frame
from oncegate.gateway.cli.top_sample import VALUE_MAX, NodeSample, Sample, Series, parse, quantile, value
from oncegate.gateway.cli.top_screen import KEYS, Style, screen, text
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.observability.exposition import Metric
from tests.gateway.http_contract import one_node, serving

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
WAIT_S = 60.0


# Samples


def _exposed(values: dict[str, Any], labels: tuple[str, ...] = ()) -> Series:
    """What a node's own exposition of some metrics is read as."""
    lines = [
        line for name, one in values.items() for line in Metric(name, "gauge", "x", lambda of: of, labels).lines(one)
    ]
    return parse("\n".join(lines))


@given(
    st.dictionaries(st.tuples(st.text(max_size=20), st.text(max_size=5)), st.floats(-VALUE_MAX, VALUE_MAX), max_size=5)
)
def test_what_a_node_exposes_is_read_back_whatever_is_in_its_labels(values: dict[tuple[str, str], float]) -> None:
    # A label may hold what ends a line for Python and not for Prometheus; names of ours never do.
    usable = {names: one for names, one in values.items() if len("".join(names).splitlines()) <= 1}
    usable = {names: one for names, one in usable.items() if not "".join(names).endswith(("\r", "\x85"))}
    usable = {names: one for names, one in usable.items() if all(name.isprintable() for name in names)}
    found = _exposed({"m": usable}, ("a", "b")) if usable else {}
    assert found.get("oncegate_m", {}) == {(("a", a), ("b", b)): one for (a, b), one in usable.items()}


def test_lines_that_are_no_metrics_are_left_out() -> None:
    assert parse('# HELP a b\n\nnonsense\na 1 2 3\nb NaN\nc{x="1"} x\n<html>\nd 4\n') == {"d": {(): 4.0}}
    assert value(parse('d{y="2",x="1"} 4'), "d", x="1", y="2") == 4.0
    assert value({}, "d") is None
    assert parse("a Inf\nb -Inf\nc 1e300\nd NaN\ne 5") == {"e": {(): 5.0}}


METRICS = (
    "oncegate_http_requests_total",
    "oncegate_http_request_duration_seconds_bucket",
    "oncegate_flow_lag_batches",
    "oncegate_flow_lag_trend",
    "oncegate_sessions",
    "oncegate_disk_used_bytes",
)
LABELS = st.dictionaries(
    st.sampled_from(["status", "le", "flow", "trend", "name", "series", "outcome"]), st.text("1.x+")
)


@given(st.lists(st.tuples(st.sampled_from(METRICS), LABELS, st.floats(-VALUE_MAX, VALUE_MAX)), max_size=20))
def test_no_metrics_of_a_node_keep_a_frame_from_being_shown(lines: list[tuple[str, dict[str, str], float]]) -> None:
    shown = ""
    for name, labels, number in lines:
        pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
        shown += f"{name}{{{pairs}}} {number!r}\n"
    found = frame(_sample(_node(metrics=shown)), _sample(_node(at_s=12, metrics=f"{shown}oncegate_sessions 7")))
    json.dumps(msgspec.to_builtins(found), allow_nan=False)
    assert found.sessions == 7
    assert text(found)


@given(st.lists(st.floats(0, 9.9), min_size=1), st.floats(0.01, 0.99))
def test_a_percentile_is_within_the_bucket_of_the_observation_of_that_rank(seconds: list[float], share: float) -> None:
    from oncegate.consensus.histogram import BOUNDS_S

    histogram = Histogram()
    for one in seconds:
        histogram.observe(one)
    buckets = dict(zip((*BOUNDS_S, math.inf), map(float, histogram.cumulative()), strict=True))
    exact = sorted(seconds)[max(0, math.ceil(share * len(seconds) - 1e-9) - 1)]
    upper = next(bound for bound in BOUNDS_S if exact <= bound)
    lower = max((bound for bound in BOUNDS_S if bound < upper), default=0.0)
    found = quantile(share, buckets)
    assert found is not None
    assert lower - 1e-9 <= found <= upper + 1e-9


def test_nothing_observed_has_no_percentile_and_what_is_beyond_all_bounds_has_the_last_one() -> None:
    assert quantile(0.5, {}) is None
    assert quantile(0.5, {1.0: 0.0, math.inf: 0.0}) is None
    assert quantile(0.5, {1.0: 0.0, math.inf: 3.0}) == 1.0


# Frames


def _node(
    name: str = "n1",
    *,
    at_s: float = 10.0,
    role: str = "leader",
    term: int = 3,
    commit: int = 100,
    applied: int = 50,
    metrics: str = "",
    **more: Any,
) -> NodeSample:
    members = [{"id": "n1", "voter": True}, {"id": "n2", "voter": True}, {"id": "n3", "voter": False}]
    told = {"role": role, "term": term, "commit": commit, "applied_index": applied, "commit_index": applied}
    return NodeSample(name, f"http://{name}", at_s, {**told, "members": members, **more}, parse(metrics))


def _silent(name: str) -> NodeSample:
    return NodeSample(name, f"http://{name}", 12.0, None, {}, "Connection refused")


def _sample(*nodes: NodeSample) -> Sample:
    return Sample(1_800_000_000.0, {node.node: node for node in nodes})


def test_rates_are_of_the_time_between_the_answers_and_each_operation_counts_once() -> None:
    before = _sample(_node(), _node("n2", role="follower"))
    after = _sample(
        _node(at_s=12, commit=300, applied=90), _node("n2", at_s=12, role="follower", commit=280, applied=70)
    )
    found = frame(before, after)
    assert found.commits_per_s == 100.0
    assert [node.applied_per_s for node in found.nodes] == [20.0, 10.0]
    assert [node.behind for node in found.nodes] == [0, 20]
    assert (found.leader, found.term, found.members, found.answering, found.interval_s) == ("n1", 3, 2, 2, 2.0)


def test_the_leader_of_the_highest_term_counts() -> None:
    found = frame(_sample(), _sample(_node(), _node("n2", term=4)))
    assert (found.leader, found.term) == ("n2", 4)
    assert frame(_sample(), _sample(_node(role="follower"))).leader is None


def test_what_is_not_known_is_none_and_never_zero() -> None:
    found = frame(_sample(_silent("n1")), _sample(_silent("n1")))
    assert msgspec.to_builtins(found) == {
        "unix_s": 1_800_000_000.0, "interval_s": 0.0, "leader": None, "term": None, "members": 1, "answering": 0,
        "commits_per_s": None, "replays_per_s": None, "requests_per_s": None, "refused_per_s": None,
        "failed_per_s": None, "writes": {"p50_ms": None, "p99_ms": None}, "reads": {"p50_ms": None, "p99_ms": None},
        "entries": {"p50_ms": None, "p99_ms": None}, "sessions": None, "keys": None, "flows": [],
        "nodes": [
            {
                "node": "n1", "http": "http://n1", "state": "unreachable", "term": None, "applied": None,
                "behind": None, "applied_per_s": None, "requests_per_s": None,
                "flush": {"p50_ms": None, "p99_ms": None}, "cpu": None, "memory_bytes": None,
                "disk_used_bytes": None, "disk_free_bytes": None, "error": "Connection refused",
            }
        ],
    }  # fmt: skip
    # A node that comes back: all that it ever did is no rate.
    back = frame(_sample(_silent("n1")), _sample(_node(metrics='oncegate_http_requests_total{status="200"} 99\n')))
    assert back.requests_per_s is None
    assert back.nodes[0].applied_per_s is None


def test_a_counter_that_began_anew_is_all_new() -> None:
    requests = 'oncegate_http_requests_total{{status="{}"}} {}\n'
    before = _node(metrics=requests.format(200, 1_000) + requests.format(503, 10))
    after = _node(at_s=12, metrics=requests.format(200, 30) + requests.format(503, 2) + requests.format(404, 4))
    found = frame(_sample(before), _sample(after))
    assert (found.requests_per_s, found.refused_per_s, found.failed_per_s) == (18.0, 2.0, 1.0)


def _durations(method: str, route: str, outcome: str, *observed: float) -> str:
    histogram = Histogram()
    for seconds in observed:
        histogram.observe(seconds)
    metric = Metric("http_request_duration_seconds", "histogram", "x", lambda of: of, ("method", "route", "outcome"))
    return "\n".join(metric.lines({(method, route, outcome): histogram})) + "\n"


def test_latency_is_of_what_ended_between_the_samples_by_reads_and_writes_at_all_nodes() -> None:
    old = _durations("POST", "/v1/operations", "ok", *[9.0] * 50)
    new = _durations("POST", "/v1/operations", "ok", *[9.0] * 50, *[0.0012] * 10)
    others = _durations("POST", "/v1/operations", "refused", *[5.0] * 50)
    watched = _durations("GET", "/v1/tables/{table}/watch", "ok", *[5.0] * 50)
    read = _durations("GET", "/v1/tables/{table}/rows/{key}", "ok", *[0.0002] * 10)
    many = _durations("POST", "/v1/rows", "ok", *[0.0002] * 10)
    before = _sample(_node(metrics=old), _node("n2", role="follower", metrics="x 1"))
    after = _sample(
        _node(at_s=12, metrics=new + others + watched), _node("n2", at_s=12, role="follower", metrics=read + many)
    )
    found = frame(before, after)
    assert found.writes.p50_ms is not None
    assert found.writes.p99_ms is not None
    assert 1.0 <= found.writes.p50_ms <= found.writes.p99_ms <= 2.5
    assert found.reads.p99_ms is not None
    assert 0.1 <= found.reads.p99_ms <= 0.25


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (_node(), "leader"),
        (_node("n2", role="follower"), "follower"),
        (_node("n3", role="follower"), "learner"),
        (_node(damage="state/1.sst is damaged"), "damaged"),
        (_node(metrics="oncegate_disk_full 1"), "disk full"),
        (_silent("n1"), "unreachable"),
    ],
)
def test_a_node_is_in_one_state(node: NodeSample, state: str) -> None:
    assert frame(_sample(), _sample(node)).nodes[0].state == state


def test_flows_come_from_the_leader_and_the_farthest_behind_is_first() -> None:
    def lag(consumer: str, batches: int, seconds: float) -> str:
        of = f'{{flow="f",consumer="{consumer}"}}'
        lines = [f"oncegate_flow_lag_batches{of} {batches}", f"oncegate_flow_lag_items{of} {10 * batches}"]
        lines += [f"oncegate_flow_lag_seconds{of} {seconds}"]
        for trend, held in (("falling", 0), ("rising", 1)):
            lines.append(f'oncegate_flow_lag_trend{{flow="f",consumer="{consumer}",trend="{trend}"}} {held}')
        return "\n".join(lines) + "\n"

    leader = _node(metrics=lag("a", 1, 0.5) + lag("b", 2, 9.0))
    found = frame(_sample(), _sample(leader, _node("n2", role="follower", metrics=lag("c", 9, 99.0))))
    assert found.flows == [FlowRow("f", "b", 2, 20, 9.0, "rising"), FlowRow("f", "a", 1, 10, 0.5, "rising")]


# Screens

NO = Latency(None, None)


def _row(name: str, state: str = "follower", **more: Any) -> NodeRow:
    usual = {
        "term": 12, "applied": 12_345_678, "behind": 3, "applied_per_s": 1_234.0, "requests_per_s": 900.0,
        "flush": Latency(0.4, 12.5), "cpu": 0.71, "memory_bytes": 412 * 2**20, "disk_used_bytes": 2**31,
        "disk_free_bytes": 61 * 2**30, "error": "",
    }  # fmt: skip
    return NodeRow(node=name, http=f"http://{name}", state=state, **{**usual, **more})


def _frame(nodes: list[NodeRow], flows: list[FlowRow]) -> Frame:
    some = Latency(1.8, 24.6)
    return Frame(
        unix_s=1_800_000_000.0, interval_s=2.0, leader="n1", term=12, members=len(nodes), answering=len(nodes),
        commits_per_s=20_123.0, replays_per_s=1.0, requests_per_s=1_900.0, refused_per_s=0.0, failed_per_s=0.0,
        writes=some, reads=some, entries=some, sessions=100_000, keys=12, nodes=nodes, flows=flows,
    )  # fmt: skip


USUAL = _frame(
    [_row("n1", "leader"), _row("n2"), _row("n3", "unreachable", term=None, applied=None, error="refused")],
    [FlowRow("timelines", "rows", 3, 30_000, 1.5, "steady"), FlowRow("statistics", "rows", 0, 0, 0.0, "caught up")],
)


def test_an_ordinary_cluster_is_shown_whole_in_80_columns_and_24_lines() -> None:
    shown = screen(USUAL, 80, 24)
    assert [line.text for line in screen(USUAL, 500, 500)] == [line.text for line in shown]
    words = "\n".join(line.text for line in shown)
    for said in ("leader n1", "term 12", "3 of 3 nodes", "20,123/s", "1.8/24.6", "n3 unreachable", "timelines", KEYS):
        assert re.search(r"\s+".join(map(re.escape, said.split())), words), said
    assert "more" not in words


@given(
    st.integers(1, 200),
    st.integers(1, 60),
    st.integers(0, 40),
    st.integers(0, 80),
    st.text(max_size=30),
    st.booleans(),
)
def test_a_frame_fits_any_screen_and_what_is_left_out_of_it_is_counted(
    width: int, height: int, nodes: int, flows: int, name: str, paused: bool
) -> None:
    shown = screen(
        _frame(
            [_row(f"{name}{at}") for at in range(nodes)], [FlowRow(name, "c", at, at, 0.0, "") for at in range(flows)]
        ),
        width,
        height,
        paused=paused,
    )
    assert len(shown) <= height
    assert all(len(line.text) <= width for line in shown)
    assert all(line.text.isprintable() for line in shown)
    assert shown[-1].text == (KEYS + "   PAUSED" * paused)[:width].rstrip()
    if (
        width >= 80
        and height >= 12
        and (left_out := re.search(r"and (\d+) more nodes", "\n".join(x.text for x in shown)))
    ):
        rows = sum(f" {'follower':<8} " in line.text for line in shown)
        assert rows + int(left_out[1]) == nodes or "\n" in name


def test_states_are_words_and_only_bad_ones_and_the_leader_are_set_off() -> None:
    styles = {line.text.split()[1]: line.style for line in screen(USUAL, 80, 24) if line.text.startswith("n")}
    assert styles["leader"] is Style.LEADER
    assert styles["follower"] is Style.PLAIN
    assert styles["unreachable"] is Style.BAD
    lost = msgspec.structs.replace(USUAL, leader=None, term=None)
    assert screen(lost, 80, 24)[0].style is Style.BAD
    assert "leader NONE" in screen(lost, 80, 24)[0].text


def test_text_has_all_rows_and_no_keys() -> None:
    shown = text(_frame([_row(f"n{at}") for at in range(50)], []))
    assert all(re.search(rf"^n{at} ", shown, re.MULTILINE) for at in range(50))
    assert KEYS not in shown


# The command


def test_without_a_terminal_frames_are_text_or_lines_of_json_and_end_when_counted(tmp_path: Path) -> None:
    async def run() -> None:
        settings = one_node(tmp_path)
        endpoint = settings.address.http
        async with serving(settings), Client(endpoint) as client:
            await client.declare_table("rows")

            async def write() -> None:
                async with client.session() as session:
                    while True:
                        await session.put("rows", "k", 1)

            writing = asyncio.create_task(write())

            async def top(*more: str) -> Any:
                arguments = ["top", "--endpoint", endpoint, "--interval=0.3", *more]
                return await asyncio.to_thread(CliRunner().invoke, app, arguments)

            ran = await top("--count=2", "-o", "jsonl")
            assert ran.exit_code == 0, ran.output
            frames = [json.loads(line) for line in ran.stdout.splitlines()]
            assert len(frames) == 2
            for one in frames:
                assert one["leader"] == "n1"
                assert one["nodes"][0]["state"] == "leader"
                assert one["nodes"][0]["disk_free_bytes"] > 0
                assert one["commits_per_s"] > 0
                assert one["sessions"] == 1
                msgspec.convert(one, Frame)
            assert any(one["writes"]["p50_ms"] for one in frames)
            ran = await top("--count=1")
            assert ran.exit_code == 0, ran.output
            assert "leader n1" in ran.stdout
            assert "\x1b" not in ran.stdout
            writing.cancel()

    asyncio.run(run())


def test_a_node_that_ends_is_shown_as_unreachable_also_if_it_is_the_one_that_was_named(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, ThreadPoolExecutor(3) as pool:
        cluster.start()
        cluster.wait_ready()
        watch = Watch(cluster.endpoint("n1"), pool)
        before = watch.sample()
        assert all(node.cluster is not None for node in before.nodes.values())
        cluster.kill("n1")
        cluster.leader()
        found = frame(before, watch.sample())
        assert found.members == 3
        assert found.answering == 2
        assert {node.node: node.state == "unreachable" for node in found.nodes} == {
            "n1": True,
            "n2": False,
            "n3": False,
        }
        assert found.nodes[0].error
        assert "unreachable" in text(found)


@contextmanager
def _on_a_terminal(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command on a terminal of 80x24; yields the process and the terminal's other end."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "oncegate", "top", *arguments],
        stdin=inner, stdout=inner, stderr=inner, env={**ENVIRONMENT, "TERM": "xterm-256color", **environment},
        start_new_session=True, preexec_fn=_interruptible,
    )  # fmt: skip
    os.close(inner)
    try:
        yield process, outer
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT_S)
        os.close(outer)


def _interruptible() -> None:
    """A suite that runs in the background of a shell ignores SIGINT, and what it starts would."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read_until(outer: int, wanted: str, seen: str = "") -> str:
    """Read what the terminal is sent until it holds ``wanted``; returns all of it."""
    until = time.monotonic() + WAIT_S
    while wanted not in seen:
        assert time.monotonic() < until, f"{wanted!r} is not in {seen!r}"
        if select.select([outer], [], [], 1.0)[0]:
            seen += os.read(outer, 65_536).decode(errors="replace")
    return seen


def _rest(outer: int) -> str:
    """Read until the process has closed its end: a terminal that nobody reads would hold it up."""
    found, until = "", time.monotonic() + WAIT_S
    try:
        while time.monotonic() < until:
            if select.select([outer], [], [], 1.0)[0]:
                found += os.read(outer, 65_536).decode(errors="replace")
    except OSError:
        pass  # the other end is closed
    return found


@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_it_draws_in_place_pauses_and_ends_at_q_leaving_the_terminal_as_it_was(
    tmp_path: Path, no_color: str
) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        cluster.start()
        cluster.wait_ready()
        arguments = ("--endpoint", cluster.endpoint("n1"), "--interval", "0.3")
        with _on_a_terminal(*arguments, NO_COLOR=no_color) as (process, outer):
            seen = _read_until(outer, "leader n1")
            os.write(outer, b" ")
            seen += _read_until(outer, "PAUSED")
            os.write(outer, b"q")
            seen += _rest(outer)
            assert process.wait(WAIT_S) == 0
        assert "\x1b[?1049h" in seen  # a screen of its own
        assert "\x1b[?1049l" in seen  # and back
        colours = re.findall(r"\x1b\[(?:\d+;)*3[1-7]m", seen)
        assert bool(colours) == (not no_color), colours


def test_a_terminal_that_cannot_place_its_cursor_gets_text(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        cluster.start()
        cluster.wait_ready()
        arguments = ("--endpoint", cluster.endpoint("n1"), "--interval", "0.2", "--count", "1")
        with _on_a_terminal(*arguments, TERM="dumb") as (process, outer):
            seen = _read_until(outer, "leader n1")
            assert process.wait(WAIT_S) == 0
        assert "\x1b" not in seen


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        cluster.start()
        cluster.wait_ready()
        with _on_a_terminal("--endpoint", cluster.endpoint("n1"), "--interval", "0.3") as (process, outer):
            seen = _read_until(outer, "leader n1")
            process.send_signal(signal.SIGINT)
            seen += _rest(outer)
            assert process.wait(WAIT_S) == 0
            assert "Traceback" not in seen


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--endpoint", "http://127.0.0.1:1"], 3), (["--endpoint", "ftp://x"], 2), (["--interval", "0"], 2)],
)
def test_a_wrong_address_or_argument_ends_it_at_once(arguments: list[str], code: int) -> None:
    ran = CliRunner().invoke(app, ["top", "--count=1", *arguments])
    assert ran.exit_code == code, ran.output
    assert ran.stdout == ""
