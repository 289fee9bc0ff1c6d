"""The command line: misuse is told before anything starts."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from examples.demo import __main__ as command
from examples.demo import dataset, stage


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "postgres"],
        ["--messages", "0"],
        ["--messages", "59836"],
        ["--messages", "many"],
        ["--seed", "x"],
        ["x"],
    ],
)
def test_misuse_ends_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_missing_java_is_one_line_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    directory = tmp_path / "data"
    assert command.main(["--data-dir", str(directory)]) == command.COULD_NOT_RUN
    said = capsys.readouterr()
    assert said.err.strip() == "demo: could not run: missing: Java >= 17 (no java on the path)"
    assert said.out == ""
    assert not directory.exists()


@pytest.mark.parametrize(
    ("version", "fits"), [("1.8.0_402", False), ("11.0.2", False), ("17.0.15", True), ("25", True)]
)
def test_java_is_judged_by_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, fits: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if fits:
        assert stage.check_java() == version
    else:
        with pytest.raises(stage.StageError, match="missing: Java"):
            stage.check_java()


def test_used_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(stage.StageError, match="not empty"), stage.Stage("sqlite", tmp_path):
        pass
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("text", ["", "sender receiver unix_time_s\n1 2 x\n", "sender receiver unix_time_s\n1 2\n"])
def test_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "messages.txt.gz"
    with gzip.open(path, "wt") as file:
        file.write(text)
    with pytest.raises(dataset.DatasetError, match=r"messages\.txt\.gz"):
        dataset.load(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dataset.DatasetError, match="cannot read"):
        dataset.load(tmp_path / "none.txt.gz")
