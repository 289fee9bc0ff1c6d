"""The cache that makes sessions start quickly: workers run compiled Python, and it does not grow."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from oncegate.spark_sink.spark_cache import archive_options, plain_home

DEAD = 2**22 + 1
"""Above the largest process id there may be."""


@pytest.mark.spark
def test_workers_import_the_installed_pyspark_and_not_one_that_they_compile_each_time(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def test_home_has_all_that_starts_spark_and_no_python(tmp_path: Path) -> None:
    home = plain_home(tmp_path)
    assert home is not None
    assert plain_home(tmp_path) == home
    assert (home / "bin" / "spark-submit").is_file()
    assert list((home / "jars").glob("spark-core*.jar"))
    assert not (home / "python").exists()
    assert list(tmp_path.iterdir()) == [home]


def test_home_of_an_installation_that_is_gone_is_removed(tmp_path: Path) -> None:
    gone = tmp_path / "home-0123"
    gone.mkdir()
    (gone / "jars").symlink_to(tmp_path / "nowhere")
    home = plain_home(tmp_path)
    assert list(tmp_path.iterdir()) == [home]


def test_three_archives_are_kept_and_those_that_were_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (written,) = [option for option in archive_options(tmp_path, "java") if "ArchiveClassesAtExit" in option]
    draft = Path(written.partition("=")[2])
    assert draft.suffix == f".{os.getpid()}"
    ended = draft.with_suffix(f".{DEAD}")
    ended.write_text("an archive")
    for number in range(5):
        old = tmp_path / f"other{number}.jsa"
        old.touch()
        os.utime(old, (number, number))
        old.with_name(f"other{number}.jsa.{DEAD}").touch()
    draft.touch()
    assert f"-XX:SharedArchiveFile={draft.with_suffix('')}" in archive_options(tmp_path, "java")
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"other3.jsa", "other4.jsa", draft.with_suffix("").name, draft.name}
    assert draft.with_suffix("").read_text() == "an archive"
    monkeypatch.setenv("SPARK_HOME", "/another")
    assert any("ArchiveClassesAtExit" in option for option in archive_options(tmp_path, "java"))
