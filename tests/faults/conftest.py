"""Options of the tests with real faults, and the clusters of their modules: one of gateways, one of bare replicas."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment, missing
from oncegate.proof.check.nemesis.nemesis import make_whole
from tests.conftest import Api, each_node
from tests.faults.harness.scene import Scene, running

WHOLE_S = 60.0


@pytest.fixture
def soak() -> int:
    """How many times more rounds than CI does: ``ONCEGATE_SOAK=20``."""
    return int(os.environ.get("ONCEGATE_SOAK", "1"))


@pytest.fixture(scope="session")
def seed_of_session() -> int:
    return int(os.environ.get("ONCEGATE_SEED") or random.SystemRandom().randrange(2**32))


@pytest.fixture(autouse=True)
def seed(seed_of_session: int) -> int:
    """Of the test's own choices; shown when it fails, repeated with ``ONCEGATE_SEED``."""
    sys.stdout.write(f"ONCEGATE_SEED={seed_of_session}\n")
    return seed_of_session


@pytest.fixture(scope="module")
def gateways_of_module(tmp_path_factory: pytest.TempPathFactory, seed_of_session: int) -> Iterator[CheckCluster]:
    """Three ready gateway nodes, each pair joined through a proxy; where the machine allows it they can lose power."""
    equipment = {Equipment.FLUSHES} - missing().keys()
    with CheckCluster(tmp_path_factory.mktemp("gateways"), equipment=equipment, seed=seed_of_session) as started:
        started.start()
        started.wait_ready()
        yield started


@pytest.fixture
def gateways(gateways_of_module: CheckCluster) -> Iterator[CheckCluster]:
    """The module's gateways, whole again after each test; tables, flows and sessions of earlier tests are there."""
    yield gateways_of_module
    sys.stdout.write(gateways_of_module.log_tails())
    make_whole(gateways_of_module, WHOLE_S)


@pytest.fixture
async def nodes(gateways: CheckCluster) -> AsyncIterator[dict[str, Api]]:
    """Each gateway by its id, on connections of its own."""
    async with each_node(gateways) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(tmp_path_factory: pytest.TempPathFactory, seed_of_session: int) -> AsyncIterator[Scene]:
    """Three bare replicas and their client, each pair joined through a proxy."""
    async with running(tmp_path_factory.mktemp("replicas"), seed=seed_of_session) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def scene(replicas: Scene) -> AsyncIterator[Scene]:
    """The module's replicas under load; in the end they are whole, and hold what their client was told."""
    async with replicas.client.loaded(64):
        await replicas.progress(1000)
        yield replicas
    for name in replicas.cluster.ids:
        sys.stdout.write(f"--- log of {name}\n{replicas.cluster.log_tail(name, 30)}\n")
    replicas.cluster.thaw(*replicas.cluster.frozen.copy())
    await replicas.finish()
