"""The scenarios of `bench.scenarios`, short: three real gateway nodes, every row exact at the end."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.scenarios import page
from bench.scenarios.__main__ import parse, play
from bench.scenarios.scene import CONSUMER, Scene
from oncegate.stores.devcassandra import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]
SECONDS, RATE = 2.0, 60


def played(name: str, spark: SparkSession, store: str, directory: Path, cassandra: DevCluster | None = None) -> Scene:
    with Scene(directory, spark, store, rate=RATE, seed=3, say=print) as scene:
        story = play(name, scene, cassandra, SECONDS)
    failed = [check for check in scene.checks if not check.passed]
    assert not failed
    text = page.render(name, story, scene, {})
    assert "<svg" in text
    assert CONSUMER in text
    return scene


@pytest.mark.parametrize("name", ["replay", "rebuilt"])
def test_the_scenario_ends_exact_and_is_drawn(name: str, spark: SparkSession, tmp_path: Path) -> None:
    scene = played(name, spark, f"sqlite://{tmp_path}/store", tmp_path)
    assert scene.behind() > 0


@pytest.mark.cassandra
def test_all_nodes_of_cassandra_die_under_traffic_and_nothing_is_lost(
    spark: SparkSession, cassandra: DevCluster, tmp_path: Path
) -> None:
    played("cassandra-down", spark, cassandra.url(f"t{uuid.uuid4().hex[:20]}"), tmp_path, cassandra)


def test_a_wrong_name_is_misuse() -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["nothing"])
    assert ended.value.code == 2
