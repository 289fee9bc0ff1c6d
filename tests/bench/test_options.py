"""Benches refuse what would be a run of nothing, mark what is shorter than a whole run, and end in order."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.options import above_zero, at_least, folder, not_negative
from bench.peers import __main__ as peers
from bench.peers import page as peers_page
from bench.scale import __main__ as scale
from bench.stream import __main__ as stream
from oncegate.gateway.local.waiting import wait_for


@pytest.mark.parametrize("words", [
    ["--rounds", "0"], ["--seconds", "0"], ["--seconds", "nan"], ["--warm", "-1"], ["--kills", "-1"],
    ["--only", "sdk,nothing"], ["etcd", "--only", "sdk"], ["--directory", "/nowhere/at/all"], ["nothing"],
])  # fmt: skip
def test_a_comparison_of_nothing_is_misuse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def played(*_: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(sys, "argv", ["peers", *words])
    monkeypatch.setattr(peers, "play", played)
    monkeypatch.setattr("bench.harness.end_in_order", lambda: None)
    with pytest.raises(SystemExit) as ended:
        peers.main()
    assert ended.value.code == 2


@pytest.mark.parametrize("words", [
    ["scale", "--rounds", "0"], ["scale", "--seconds", "-1"], ["scale", "--sizes", "0"],
    ["stream", "--seconds", "0"], ["stream", "--rate", "-1"], ["stream", "--value-bytes", "5"],
    ["dataflows", "--capacity", "0"], ["dataflows", "--seed", "-1"],
])  # fmt: skip
def test_an_experiment_of_nothing_is_misuse(words: list[str]) -> None:
    asked = [sys.executable, "-m", f"bench.{words[0]}", *words[1:], "--no-save"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2, done.stderr


def test_numbers_and_folders_in_bounds_are_taken(tmp_path: Path) -> None:
    assert (at_least(0)("0"), above_zero("0.5"), not_negative("0"), folder(str(tmp_path))) == (0, 0.5, 0.0, tmp_path)
    with pytest.raises(ValueError):
        at_least(1)("many")
    assert at_least(1, 2)("2") == 2
    with pytest.raises(argparse.ArgumentTypeError, match="at most 2"):
        at_least(1, 2)("3")
    with pytest.raises(argparse.ArgumentTypeError, match="/proc takes no files"):
        folder("/proc")


def test_a_sample_of_the_comparison_is_never_drawn() -> None:
    about: dict[str, Any] = {"systems": {peer.name: "1" for peer in peers_page.PEERS}, "only": [], "kills": 5}
    assert peers_page.is_whole(about)
    assert not peers_page.is_whole({**about, "quick": True})


@pytest.mark.parametrize(("words", "sample"), [
    ([], False), (["--quick"], True), (["--seconds", "20"], True), (["--seconds", "900"], False),
    (["--rate", "100"], True), (["--value-bytes", "20"], True),
])  # fmt: skip
def test_a_shorter_or_other_stream_is_a_sample(words: list[str], sample: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert marked(stream, words, monkeypatch) is sample


@pytest.mark.parametrize(("words", "sample"), [
    ([], False), (["--quick"], True), (["--rounds", "2"], True), (["--rounds", "20"], False),
    (["--seconds", "0.5"], True),
])  # fmt: skip
def test_a_growth_of_fewer_or_shorter_turns_is_a_sample(
    words: list[str], sample: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert marked(scale, words, monkeypatch) is sample


class Begun(Exception):
    """A run was about to begin."""


def marked(bench: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether a run of this command line is stored as a sample."""
    seen: list[bool] = []

    def begin(*_: object, quick: bool, **__: object) -> None:
        seen.append(quick)
        raise Begun

    monkeypatch.setattr(sys, "argv", ["bench", *words])
    monkeypatch.setattr("bench.harness.watched", begin)
    monkeypatch.setattr("bench.harness.end_in_order", lambda: None)
    with pytest.raises(Begun):
        bench.main()
    return seen[0]


CHILD = """
import sys, time
from pathlib import Path
from bench.options import end_in_order
end_in_order()
try:
    Path(sys.argv[1], "began").touch()
    time.sleep(600)
finally:
    time.sleep(0.5)  # longer than the quarter of a second that subprocess grants who was interrupted
    Path(sys.argv[1], "tidied").touch()
"""
PARENT = """
import signal, sys
from bench.experiments.__main__ import run
from bench.options import end_in_order
signal.signal(signal.SIGINT, signal.default_int_handler)
end_in_order()
run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_stopping_all_experiments_lets_the_one_that_runs_tidy_up(tmp_path: Path, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(tmp_path)], stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as all_of_them:  # fmt: skip
        wait_for((tmp_path / "began").exists, 120, "it runs")
        all_of_them.send_signal(how)
        assert all_of_them.wait(120) != 0
        assert (tmp_path / "tidied").exists()


def test_ctrl_c_lets_the_experiment_that_runs_tidy_up(tmp_path: Path) -> None:
    heard = CHILD.replace("end_in_order()\n", "end_in_order()\nimport signal\n"
                          "signal.signal(signal.SIGINT, signal.default_int_handler)\n", 1)  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, heard, str(tmp_path)], stderr=subprocess.PIPE, text=True, process_group=0
    ) as all_of_them:
        wait_for((tmp_path / "began").exists, 120, "it runs")
        subprocess.run(["kill", "-INT", "--", f"-{all_of_them.pid}"], check=True)
        assert all_of_them.communicate(timeout=120)[1].splitlines() == ["stopped"] * 2, "a word of each"
        assert all_of_them.returncode == -signal.SIGINT
        assert (tmp_path / "tidied").exists()
