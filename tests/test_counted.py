"""What an operation costs is what it cost when that was last written down; see bench/counted.py."""

from __future__ import annotations

import subprocess
import sys

from bench.counted import differences


def test_an_operation_costs_what_is_written_down_within_three_percent_and_half_a_call() -> None:
    counted = subprocess.run([sys.executable, "-m", "bench.counted"], capture_output=True, text=True, check=False)
    assert counted.returncode == 0, counted.stdout + counted.stderr


def test_each_count_that_changed_by_more_than_three_percent_is_told_in_either_direction() -> None:
    before = {"1 outstanding": {"calls": 100.0, "flushes": 3.0, "bytes": 800.0}}
    assert differences(before, {"1 outstanding": {"calls": 102.9, "flushes": 3.0, "bytes": 777.0}})[1]
    for worse in ({"calls": 103.1}, {"calls": 96.9}, {"flushes": 4.0}, {"threads": 0.1}):
        table, within = differences(before, {"1 outstanding": {**before["1 outstanding"], **worse}})
        assert not within
        assert [line.split()[0] for line in table if "OVER" in line] == list(worse)
    many = {"1 outstanding": {"calls of Python": 960.0}}
    assert differences(many, {"1 outstanding": {"calls of Python": 960.4}})[1]
    assert not differences(many, {"1 outstanding": {"calls of Python": 961.0}})[1], "one call more in each request"
    assert not differences(before, {**before, "64 outstanding": {"calls": 1.0}})[1]
    assert not differences({**before, "gone": {"calls": 1.0}}, before)[1]
