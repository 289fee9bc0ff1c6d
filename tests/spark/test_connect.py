"""A job over Spark Connect, whose sessions have no context and no JVM at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import oncegate.spark_sink
from oncegate.stores import open_store
from tests.spark.fake_gateway import FakeFlow, FakeNode
from tests.spark.recount import expected, messages, stored, write_contacts

EDGES = [(sender, 100 + follower) for sender in range(4) for follower in range(5)]


def test_no_job_asks_for_what_connect_lacks() -> None:
    for file in Path(oncegate.spark_sink.__file__).parent.rglob("*.py"):
        assert "sparkContext" not in file.read_text(), file


@pytest.mark.spark
def test_a_job_delivers_everything_through_a_server_of_spark_connect(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="needs pyspark[connect]")
    items, store_url = messages(6, 200), f"sqlite://{tmp_path}/store"
    flow.seal_all(items, 30)
    command = [sys.executable, "-m", "oncegate.spark_sink.jobs.timeline", "--endpoints", node.url, "--flow", flow.name]
    command += ["--consumer", "fan-out", "--store", store_url, "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--contacts", write_contacts(tmp_path / "contacts.csv", EDGES)]
    # The client starts the server by itself and talks to it as to any other.
    environment = {**os.environ, "SPARK_REMOTE": "local[2]", "PYSPARK_PYTHON": sys.executable}
    subprocess.run(command, env=environment, check=True, timeout=280)
    assert flow.consumers["fan-out"].cursor == flow.last_batch
    with open_store(store_url) as store:
        assert stored(store) == expected(items, EDGES)
