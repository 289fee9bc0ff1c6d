"""`oncegate spark submit`: what is packed imports, a job is started again until a refusal, its progress is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from oncegate.gateway.cli.spark import spark, with_defaults
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.processes import end_session, spawn
from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.jobs import submit
from oncegate.spark_sink.jobs.progress import Progress
from oncegate.spark_sink.jobs.settings import parser
from oncegate.spark_sink.jobs.submit import Target, command, pack, supervise
from oncegate.stores import claimed_store
from tests.observability.promlint import problems
from tests.spark.conftest import QUICK_JVM
from tests.spark.fake_gateway import FakeFlow, FakeNode


def line(at_s: float, items: int, behind: int, batch: int, dead: int = 0) -> dict[str, object]:
    return {
        "time_ms": int(at_s * 1000),
        "items": items,
        "rows": 3 * items,
        "rows_by_table": {"t": 3 * items - dead, "job_dead_letters": dead},
        "last_batch": batch,
        "lag_batches": behind // 10,
        "lag_items": behind,
        "lag_ms": behind,
    }


def test_progress_tells_rates_lag_and_the_time_left() -> None:
    progress = Progress()
    assert progress.time_left_s() == 0
    progress.add(line(100, 50, 1_000, 5))
    assert progress.time_left_s() is None, "one look tells no rate"
    progress.add(line(110, 500, 800, 9, dead=2))
    assert progress.per_second() == (50, 150)
    assert progress.time_left_s() == 40, "the lag shrinks by 20 a second, arrivals included"
    assert "40 s left" in progress.text()
    assert "2 dead letters" in progress.text()
    progress.add(line(120, 500, 1_200, 12))
    assert progress.time_left_s() is None
    assert "does not catch up" in progress.text()
    progress.add({**line(130, 10, 0, 13), "lag_items": None, "lag_ms": None, "lag_batches": None})
    assert progress.lag_items == 1_200, "no answer about the lag is no lag of 0"
    text = progress.metrics("hourly")
    assert 'oncegate_job_items_total{consumer="hourly"} 1060\n' in text
    assert 'oncegate_job_dead_letters_total{consumer="hourly"} 2\n' in text
    assert "seconds_left" not in text


def test_metrics_of_a_job_are_what_promtool_accepts_and_count_dropped_spans() -> None:
    progress = Progress()
    assert problems(progress.metrics("hourly")) == [], "before the first line"
    progress.add(line(100, 50, 1_000, 5))
    progress.add({**line(110, 500, 800, 9), "spans_dropped": 7})
    progress.add({**line(120, 500, 600, 12), "spans_dropped": 1})
    text = progress.metrics("hourly")
    assert problems(text) == []
    assert 'oncegate_job_spans_dropped_total{consumer="hourly"} 8\n' in text
    assert "oncegate_job_seconds_left" in text


def test_what_is_packed_is_all_that_an_executor_imports(tmp_path: Path) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    (own / "__init__.py").write_text("ANSWER = 42\n")
    packed = pack(tmp_path / "job.zip", [own])
    libraries = sysconfig.get_path("purelib")
    # -S: without the links of this checkout; what is compiled comes from the environment, ours from the file.
    program = (
        f"import sys; sys.path[:0] = [{str(packed)!r}]; sys.path.append({libraries!r})\n"
        "import mine, oncegate.spark, oncegate.spark_sink.source, oncegate.spark_sink.jobs.job\n"
        f"assert oncegate.spark.__file__.startswith({str(packed)!r}), oncegate.spark.__file__\n"
        "assert mine.ANSWER == 42\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, cwd=tmp_path)


def test_each_target_has_its_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, packed = tmp_path / "job.py", tmp_path / "job.zip"
    assert command(program, ["--flow", "f"], Target(), None) == [sys.executable, str(program), "--flow", "f"]
    there = command(program, ["--flow", "f"], Target(master="spark://h:7077", arguments=("--conf", "a=b")), packed)
    assert there[0].endswith("/bin/spark-submit")
    assert there[1:] == [
        *("--master", "spark://h:7077", "--py-files", str(packed), "--conf", "a=b", str(program), "--flow", "f")
    ]
    assert submit.environment(Target(remote="sc://h"))["SPARK_REMOTE"] == "sc://h"
    assert "SPARK_REMOTE" not in submit.environment(Target())
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        submit.spark_submit()


def test_defaults_never_overrule_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    given = ["--flow", "posts", "--consumer=hourly", "--trigger", "available-now", "--progress", str(tmp_path / "p")]
    options, consumer, progress = with_defaults(given)
    assert (consumer, progress) == ("hourly", tmp_path / "p")
    assert options == [*given, "--checkpoint", str(tmp_path / "state/oncegate/jobs/posts.hourly/checkpoint")]


PROGRAM = """
import os, signal, sys
starts, progress, last = sys.argv[1:]
with open(starts, "a") as file:
    file.write("x")
