"""Rows into Cassandra by the driver as its documentation shows: prepared statements, single or in unlogged batches."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import BatchStatement, BatchType

REQUEST_S: Final = 60.0


class Writer:
    """Sends batches of rows with a prepared statement, so many at once."""

    def __init__(self, session: Any, statement: str, in_flight: int) -> None:
        self._session, self._statement = session, session.prepare(statement)
        self._places, self._in_flight = threading.Semaphore(in_flight), in_flight
        self._errors: list[Exception] = []

    def send(self, rows: Sequence[Any]) -> None:
        """Send rows in a batch, one alone without; waits for a place."""
        if len(rows) == 1:
            statement, values = self._statement, rows[0]
        else:
            statement, values = BatchStatement(BatchType.UNLOGGED), None
            for row in rows:
                statement.add(self._statement, row)
        self._places.acquire()
        self._session.execute_async(statement, values).add_callbacks(lambda _: self._places.release(), self._failed)

    def write(self, groups: Iterable[Sequence[Any]], rows_per_batch: int) -> None:
        """Send all rows, batches of one group each, and wait until they are written; raises the first failure."""
        for rows in groups:
            for at in range(0, len(rows), rows_per_batch):
                self.send(rows[at : at + rows_per_batch])
        for _ in range(self._in_flight):
            self._places.acquire()
        for _ in range(self._in_flight):
            self._places.release()
        if self._errors:
            raise self._errors[0]

    def _failed(self, error: Exception) -> None:
        self._errors.append(error)
        self._places.release()


@contextmanager
def connected(places: Sequence[tuple[str, int]]) -> Iterator[Any]:
    """Yield a session of the driver."""
    profile = ExecutionProfile(TokenAwarePolicy(DCAwareRoundRobinPolicy()), request_timeout=REQUEST_S)
    with Cluster(list(places), execution_profiles={EXEC_PROFILE_DEFAULT: profile}, protocol_version=4) as cluster:
        yield cluster.connect()
