"""Batches of one write on their way to the server: how many at once, what is halved, and which rows it refuses.

Owns: the batches that the server has not acknowledged. Must not know tables or connections, nor how long to try.
Read next: :mod:`oncegate.stores.cassandra.failures`.

The server takes or refuses a batch as a whole, and an error names no row. A batch that it refuses, or that may be too
much for it at once, therefore goes again in halves, down to a single row: that row is the one it does not take, and the
others are written.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cassandra.cluster import Session

from oncegate.stores.cassandra.encoding import EncodedBatch
from oncegate.stores.cassandra.failures import fewer_may_do, reason, refuses_content
from oncegate.stores.errors import Rejected

Failure = tuple[EncodedBatch, Exception]


class Sending:
    """The batches of one write; `refused` grows by rows, `waiting` shrinks to nothing."""

    def __init__(self, batches: Sequence[EncodedBatch], in_flight: int) -> None:
        self.waiting = list(batches)
        self.refused: list[Rejected] = []
        self._in_flight = in_flight

    def run(self, session: Session) -> None:
        """Send until every row is acknowledged or refused; after an error a further call goes on with what is left.

        Raises:
            Exception: what the driver raised first, unless it refused a row: `waiting` is sent by the next call.
        """
        while self.waiting:
            self.waiting, failures = send_once(session, self.waiting, self._in_flight)
            for batch, error in failures:
                if batch.count == 1 and refuses_content(error):
                    self.refused.append(Rejected(batch.first, reason(error)))
                else:
                    self.waiting += batch.halves() if batch.count > 1 and fewer_may_do(error) else [batch]
            stopped = [error for _, error in failures if not refuses_content(error)]
            if stopped:
                # It may have been too much at once: the next attempt is more careful.
                self._in_flight = max(1, self._in_flight // 2)
                raise stopped[0]


def send_once(
    session: Session, batches: Sequence[EncodedBatch], in_flight: int
) -> tuple[list[EncodedBatch], list[Failure]]:
    """Send each batch once; return those not sent, because the server did not answer others, and those that failed."""
    places = threading.Semaphore(in_flight)
    failures: list[Failure] = []
    stopped = threading.Event()
    unsent: list[EncodedBatch] = []

    def on_error(error: Exception, batch: EncodedBatch) -> None:
        failures.append((batch, error))
        if not refuses_content(error):
            stopped.set()
        places.release()

    for at, batch in enumerate(batches):
        places.acquire()
        if stopped.is_set():
            # Do not send the rest after a failure: a dead server would cost a timeout for each batch.
            places.release()
            unsent = list(batches[at:])
            break
        session.execute_async(batch).add_callbacks(lambda _: places.release(), on_error, errback_args=(batch,))
    for _ in range(in_flight):
        places.acquire()
    return unsent, failures