count = os.path.getsize(starts)
if count == 1:
    sys.exit(1)  # the session was lost
if count == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if count == 3:
    with open(progress, "a") as file:
        file.write('{line}')
    sys.exit(70)
sys.exit(int(last))
"""


@pytest.mark.parametrize("last", [0, 3, 5])
def test_a_job_is_started_again_after_whatever_may_pass_and_its_last_word_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    for name in ("_WAIT_S_MIN", "_LOOK_S"):
        monkeypatch.setattr(submit, name, 0.01)
    program = tmp_path / "job.py"
    program.write_text(PROGRAM.replace("{line}", json.dumps(line(1, 5, 0, 2)) + "\\n"))
    progress_file, seen = tmp_path / "progress", []
    progress_file.write_text("what an earlier supervisor has read\n")
    words = [sys.executable, str(program), str(tmp_path / "starts"), str(progress_file), str(last)]
    found = supervise(words, os.environ, progress_file, threading.Event(), lambda told: seen.append(told.text()))
    assert found == last
    assert (tmp_path / "starts").read_text() == "xxxx"
    assert any("5 items in" in text for text in seen)


TORN = """
import os, sys
progress, good = sys.argv[1:]
with open(progress, "r+") as file:
    file.truncate()  # somebody keeps files short
    file.write(good[:9] + good + "\\n[]\\n{}\\n" + good + "\\n")
"""


def test_what_a_progress_file_holds_and_a_full_disk_end_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_LOOK_S", 0.01)
    (tmp_path / "job.py").write_text(TORN)
    progress_file, seen = tmp_path / "progress", []
    progress_file.write_text("what an earlier supervisor has read\n" * 100)

    def report(told: Progress) -> None:
        seen.append(told.items)
        raise OSError("no space left on device")

    words = [sys.executable, str(tmp_path / "job.py"), str(progress_file), json.dumps(line(1, 5, 0, 2))]
    assert supervise(words, os.environ, progress_file, threading.Event(), report) == 0
    assert seen[-1] == 5


def test_a_supervisor_that_fails_leaves_no_job_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_LOOK_S", 0.01)
    program = "import sys, time\nopen(sys.argv[1], 'w').write(sys.argv[2] + '\\n')\ntime.sleep(600)\n"
    (tmp_path / "job.py").write_text(program)

    def report(_: Progress) -> None:
        raise RuntimeError("a fault of its own")

    words = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "p"), json.dumps(line(1, 5, 0, 2))]
    with pytest.raises(RuntimeError, match="of its own"):
        supervise(words, os.environ, tmp_path / "p", threading.Event(), report)


def test_a_stop_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("import sys, time, pathlib\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)\n")
    stopping, statuses = threading.Event(), []
    words = [sys.executable, str(program), str(tmp_path / "started")]
    running = threading.Thread(
        target=lambda: statuses.append(supervise(words, os.environ, tmp_path / "p", stopping, lambda _: None))
    )
    running.start()
    wait_for((tmp_path / "started").exists, 60, "the job runs")
    stopping.set()
    running.join()
    assert statuses == [0]


JOB = """
import os, pathlib
from oncegate.spark import Column, ColumnType, StoreTable, main

COPY = StoreTable("copy", (Column("key", ColumnType.TEXT), Column("value", ColumnType.TEXT)), ("key",))


def copy(batch):
    # Which executor this is: each has a directory of its own.
    pathlib.Path({seen!r}, pathlib.Path.cwd().parent.parent.name).touch()
    for item in batch:
        yield item.upsert(COPY, key=item.key, value=item.value)


if __name__ == "__main__":
    raise SystemExit(main(copy, [COPY]))
