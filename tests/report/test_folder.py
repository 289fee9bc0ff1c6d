"""The folder of a run: what is on disk is what was written, and nothing grows without a bound."""

from __future__ import annotations

import copy
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oncegate.proof.check import folder as folders
from oncegate.proof.check.errors import FileFull, FileMalformed, FileMissing, FolderTaken
from oncegate.proof.check.folder import FaultNote, LineWriter, RunFolder, RunInfo, RunVerdict
from oncegate.proof.lincheck import Event, Failure, Result

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
INFO = RunInfo(workload="register", faults="kills+links", seed=42, nodes=["n1"], settings={"a": [1, None]})


def test_name_says_when_what_and_which_seed_and_latest_follows(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, INFO, now=NOW)
    assert first.path.name == "20250102T030405Z-register-kills+links-42"
    second = RunFolder.create(tmp_path, INFO, now=NOW)
    assert second.path != first.path
    assert os.readlink(tmp_path / "latest") == second.path.name
    assert RunFolder.open(tmp_path / "latest").path == second.path
    assert first.read_run().started == NOW.isoformat()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([first.path.name, second.path.name, "latest"])


def test_names_from_outside_stay_below_the_root(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "runs", RunInfo(workload="../../etc/x y", faults="é" * 500), now=NOW)
    assert made.path.parent == tmp_path / "runs"
    assert len(made.path.name) < 120


def test_run_of_a_taken_name_is_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_TRIES", 2)
    RunFolder.create(tmp_path, INFO, now=NOW)
    RunFolder.create(tmp_path, INFO, now=NOW)
    with pytest.raises(FolderTaken):
        RunFolder.create(tmp_path, INFO, now=NOW)


def test_everything_written_is_read_back(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path, INFO, now=NOW)
    events = [
        Event(process=1, type="invoke", f="write", key="a\n<b>", value={"x": [1, "é"]}, time=5),
        Event(process=1, type="info", f="write", key="a\n<b>", time=9, error="TIMEOUT"),
    ]
    with made.history_writer() as history, made.faults_writer() as faults:
        for event in events:
            history.event(event)
        # A writer that is opened again goes on behind what is there.
        faults.fault(FaultNote(7, None, "kill", ["n1"]))
    with made.faults_writer() as faults:
        faults.fault(FaultNote(3, 4, "pause", ["n2"], "detail"))
        faults.fault(FaultNote(7, 8, "kill", ["n1"]))
    failure = Failure(key=1, prefix=[0], stuck=[1], words=["no"])
    verdict = RunVerdict(
        verdict="invalid", checks=[Result(name="c", verdict="invalid", failures=[failure])], seconds=1.5
    )
    made.write_verdict(verdict)
    assert list(made.read_history()) == events
    assert made.read_faults() == [FaultNote(3, 4, "pause", ["n2"], "detail"), FaultNote(7, 8, "kill", ["n1"])]
    assert made.read_verdict() == verdict
    assert made.read_run().settings == INFO.settings


def test_line_is_with_the_operating_system_when_write_returns(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "lines", 100)
    writer.write(b"one")
    assert (tmp_path / "lines").read_bytes() == b"one\n"
    writer.close()
    writer.close()


def test_full_file_is_refused_and_nothing_of_the_line_is_written(tmp_path: Path) -> None:
    with LineWriter(tmp_path / "lines", 10) as writer:
        writer.write(b"12345")
        with pytest.raises(FileFull) as refused:
            writer.write(b"6789")
        writer.write(b"678")
    assert (tmp_path / "lines").read_bytes() == b"12345\n678\n"
    assert refused.value.bytes_max == 10
    # What is there counts after opening again.
    with LineWriter(tmp_path / "lines", 10) as again, pytest.raises(FileFull):
        again.write(b"x")


def test_unfinished_last_line_is_passed_over_and_a_bad_one_is_named(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path, INFO, now=NOW)
    good = b'{"process":1,"type":"invoke","f":"read"}\n'
    made.history.write_bytes(good + good[:20])
    assert len(list(made.read_history())) == 1
    made.history.write_bytes(good + b"{}\n" + good)
    with pytest.raises(FileMalformed, match="line 2") as bad:
        list(made.read_history())
    assert bad.value.line == 2
    assert bad.value.path == made.history
    made.faults.write_bytes(b'{"start":"x"}\n')
    with pytest.raises(FileMalformed, match=r"faults\.jsonl: line 1"):
        made.read_faults()


def test_overlong_line_is_refused_without_being_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LINE_BYTES_MAX", 50)
    made = RunFolder.create(tmp_path, INFO, now=NOW)
    made.history.write_bytes(b"x" * 60 + b"\n")
    with pytest.raises(FileMalformed, match="more than 50 bytes"):
        list(made.read_history())


def test_missing_and_malformed_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        RunFolder.open(tmp_path)
    made = RunFolder.create(tmp_path, INFO, now=NOW)
    with pytest.raises(FileMissing):
        made.read_verdict()
    with pytest.raises(FileMissing):
        list(made.read_history())
    assert made.read_faults() == []
    made.verdict.write_bytes(b'{"verdict": "perhaps"}')
    with pytest.raises(FileMalformed):
        made.read_verdict()


@pytest.mark.parametrize("verdict", ["valid", "invalid", "unknown"])
def test_data_directories_are_kept_unless_the_run_is_valid(tmp_path: Path, verdict: str) -> None:
    made = RunFolder.create(tmp_path, INFO, now=NOW)
    (made.data / "n1").mkdir()
    (made.data / "n1" / "wal").write_bytes(b"x")
    made.settle(verdict)
    made.settle(verdict)
    assert (made.data / "n1" / "wal").exists() == (verdict != "valid")


def test_long_log_keeps_its_beginning_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOG_BYTES_MAX", 200)
    monkeypatch.setattr(folders, "_HEAD_BYTES", 50)
    made = RunFolder.create(tmp_path, INFO, now=NOW)
    log = made.logs / "n1.log"
    log.write_bytes(b"first" + b"." * 1000 + b"last")
    made.settle("valid")
    kept = log.read_bytes()
    assert len(kept) == 200
    assert kept.startswith(b"first")
    assert kept.endswith(b"last")
    assert b"809 bytes left out" in kept


@pytest.mark.parametrize(
    "error",
    [
        FileMissing(Path("a")),
        FileMalformed(Path("a"), "why", line=3),
        FileFull(Path("a"), 9),
        FolderTaken(Path("a")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_processes_whole(error: FileMissing) -> None:
    again = copy.copy(error)
    assert type(again) is type(error)
    assert vars(again) == vars(error)
