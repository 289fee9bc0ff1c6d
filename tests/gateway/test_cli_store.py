"""``oncegate store``: creates and claims, tells whose a store is, and hands it to another cluster when told to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.gateway.testing.nodes import FakeCluster
from oncegate.stores import WRITE_TS, claimed_store, open_store
from oncegate.stores.stream_rows import STREAM_ROWS
from oncegate.stores.write_times import timestamp


@pytest.fixture
def clusters() -> Iterator[tuple[FakeCluster, FakeCluster]]:
    """A cluster, and the one that is built in its place."""
    with FakeCluster() as first, FakeCluster() as second:
        yield first, second


def oncegate(*words: str, status: int = 0, answer: str | None = None) -> str:
    result = CliRunner().invoke(app, ["store", *words], input=answer)
    assert result.exit_code == status, result.output
    return result.output


def rows(commit: int, value: str, *keys: str) -> pa.RecordBatch:
    found = [{"source": "t", "key": key, "value": value, WRITE_TS: commit} for key in keys]
    return pa.RecordBatch.from_pylist(found, schema=STREAM_ROWS.schema)


def held(url: str) -> dict[str, tuple[str, int]]:
    with claimed_store(url) as store:
        found = [row for batch in store.scan(STREAM_ROWS) for row in batch.to_pylist()]
    return {row["key"]: (row["value"], row[WRITE_TS]) for row in found}


@pytest.mark.parametrize("place", ["os:path", "os:getcwd", "os:sep", ".:T", "..x:T", "json:nothing", "nowhere:T", ":"])
def test_what_holds_no_declaration_is_misuse(tmp_path: Path, place: str) -> None:
    assert place in oncegate("migrate", f"sqlite://{tmp_path}/store", place, status=2)


def test_store_is_created_shown_adopted_and_wiped(clusters: tuple[FakeCluster, FakeCluster], tmp_path: Path) -> None:
    (first, at_first), (second, at_second) = ((one, ("--endpoint", one.endpoints[0])) for one in clusters)
    url = f"sqlite://{tmp_path}/store"
    assert "oncegate store init" in oncegate("status", url, status=1)
    assert not (tmp_path / "store").exists()
    for _ in range(2):
        assert f"cluster {first.gateway.machine.identity} holds the store, epoch 1" in oncegate("init", url, *at_first)
    found = json.loads(oncegate("status", url, "-o", "json", *at_first))
    assert found["tables"] == ["job_dead_letters", "job_generations", "job_replays", "stream_rows", "timeline"]
    assert (found["cluster"], found["epoch"], found["floor"]) == (first.gateway.machine.identity, 1, 1)
    assert found["timestamps_from"] == timestamp(1, 0)
    with claimed_store(url, first.gateway.machine.identity) as store:
        store.write(STREAM_ROWS, rows(900, "OLD", "a", "foreign"))

    for refused in (("init", url, *at_second), ("status", url, *at_second)):
        told = oncegate(*refused, status=1)
        assert first.gateway.machine.identity in told
        assert "oncegate store adopt" in told
    assert first.gateway.machine.identity in oncegate("status", url)

    assert "epoch 2" in oncegate("adopt", url, *at_second)
    assert "epoch 2" in oncegate("adopt", url, *at_second)
    with claimed_store(url, second.gateway.machine.identity) as store:
        store.write(STREAM_ROWS, rows(1, "NEW", "a"))
    assert held(url) == {"a": ("NEW", 1), "foreign": ("OLD", 0)}

    asked = oncegate("wipe", url, *at_second, status=1, answer="n\n")
    assert "job_dead_letters, job_generations, job_replays, stream_rows, timeline" in asked
    assert len(held(url)) == 2
    assert "epoch 3" in oncegate("wipe", url, *at_second, answer="y\n")
    assert held(url) == {}
    assert "epoch 4" in oncegate("wipe", url, "--yes", *at_first)
    assert "epoch 9" in oncegate("adopt", url, "--epoch", "9", *at_first)


def test_tables_of_a_job_beside_the_command_are_widened_without_asking_the_cluster(
    clusters: tuple[FakeCluster, FakeCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/store"
    (tmp_path / "beside.py").write_text(
        "from oncegate.stores import Column, ColumnType, StoreTable\n"
        "KEY, TEXT = Column('k', ColumnType.TEXT), Column('text', ColumnType.TEXT)\n"
        "OLD = StoreTable('notes', (KEY, TEXT), ('k',))\n"
        "NEW = [StoreTable('notes', (KEY, TEXT, Column('more', ColumnType.INT64, nullable=True)), ('k',))]\n"
        "OTHER = StoreTable('notes', (KEY, TEXT, Column('must', ColumnType.INT64)), ('k',))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert "oncegate store init" in oncegate("migrate", url, "beside:OLD", status=1)
    oncegate("init", url, "--endpoint", clusters[0].endpoints[0])
    assert oncegate("migrate", url, "beside:OLD") == "notes: k, text\n"
    for _ in range(2):
        assert oncegate("migrate", url, "beside:NEW") == "notes: k, text, more\n"
    assert "has to be nullable" in oncegate("migrate", url, "beside:OTHER", status=1)
    assert "beside" in oncegate("migrate", url, "beside:NONE", status=2)


def test_store_of_an_earlier_version_is_adopted_and_not_wiped_unseen(
    clusters: tuple[FakeCluster, FakeCluster], tmp_path: Path
) -> None:
    url, at = f"sqlite://{tmp_path}/store", ("--endpoint", clusters[0].endpoints[0])
    with open_store(url) as store:
        store.create([STREAM_ROWS])
        store.write(STREAM_ROWS, rows(900, "OLD", "a"))
    for words in (("status", url), ("init", url, *at), ("wipe", url, "--yes", *at)):
        assert "oncegate store adopt" in oncegate(*words, status=1)
    oncegate("adopt", url, *at)
    assert held(url) == {"a": ("OLD", 0)}


def test_what_is_asked_for_wrongly_says_so(clusters: tuple[FakeCluster, FakeCluster], tmp_path: Path) -> None:
    url, at = f"sqlite://{tmp_path}/store", ("--endpoint", clusters[0].endpoints[0])
    assert "no node answers" in oncegate("init", url, "--endpoint", "http://127.0.0.1:1", status=3)
    assert "sqlite://" in oncegate("status", "paper://x", status=2)
    for place in ("nowhere:TABLES", "oncegate.stores.tables:NOTHING", "oncegate.stores.tables:WRITE_TS", "x"):
        assert place in oncegate("init", url, "--tables", place, *at, status=2)
    assert not (tmp_path / "store").exists()
    oncegate("init", url, "--tables", "oncegate.stores.stream_rows:STREAM_ROWS", *at)
    tables = json.loads(oncegate("status", url, "-o", "json"))["tables"]
    assert tables == ["job_dead_letters", "job_generations", "job_replays", "stream_rows"]
