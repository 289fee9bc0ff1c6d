"""``oncegate perf``: a verdict that follows from its figures alone, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from oncegate import Client, OperationFailed
from oncegate.gateway.cli import perf_host, perf_load
from oncegate.gateway.cli.connection_flags import Cluster
from oncegate.gateway.cli.main import app, command_line
from oncegate.gateway.cli.perf_verdict import BEHIND_MAX, THRESHOLDS, Size, Threshold, judge, shown, unfit
from oncegate.gateway.http.auth import new_token
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.server import running
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.rifl.errors import Code
from tests.gateway.http_contract import one_node, serving

SHORT = "--seconds=0.2"
OF_A_LOAD = {"peer_p50_ms", "write_1_p99_ms", "write_64_per_s", "write_64_p99_ms", "write_max_ms"}


# The verdict


@pytest.mark.parametrize("size", Size)
@pytest.mark.parametrize("threshold", THRESHOLDS, ids=lambda one: one.figure)
def test_a_figure_may_equal_its_bound_and_fails_just_beyond_it_with_a_reason(threshold: Threshold, size: Size) -> None:
    bound = threshold.bound(size)
    at = judge({threshold.figure: bound}, size)
    assert at.good
    assert at.reasons == []
    beyond = judge({threshold.figure: math.nextafter(bound, -math.inf if threshold.least else math.inf)}, size)
    assert not beyond.good
    (reason,) = beyond.reasons
    assert threshold.words in reason
    assert threshold.source in reason
    assert beyond.as_json()["verdict"] == "FAIL"
    assert not judge({threshold.figure: math.nan}, size).good


@given(st.fixed_dictionaries({one.figure: st.floats(0, 100_000) for one in THRESHOLDS}))
def test_what_is_good_for_a_large_cluster_is_good_for_a_smaller_one(figures: dict[str, float]) -> None:
    small, medium, large = (judge(figures, size).good for size in Size)
    assert large <= medium <= small


@given(st.dictionaries(st.sampled_from([one.figure for one in THRESHOLDS]), st.floats(0, 100_000)))
def test_the_verdict_is_fail_exactly_if_there_is_a_reason_and_unmeasured_figures_are_no_reason(
    figures: dict[str, float],
) -> None:
    verdict = judge(figures, Size.MEDIUM)
    assert verdict.good == (verdict.reasons == [])
    assert {one.threshold.figure for one in verdict.findings} == figures.keys()
    assert json.loads(json.dumps(verdict.as_json()))["figures"].keys() == figures.keys()


def test_a_figure_without_a_threshold_is_refused_and_no_figure_has_two() -> None:
    with pytest.raises(ValueError, match="no threshold for taste"):
        judge({"taste": 1.0}, Size.SMALL)
    assert len({one.figure for one in THRESHOLDS}) == len(THRESHOLDS)


def test_figures_are_shown_with_their_unit() -> None:
    assert [shown(*one) for one in ((0.1234, "ms"), (12_345.6, "/s"), (2, "cores"), (250.4, "ms"))] == [
        "0.123 ms", "12,346/s", "2 cores", "250 ms",
    ]  # fmt: skip


SOUND: dict[str, Any] = {"leader": "n1", "commit_index": 50, "applied_index": 50, "change_pending": False, "damage": ""}


@pytest.mark.parametrize(
    ("second", "ready", "reason"),
    [
        ({}, True, None),
        ({"applied_index": 40}, True, None),
        ("Connection refused", True, "n2 does not answer: Connection refused"),
        ({}, False, "n2 is not ready"),
        ({"damage": "state/1.sst is damaged"}, True, "the state of n2 is damaged"),
        ({"leader": None}, True, "do not agree on a leader"),
        ({"leader": "n2"}, True, "do not agree on a leader: n1, n2"),
        ({"change_pending": True}, True, "a change of members is under way"),
        ({"commit_index": BEHIND_MAX + 51, "applied_index": 50}, True, "entries behind"),
    ],
)
def test_a_cluster_is_loaded_only_while_all_members_are_well(
    second: dict[str, Any] | str, ready: bool, reason: str | None
) -> None:
    states = {"n1": SOUND, "n2": second if isinstance(second, str) else {**SOUND, **second}}
    found = unfit(states, {"n1": True, "n2": ready})
    assert found is None if reason is None else reason in str(found)


def test_a_cluster_without_a_leader_is_not_loaded() -> None:
    assert "do not agree" in str(unfit({"n1": {**SOUND, "leader": None}}, {"n1": True}))


# The machine


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_percentiles_are_among_the_samples_and_in_order(seconds: list[float]) -> None:
    p50, p99, worst = perf_host.Spread.of(seconds)
    assert {p50, p99, worst} <= {1000 * one for one in seconds}
    assert p50 <= p99 <= worst == 1000 * max(seconds)
    with pytest.raises(ValueError, match="no durations"):
        perf_host.Spread.of([])


class Hands:
    """Two clocks: ``monotonic`` moves by ``sleep`` and, at given looks, by a pause; ``wall`` is ahead by ``offset``."""

    def __init__(self, steps: dict[int, float], pauses: dict[int, float]) -> None:
        self.now, self.offset, self.slept = 0.0, 1e9, 0
        self.steps, self.pauses = steps, pauses

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        found = self.now + self.offset
        self.now += self.pauses.get(self.slept, 0.0)  # this process is held up right here
        return found

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds
        self.offset += self.steps.get(self.slept, 0.0)


@pytest.mark.parametrize("step", [0.5, -0.5])
def test_a_step_of_the_wall_clock_is_found_in_either_direction(step: float) -> None:
    hands = Hands({10: step}, {})
    found = perf_host.clocks(0.1, hands.monotonic, hands.wall, hands.sleep)
    assert found.step_ms == pytest.approx(500, abs=0.01)
    assert found.pause_ms < 0.01


def test_a_pause_between_two_looks_at_the_clocks_is_a_pause_and_no_step() -> None:
    hands = Hands({}, {10: 0.4})
    found = perf_host.clocks(0.6, hands.monotonic, hands.wall, hands.sleep)
    assert found.pause_ms == pytest.approx(400, abs=0.01)
    assert found.step_ms < 0.01


def test_flushes_are_timed_in_the_directory_and_leave_nothing_there(tmp_path: Path) -> None:
    ticks = iter(range(1_000))
    found = perf_host.flushes(tmp_path, samples=5, clock=lambda: float(next(ticks)))
    assert found == perf_host.Spread(1000, 1000, 1000)
    assert list(tmp_path.iterdir()) == []
    assert perf_host.existing(tmp_path / "not" / "yet") == tmp_path


def test_available_memory_is_bounded_by_the_container(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    group.mkdir()
    assert perf_host.memory_gib(meminfo, group) is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   4194304 kB\n")
    assert perf_host.memory_gib(meminfo, group) == 4.0
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1073741824\n")
    assert perf_host.memory_gib(meminfo, group) == 4.0
    (group / "memory.max").write_text(f"{3 * 2**30}\n")
    assert perf_host.memory_gib(meminfo, group) == 2.0


def test_round_trips_on_loopback_are_as_many_as_asked_for() -> None:
    found = perf_host.loopback(samples=3)
    assert 0 < found.p50 <= found.max


# The command


def _perf(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["perf", *arguments])


def test_the_machine_alone_is_judged_without_a_cluster_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEGATE_ENDPOINT", "http://127.0.0.1:1")
    ran = _perf("--data-dir", str(tmp_path / "data"), "-o", "json")
    found = json.loads(ran.stdout)
    assert found["figures"].keys() == {one.figure for one in THRESHOLDS} - OF_A_LOAD
    measured = {name: one["measured"] for name, one in found["figures"].items()}
    assert found["verdict"] == ("PASS" if judge(measured, Size.MEDIUM).good else "FAIL")
    assert ran.exit_code == (0 if found["verdict"] == "PASS" else 1)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_is_loaded_judged_and_left_as_it_was_time_after_time(tmp_path: Path) -> None:
    async def run() -> None:
        settings = one_node(tmp_path)
        endpoint = settings.address.http
        async with serving(settings), Client(endpoint) as client:
            # As a command would leave it that was killed.
            await client.declare_table(perf_load.TABLE, quota_bytes=perf_load.QUOTA_BYTES)
            for _ in range(2):
                arguments = ("--endpoint", endpoint, SHORT, "--size=small", "-o", "json", "--data-dir", str(tmp_path))
                ran = await asyncio.to_thread(_perf, *arguments)
                found = json.loads(ran.stdout)
                assert found["figures"].keys() == {one.figure for one in THRESHOLDS}
                assert ran.exit_code == (0 if found["verdict"] == "PASS" else 1)
                assert [one["outstanding"] for one in found["loads"]] == [1, 64]
                assert found["figures"]["write_64_per_s"]["measured"] == found["loads"][1]["writes_per_s"] > 0
                assert await client.tables() == []
                assert await client.sessions() == []

    asyncio.run(run())


def test_a_cluster_is_loaded_with_the_token_and_the_authority_of_its_profile_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued, pem = authority.issue_cert("127.0.0.1"), tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    token, lines = new_token("perf", "ann", [Scope.ADMIN, Scope.READ, Scope.WRITE])
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text(lines)
    (tmp_path / "token").write_text(token)
    settings = one_node(tmp_path, tls_certificate=pem, tls_key=pem, tokens_file=tokens)
    endpoint = settings.http_of(settings.address)
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'[p]\nendpoints = ["{endpoint}"]\nca_file = "authority.pem"\ntoken_file = "token"\n')
    for name in ("TOKEN", "TOKEN_FILE", "CA_FILE", "ENDPOINTS", "ENDPOINT", "PROFILE"):
        monkeypatch.delenv(f"ONCEGATE_{name}", raising=False)
    monkeypatch.setenv("ONCEGATE_PROFILES", str(profiles))

    async def run() -> Any:
        async with running(settings):
            return await asyncio.to_thread(_perf, "--profile=p", SHORT, "-o", "jsonl", f"--data-dir={tmp_path}")

    ran = asyncio.run(run())
    found = json.loads(ran.stdout)
    assert found["figures"].keys() == {one.figure for one in THRESHOLDS}
    assert found["endpoint"] == endpoint
    assert ran.exit_code == (0 if found["verdict"] == "PASS" else 1)


def test_a_table_of_that_name_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    async def run() -> None:
        settings = one_node(tmp_path)
        async with serving(settings), Client(settings.address.http) as client:
            await client.declare_table(perf_load.TABLE)
            await client.put(perf_load.TABLE, "k", 1, idempotency_key="once")
            ran = await asyncio.to_thread(
                _perf, "--endpoint", settings.address.http, SHORT, "--data-dir", str(tmp_path)
            )
            assert ran.exit_code == 2, ran.output
            assert "of another kind or quota" in ran.stderr
            assert (await client.get(perf_load.TABLE, "k")).value == 1

    asyncio.run(run())


def test_the_table_goes_when_the_load_fails_and_when_it_is_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        settings = one_node(tmp_path)
        async with serving(settings), Client(settings.address.http) as client:
            loading = asyncio.create_task(perf_load.load(client, 20.0))
            while not (tables := await client.tables()) or tables[0].rows == 0:
                assert not loading.done()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            assert await client.tables() == []
            loading = asyncio.create_task(perf_load.load(client, 20.0))
            while not (tables := await client.tables()) or tables[0].rows == 0:
                assert not loading.done()
            await client.drop_table(perf_load.TABLE, force=True)
            with pytest.raises(OperationFailed) as failed:
                await loading
            assert failed.value.code is Code.NOT_FOUND

    asyncio.run(run())


def test_an_unhealthy_cluster_gets_no_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.start("n1")  # of three
        wait_for(lambda: cluster.state("n1"), 30, "the node answers")
        ran = _perf("--endpoint", cluster.endpoint("n1"), SHORT, "--data-dir", str(tmp_path))
        assert ran.exit_code == 2, ran.output
        assert "not healthy" in ran.stderr
        assert "PASS" not in ran.stdout
        assert "FAIL" not in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "huge"], "huge"),
        (["--seconds", "0"], "0.2"),
        (["--endpoint", "ftp://x"], "ftp://x"),
        (["--data-dir", "/proc"], "/proc"),
    ],
)
def test_misuse_has_an_exit_code_that_is_no_verdict(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(command_line("perf", "status"), ["perf", *arguments])
    assert ran.exit_code == 3, ran.output
    assert said in ran.stderr


def test_ctrl_c_while_a_node_is_looked_for_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Cluster) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "answering", stop)
    ran = _perf("--endpoint", "http://127.0.0.1:1", "--data-dir", str(tmp_path))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (4, "", "oncegate: stopped\n")


def test_a_cluster_that_does_not_answer_is_no_verdict(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "oncegate",
        "perf",
        "--endpoint",
        "http://127.0.0.1:1",
        "--data-dir",
        str(tmp_path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert "does not say how the cluster is" in ran.stderr