"""


def _says(log: Path, words: str) -> bool:
    return words in log.read_text()


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers of one core each; yields the master's URL."""
    import pyspark

    port, page = free_ports(2)
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    quiet = {**os.environ, **QUICK_JVM, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    deploy = "org.apache.spark.deploy"
    commands = {
        "master": [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    }
    for number in (1, 2):
        own = [
            "--cores",
            "1",
            "--memory",
            "700m",
            "--work-dir",
            str(directory / f"worker{number}"),
            "--webui-port",
            "0",
        ]
        commands[f"worker{number}"] = [f"{deploy}.worker.Worker", *own, f"spark://127.0.0.1:{port}"]
    with ExitStack() as stack:
        for name, words in commands.items():
            log = directory / f"{name}.log"
            process = spawn([spark_class, *words], log, {**quiet, "SPARK_DAEMON_MEMORY": "256m"})
            stack.callback(process.wait)
            stack.callback(end_session, process.pid)
            said = "I have been elected leader" if name == "master" else "Successfully registered with master"
            wait_for(partial(_says, log, said), 120, name)
        yield f"spark://127.0.0.1:{port}"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_submitted_job_runs_on_both_workers_of_a_standalone_cluster(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    items = [(commit, f"k{commit}", json.dumps(commit)) for commit in range(1, 401)]
    flow.seal_all(items, 10)
    seen = tmp_path / "seen"
    seen.mkdir()
    program = tmp_path / "copying.py"
    program.write_text(JOB.format(seen=str(seen)))
    store = f"sqlite://{tmp_path}/store"
    with standalone(tmp_path) as master:
        words = [sys.executable, "-m", "oncegate", "spark", "submit", str(program), "--master", master]
        words += [
            word
            for one in (
                "spark.executor.cores=1",
                "spark.executor.memory=512m",
                "spark.driver.host=127.0.0.1",
                "spark.driver.bindAddress=127.0.0.1",
                "spark.scheduler.minRegisteredResourcesRatio=1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
                "spark.ui.enabled=false",
            )
            for word in ("--conf", one)
        ]
        words += ["--metrics", str(tmp_path / "job.prom"), "--endpoints", node.url, "--flow", flow.name]
        words += ["--consumer", "copying", "--store", store, "--batches-per-trigger", "20"]
        told = {**os.environ, **QUICK_JVM, "XDG_STATE_HOME": str(tmp_path / "state")}
        job = spawn(words, tmp_path / "submit.log", told)
        try:
            wait_for(
                lambda: "copying" in flow.consumers and flow.consumers["copying"].cursor == flow.last_batch,
                300,
                "all is delivered",
                state=(tmp_path / "submit.log").read_text,
            )
            # The cursor moves before the micro-batch is told of.
            metrics = tmp_path / "job.prom"
            nothing_left = 'lag_items{consumer="copying"} 0'
            wait_for(lambda: metrics.exists() and nothing_left in metrics.read_text(), 60, "metrics tell the end")
            os.kill(job.pid, signal.SIGTERM)
            assert job.wait(120) == 0
        finally:
            end_session(job.pid)
    assert {path.name for path in seen.iterdir()} == {"worker1", "worker2"}
    from oncegate.spark import Column, ColumnType, StoreTable

    table = StoreTable("copy", (Column("key", ColumnType.TEXT), Column("value", ColumnType.TEXT)), ("key",))
    with claimed_store(store) as opened:
        rows = [row for found in opened.scan(table) for row in found.to_pylist()]
    assert {(row["key"], row["value"]) for row in rows} == {(key, value) for _, key, value in items}


MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "job.yaml"


def test_the_kubernetes_manifest_fits_the_schema_and_names_options_that_there_are() -> None:
    found = list(yaml.safe_load_all(MANIFEST.read_text()))
    for one in found:
        kubernetes_validate.validate(one, "1.32", strict=True)
    container = next(one for one in found if one["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]
    known = {option for name in ("submit", "job") for option in _options(name)}
    assert {word.partition("=")[0] for word in container["args"]} <= known


def _options(name: str) -> set[str]:
    if name == "job":
        return {option for action in parser("any", "any")._actions for option in action.option_strings} | {
            "--flow",
            "--consumer",
        }
    command = get_command(spark).commands["submit"]  # type: ignore[attr-defined]
    return {option for parameter in command.params for option in parameter.opts}
