"""What benches with Spark behind the gateway share: the store, jobs of one session, and how far a flow has come."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from oncegate.gateway.local.blocking_http import get_json
from oncegate.spark_sink import session
from oncegate.spark_sink.derivation import Derivation
from oncegate.spark_sink.flow_client import close_connections
from oncegate.spark_sink.jobs import job
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of
from oncegate.stores.devcassandra.cluster import DevCluster, free_ports, running
from oncegate.stores.devcassandra.node import Config
from oncegate.stores.tables import StoreTable

WAIT_S_MAX: Final = 600.0
_ASK_S: Final = 2.0


@contextmanager
def stored(kind: str, directory: Path, name: str, **cassandra: Any) -> Iterator[tuple[str, DevCluster | None]]:
    """Yield the URL of an empty store, and its Cassandra if it is one, made of these words of its `Config`."""
    if kind == "sqlite":
        yield f"sqlite://{directory}/store", None
        return
    with running(free_ports(Config(**cassandra)), directory / "cassandra") as cluster:
        yield cluster.url(name), cluster


def flow(endpoints: Iterable[str], name: str) -> dict[str, Any] | None:
    """Return the description of a flow by the first node that answers."""
    answers = (get_json(f"{endpoint}/v1/flows/{name}", _ASK_S) for endpoint in endpoints)
    return next((answer for answer in answers if answer is not None), None)


def finished(endpoints: Iterable[str], name: str, consumer: str, *, least: int = 1) -> bool:
    """Tell whether a consumer has finished all that is written, ``least`` batches or more."""
    found = flow(endpoints, name)
    known = (found or {"consumers": {}})["consumers"].get(consumer)
    if found is None or not known or found["open_items"]:
        return False
    return bool(known["cursor"] >= found["last_batch"] >= least)


@contextmanager
def spark_of(name: str, cores: int) -> Iterator[SparkSession]:
    """Yield a session of Spark; what it says goes to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session.build(name, cores=cores)
    try:
        yield spark
    finally:
        spark.stop()


class Job:
    """A job in a thread of this process, on the session of all jobs: as `job.run` runs it in a process of its own.

    Args:
        spark: the session.
        name: of the sink.
        derivation: what it makes.
        tables: that it writes.
        settings: further ones.
    """

    def __init__(
        self, spark: SparkSession, name: str, derivation: Derivation, tables: Sequence[StoreTable], **settings: Any
    ) -> None:
        made = {"tables": tuple(tables), "sink": sink_of(derivation, name), "available_now": False, **settings}
        self.settings = JobSettings(**made)
        self.status: int | None = None
        self._spark = spark
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.settings.replay or self.settings.consumer)
        self._thread.start()

    def stop(self) -> int | None:
        """Ask it to end and wait; its exit status."""
        self._stopping.set()
        return self.ended()

    def ended(self) -> int | None:
        """Wait until it has ended by itself; its exit status, None when it does not."""
        self._thread.join(WAIT_S_MAX)
        return self.status

    def _run(self) -> None:
        # Spark looks sinks up in the session that is active in this thread; making a frame makes it that.
        self._spark.createDataFrame([(1,)], "number int")
        self.status = job.run(self._spark, self.settings, self._stopping)
        close_connections()  # they are this thread's
