"""The store under the data flows: a Cassandra of this machine, or SQLite to try the commands without one.

Owns: what an experiment needs of it. Figures are of Cassandra alone; nothing of a run on SQLite is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.dataflows.priority import yielding
from oncegate.stores.devcassandra.cluster import DevCluster


class Database(NamedTuple):
    """A running store.

    Attributes:
        nodes: how many it has.
        url: of an empty keyspace by its name, with so many copies of each row.
        pids: its processes.
        kill, start: of the node of this number, from 1; whether it ran.
    """

    nodes: int
    url: Callable[[str, int], str]
    pids: Callable[[], list[int]]
    kill: Callable[[int], bool]
    start: Callable[[int], None]


def of_cassandra(cluster: DevCluster) -> Database:
    """Return a cluster that is up; it yields to whoever answers."""

    def pids() -> list[int]:
        return [pid for node in cluster.nodes if (pid := node.pid())]

    def start(number: int) -> None:
        cluster.start(number)
        yielding(pids())

    yielding(pids())
    return Database(
        nodes=len(cluster.nodes),
        url=lambda keyspace, replicas: f"{cluster.url(keyspace)}?replication={replicas}",
        pids=pids,
        kill=cluster.kill,
        start=start,
    )


def of_sqlite(directory: Path) -> Database:
    """Return stores below ``directory``; nobody can be killed, and their writers are their processes."""
    return Database(
        nodes=1,
        url=lambda keyspace, _: f"sqlite://{directory}/{keyspace}",
        pids=list,
        kill=lambda _: False,
        start=lambda _: None,
    )
