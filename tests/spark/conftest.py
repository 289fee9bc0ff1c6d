"""Fixtures of the Spark side: one session for the suite, one Cassandra for the suite, a fake gateway a test."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncegate.spark_sink import session
from oncegate.spark_sink.flow_client import close_connections
from oncegate.spark_sink.source import OncegateSource
from oncegate.stores.devcassandra import Config, DevCluster, running
from oncegate.stores.devcassandra.cluster import free_ports
from tests.spark.fake_gateway import FakeFlow, FakeNode, serving
from tests.spark.planted import ClockTimelineSink, ClockValueSink, LatestValueSink


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    built = session.build("tests", cores=2)
    for source in (OncegateSource, LatestValueSink, ClockValueSink, ClockTimelineSink):
        built.dataSource.register(source)
    yield built
    built.stop()


QUICK_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Environment of a JVM that lives for a test: compiling well costs more than it brings."""


@pytest.fixture(scope="session")
def cassandra() -> Iterator[DevCluster]:
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # Spark's JVM has options of its own
            for name, value in QUICK_JVM.items():
                patch.setenv(name, value)
            # Each test has a keyspace of its own, whose tables stay in memory: half a gigabyte is full at the end.
            cluster = stack.enter_context(running(free_ports(Config(commitlog_sync="group", heap="1g"))))
        yield cluster


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty store, of either kind."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/store"
    cluster: DevCluster = request.getfixturevalue("cassandra")
    return cluster.url(f"t{uuid.uuid4().hex[:20]}")


_flows = itertools.count(1)


@pytest.fixture
def flow() -> FakeFlow:
    """A flow of another name each time: Spark's workers outlive a test and remember what each batch was."""
    return FakeFlow(f"flow{next(_flows)}")


@pytest.fixture
def node(flow: FakeFlow) -> Iterator[FakeNode]:
    with serving(flow) as served:
        yield served
    close_connections()
