"""Fixtures that several packages share."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer.testing
from _pytest.mark.expression import Expression
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from oncegate.gateway.http.server import running
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control lets what it starts in the background ignore Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No absolute time is asserted: a busy machine takes as long as it takes.
settings.register_profile("suite", settings.default, deadline=None)
settings.load_profile("suite")

# Its runner makes the commands of a command line for each call, which takes thirty times as long as most calls.
typer.testing._get_command = functools.cache(typer.testing._get_command)

SECONDS = {
    "spark/test_library_kills.py": 150,
    "spark/test_table_sink.py": 110,
    "spark/test_submit.py": 90,
    "spark/test_kill.py": 70,
    "spark/test_chain.py": 65,
    "spark/test_archive.py": 50,
    "examples/test_tutorial.py": 35,
    "spark/test_scenarios.py": 40,
    "spark/test_job_faults.py": 35,
    "spark/test_replay.py": 25,
    "examples/test_spark_page.py": 25,
    "client/test_public_exports.py": 20,
    "faults/test_gateway_faults.py": 15,
    "browser/test_dashboard.py": 6,
    "check/test_workload_runs.py": 12,
    "check/test_stored.py": 12,
    "faults/test_any_node.py": 8,
    "spark/test_timeline_job.py": 8,
    "check/test_planted_bugs.py": 6,
    "test_counted.py": 6,
    "spark/test_cassandra_secured.py": 5,
    "sim/test_gateway.py": 5,
    "gateway/test_http_members.py": 5,
    "gateway/test_openapi.py": 4,
    "sim/test_world.py": 3,
    "mutants/test_mutants.py": 3,
    "model/test_protocol.py": 3,
    "verify/test_verify.py": 3,
}
"""Of one test, slow ones beside three others; ``ANY_S`` in other files. They only order what is run."""
ANY_S = 2
OF_THEIR_OWN = (
    "spark/test_library_kills.py",
    "spark/test_table_sink.py",
    "spark/test_kill.py",
    "check/test_workload_runs.py",
    "check/test_planted_bugs.py",
    "check/test_stored.py",
)
"""Files whose tests share nothing."""
OF_THE_JVM = ("spark", "cassandra", "packaging")
"""Slow tests that want the processor; the others mostly wait, for elections and leases."""
WAITING = ("faults", "browser")
SLOW_TEXT = re.compile(rf"mark\.({'|'.join((*OF_THE_JVM, *WAITING))})\b|\bstore_url\b")
"""Stands in a file with slow tests; those of a ``store_url`` on Cassandra are marked by their fixture."""

SPARK_DIRS = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Have each JVM write below one folder: one that is killed removes nothing."""
    if not hasattr(config, "workerinput") and "SPARK_LOCAL_DIRS" not in os.environ:
        config.stash[SPARK_DIRS] = Path(tempfile.mkdtemp(prefix="oncegate-spark-"))
        os.environ["SPARK_LOCAL_DIRS"] = str(config.stash[SPARK_DIRS])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what they left."""
    if SPARK_DIRS in config.stash:
        del os.environ["SPARK_LOCAL_DIRS"]
        shutil.rmtree(config.stash[SPARK_DIRS], ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where a run is of slow tests alone, leave out files without any: each worker would import them all."""
    wanted = config.option.markexpr
    if not wanted or not collection_path.match("test_*.py"):
        return None
    of_the_others = Expression.compile(wanted).evaluate(lambda name, /, **_: False)
    return True if not of_the_others and not _has_slow_text(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first, so that nothing long begins last, and spread what wants the processor over the run."""
    for path in {item.path for item in _marked(items, (*OF_THE_JVM, *WAITING))}:
        if not _has_slow_text(path):
            raise pytest.UsageError(f"{path} has slow tests, and no run of them alone would find it: see SLOW_TEXT")
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(_unit(item.nodeid), []).append(item)
    placed: list[tuple[float, list[pytest.Item]]] = []
    of_the_jvm, waiting, quick = [], [], []
    for unit in units.values():
        kind = of_the_jvm if _marked(unit, OF_THE_JVM) else waiting if _marked(unit, WAITING) else quick
        kind.append(unit)
    for kind in (of_the_jvm, waiting):
        kind.sort(key=_seconds, reverse=True)
        total, before = sum(map(_seconds, kind)), 0.0
        for unit in kind:
            placed.append((before / total, unit))
            before += _seconds(unit)
    placed.sort(key=lambda at: at[0])
    quick.sort(key=lambda unit: _of_one(unit[0]), reverse=True)
    items[:] = [item for unit in [*(unit for _, unit in placed), *quick] for item in unit]


def _has_slow_text(path: Path) -> bool:
    return SLOW_TEXT.search(path.read_text()) is not None


def _seconds(unit: list[pytest.Item]) -> float:
    return sum(map(_of_one, _marked(unit, (*OF_THE_JVM, *WAITING))))


def _marked(unit: list[pytest.Item], marks: tuple[str, ...]) -> list[pytest.Item]:
    return [item for item in unit if any(map(item.get_closest_marker, marks))]


def _of_one(item: pytest.Item) -> float:
    return SECONDS.get(item.path.relative_to(Path(__file__).parent).as_posix(), ANY_S)


def _unit(nodeid: str) -> str:
    """Return what one process runs as a whole: a file, or a test that shares nothing, or all on one Cassandra."""
    path = nodeid.partition("::")[0]
    if nodeid.endswith("[cassandra]"):
        return "cassandra"
    return nodeid if path.removeprefix("tests/") in OF_THEIR_OWN else path


class Units(LoadScopeScheduling):
    """Gives a unit at a time to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """``--dist loadgroup``: units; xdist's own groups are lost on this version of pytest."""
    return Units(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three real node processes, ready."""
    with LocalCluster(tmp_path / "cluster") as started:
        started.start()
        started.wait_ready()
        yield started


class Api:
    """HTTP against one node: status, headers and decoded body in one call."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def call(self, method: str, path: str, body: Any = None, **how: Any) -> tuple[int, Any, Any]:
        """Send ``body`` as JSON, or ``data=`` raw; return (status, headers, JSON or text)."""
        if body is not None:
            how["json"] = body
        async with self._http.request(method, path, **how) as answer:
            kind = answer.content_type
            decoded = await answer.json(content_type=None) if kind.endswith("json") else await answer.read()
            return answer.status, answer.headers, decoded

    async def session(self, nonce: str = "nonce-1", **options: Any) -> str:
        """Open a session and return its client id."""
        status, _, opened = await self.call("POST", "/v1/sessions", {"nonce": nonce, **options})
        assert status in (200, 201), opened
        client_id: str = opened["client_id"]
        return client_id

    async def operate(
        self, client_id: str, *operations: dict[str, Any], first_incomplete: int = 1, epoch: int = 1
    ) -> Any:
        """Send operations and return their results."""
        body = {
            "client_id": client_id,
            "epoch": epoch,
            "first_incomplete": first_incomplete,
            "operations": list(operations),
        }
        status, _, answer = await self.call("POST", "/v1/operations", body)
        assert status == 200, answer
        return answer["results"]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """A durable cluster of one in this process, behind its real HTTP server."""
    http_port, peer_port = free_ports(2)
    settings = Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=tmp_path / "n1")
    async with running(settings) as node, aiohttp.ClientSession(base_url=f"http://127.0.0.1:{http_port}") as http:
        async with asyncio.timeout(60):
            while not node.machine.identity:  # the last entry that a new cluster orders by itself
                await asyncio.sleep(0.01)
        yield Api(http)


@asynccontextmanager
async def each_node(cluster: LocalCluster) -> AsyncIterator[dict[str, Api]]:
    """Talk to every node by its id, on connections of its own."""
    async with AsyncExitStack() as stack:
        yield {
            node_id: Api(await stack.enter_async_context(aiohttp.ClientSession(base_url=cluster.endpoint(node_id))))
            for node_id in cluster.ids
        }
