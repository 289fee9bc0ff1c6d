"""Exit codes of ``oncegate check``: 0 valid, 1 invalid, 2 unknown, 3 misuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.proof.check.folder import RunFolder, RunInfo
from oncegate.proof.check.runner import alone
from tests.check.histories import Book

GOOD = Book().did("write", "r0", 1).read("r0", 1)
BAD = Book().did("write", "r0", 1).did("read", "r0", None, 1).did("read", "r0", None, 5).read("r0", None)


def saved(root: Path, book: Book, ended: str = "finished") -> Path:
    folder = RunFolder.create(root, RunInfo(workload="register", faults="none", settings={"ended": ended}))
    with folder.history_writer() as writer:
        for event in book.events:
            writer.event(event)
    return folder.path


@pytest.mark.parametrize(
    ("book", "ended", "code", "says"),
    [
        (GOOD, "finished", 0, "valid"),
        (BAD, "finished", 1, "acknowledged before"),
        (GOOD, "interrupted", 2, "interrupted"),
    ],
)
def test_replay_judges_a_saved_history_again(tmp_path: Path, book: Book, ended: str, code: int, says: str) -> None:
    result = CliRunner().invoke(app, ["check", "replay", str(saved(tmp_path, book, ended))])
    assert result.exit_code == code, result.output
    assert says in result.output
    assert RunFolder.open(tmp_path / "latest").read_verdict().verdict == ("valid", "invalid", "unknown")[code]


def test_shrunk_history_is_a_run_of_its_own_that_fails_still(tmp_path: Path) -> None:
    path = saved(tmp_path, BAD)
    result = CliRunner().invoke(app, ["check", "shrink", "--history", str(path)])
    assert result.exit_code == 1, result.output
    small = RunFolder.open(tmp_path / "latest")
    assert small.path != path
    assert small.read_verdict().verdict == "invalid"
    assert len(list(small.read_history())) < len(BAD.events)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--all", "--workload", "register"],
        ["run", "--workload", "nonsense"],
        ["run", "--all", "--faults", "nonsense"],
        ["run", "--all", "--seconds", "0"],
        ["run", "--all", "--nonsense"],
        ["replay", "nowhere"],
        ["shrink", "nowhere"],
    ],
)
def test_misuse_is_not_taken_for_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 3, result.output
    assert list(tmp_path.glob("*/*")) == [], "nothing was run"


def test_valid_run_is_nothing_to_shrink(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", "shrink", str(saved(tmp_path, GOOD))])
    assert result.exit_code == 3


def test_run_that_fails_by_itself_is_not_taken_for_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **how: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("oncegate.proof.check.soak.soak", broken)
    result = CliRunner().invoke(app, ["check", "run", "--all", "--runs", str(tmp_path)])
    assert result.exit_code == 4


def test_directory_of_a_run_that_is_under_way_is_left_alone(tmp_path: Path) -> None:
    with alone(tmp_path):
        result = CliRunner().invoke(app, ["check", "run", "--workload", "append", "--runs", str(tmp_path)])
    assert result.exit_code == 3
    assert "under way" in result.output
