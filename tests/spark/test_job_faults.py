"""A job whose own code fails ends after a while and says so; anything that may pass is tried for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncegate.spark_sink.checkpoints import clear_drafts
from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.jobs import job
from oncegate.spark_sink.jobs.exit_status import exit_status
from oncegate.spark_sink.jobs.settings import JobSettings, parsed, parser
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import Column, ColumnType, StoreTable
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.fake_gateway import FakeFlow, FakeNode

COUNTED = StoreTable(
    name="counted",
    columns=(Column("batch", ColumnType.INT64), Column("items", ColumnType.INT64)),
    partition_key=("batch",),
)


def divides_by_what_the_whole_batch_has_none_of(batch: FlowBatch) -> Iterator[Change]:
    """No item is to blame: each alone is derived."""
    if batch.items.num_rows > 1:
        raise ZeroDivisionError("no batch has this")
    yield batch.upsert(COUNTED, batch=batch.number, items=batch.items.num_rows)


def counts(batch: FlowBatch) -> Iterator[Change]:
    yield batch.upsert(COUNTED, batch=batch.number, items=batch.items.num_rows)


@pytest.mark.parametrize(
    ("told", "programming"),
    [
        ("Traceback (most recent call last):\n  File x, line 3, in f\nZeroDivisionError: no batch has this\n", True),
        ("...\nKeyError: 'x'\n\nDuring handling\nOSError: [Errno 28] No space left on device\n", False),
        ("NotImplementedError\n", True),
        ("An error occurred while calling o1.start\n: java.io.IOException: broken", False),
        ("ConnectionResetError: [Errno 104]", False),
        ("MemoryError: ", False),
    ],
)
def test_a_programming_error_is_told_from_disk_network_and_memory(told: str, programming: bool) -> None:
    assert job.is_programming_error(RuntimeError(told)) is programming


@pytest.mark.parametrize("code", StoreCode)
def test_each_refusal_ends_with_the_status_that_the_page_lists(code: StoreCode) -> None:
    named = {StoreCode.BAD_OPTION: 2, StoreCode.FENCED: 3, StoreCode.RETENTION_EXCEEDED: 4}
    told = {2: "an option is wrong", 3: "another instance has attached", 4: "no longer retained", 5: "another refusal"}
    status = exit_status(code)
    assert status == named.get(code, 5)
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    assert told[status] in next(line for line in page.splitlines() if line.startswith(f"| {status} |"))


def test_a_refusal_is_told_once_whether_spark_made_text_of_it_or_not() -> None:
    refused = StoreError(StoreCode.STORE_MISMATCH, "it is somebody else's")
    for error in (refused, RuntimeError(f"Traceback ...\nPySparkRuntimeError: {refused}\n  at org.apache.spark")):
        assert str(job.refusal(error, StoreCode.STORE_MISMATCH)) == str(refused)
    told = job.refusal(RuntimeError("the source says [STORE_MISMATCH]"), StoreCode.STORE_MISMATCH)
    assert told.detail == "the source says [STORE_MISMATCH]"


@pytest.mark.parametrize("asked", [False, True])
def test_a_session_that_ended_with_the_job_is_no_failure_of_a_job_that_was_told_to_end(
    asked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Ended:
        def stop(self) -> None:
            raise ConnectionRefusedError

    def run(_: object, __: object, stopping: threading.Event) -> int:
        if asked:
            stopping.set()
        return 0

    monkeypatch.setattr(job.session, "build", lambda *_, **__: Ended())
    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(job, "maintained", lambda _: nullcontext())
    monkeypatch.setattr(job.signal, "signal", lambda *_: None)
    told = JobSettings(
        tables=(COUNTED,),
        sink=sink_of(divides_by_what_the_whole_batch_has_none_of, "dividing"),
        **dict.fromkeys(("endpoints", "flow", "consumer"), "x"),
        store=f"sqlite://{tmp_path}/store",
        checkpoint="",
    )
    if asked:
        assert job.main("x", told) == 0
    else:
        with pytest.raises(ConnectionRefusedError):
            job.main("x", told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--reconcile", "--redrive"], "--reconcile and --redrive exclude each other"),
        (["--redrive", "--replay", "fix"], "--redrive and --replay exclude each other"),
        ([], "required: --checkpoint"),
        (["--replay", "fix"], "required: --checkpoint"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--endpoints", "x", "--store", "x", *arguments]
    with pytest.raises(SystemExit) as ended:
        parsed(parser("x", ""), given)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["--reconcile", "--redrive", "--dry-run"])
def test_what_runs_no_query_needs_no_checkpoint(mode: str) -> None:
    assert parsed(parser("x", ""), ["--endpoints", "x", "--store", "x", mode])["checkpoint"] == ""


@pytest.mark.spark
def test_a_derivation_that_always_fails_ends_the_job_with_a_typed_refusal(
    flow: FakeFlow,
    node: FakeNode,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(job, "_FAULTS_MAX", 3)
    flow.seal_all([(commit, f"k{commit}", json.dumps(commit)) for commit in range(1, 11)], 5)
    told = JobSettings(
        tables=(COUNTED,),
        sink=sink_of(divides_by_what_the_whole_batch_has_none_of, "dividing"),
        endpoints=node.url,
        flow=flow.name,
        consumer="dividing",
        store=f"sqlite://{tmp_path}/store",
        checkpoint=f"{tmp_path}/checkpoint",
        timeout_s=5,
    )
    assert job.run(spark, told, threading.Event()) == 5
    assert "[DERIVATION_FAILED]" in caplog.text
    assert "no batch has this" in caplog.text
    assert flow.consumers["dividing"].cursor == 0


@pytest.mark.spark
def test_a_job_killed_while_spark_wrote_the_first_note_of_its_checkpoint_starts_again(
    flow: FakeFlow, node: FakeNode, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_FAULTS_MAX", 1)
    flow.seal_all([(commit, f"k{commit}", json.dumps(commit)) for commit in range(1, 11)], 5)
    notes = tmp_path / "checkpoint" / "offsets"
    notes.mkdir(parents=True)
    for name in (".0.cfa01537-625e.tmp", "..0.cfa01537-625e.tmp.crc"):
        (notes / name).touch()
    told = JobSettings(
        tables=(COUNTED,),
        sink=sink_of(counts, "counting"),
        endpoints=node.url,
        flow=flow.name,
        consumer="counting",
        store=f"sqlite://{tmp_path}/store",
        checkpoint=f"{tmp_path}/checkpoint",
        timeout_s=5,
    )
    assert job.run(spark, told, threading.Event()) == 0
    assert flow.consumers["counting"].cursor == flow.last_batch == 2


def test_only_drafts_of_a_checkpoint_without_a_note_are_removed(tmp_path: Path) -> None:
    notes = tmp_path / "offsets"
    notes.mkdir()
    for name in ("0", ".0.crc", ".1.cfa01537.tmp"):
        (notes / name).touch()
    clear_drafts(f"file://{tmp_path}")
    clear_drafts(f"{tmp_path}/absent")
    assert {one.name for one in notes.iterdir()} == {"0", ".0.crc", ".1.cfa01537.tmp"}
