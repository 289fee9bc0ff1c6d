"""A job's `--reconcile`: compares the store with what the job makes of a range of batches, and writes nothing.

Owns: the range, and the lines for people. Read next: `oncegate.spark_sink.reconcile`, `job`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oncegate.spark_sink.applying import Applier
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.reconcile import Reconciled, reconcile
from oncegate.stores.claimed import claimed_store
from oncegate.stores.errors import StoreCode

_BATCHES_SHOWN: Final = 20


def reconciled(settings: JobSettings) -> Reconciled:
    """Compare batches `from_batch` .. `to_batch`, by default all that are there up to the consumer's cursor.

    Raises:
        StoreError: BAD_OPTION, when the range is none, or ends behind the cursor; RETENTION_EXCEEDED, when a batch is
            gone; STORE_MISMATCH; what the gateway, the store and the derivation raise.
    """
    client = settings.client()
    state = client.state()
    position = state.consumers.get(settings.consumer)
    cursor = 0 if position is None else position.cursor
    first, last = settings.from_batch or state.first_batch, settings.to_batch or cursor
    if not 1 <= first <= last <= cursor:
        raise SinkError(
            StoreCode.BAD_OPTION,
            f"batches {first}..{last} are no range that {settings.consumer} has finished: it is at batch {cursor}",
        )

    def read(number: int) -> FlowBatch:
        return FlowBatch(settings.flow, number, client.batch(number), settings.rows_per_write)

    with claimed_store(settings.store, state.cluster_identity) as store:
        return reconcile(
            read,
            first,
            last,
            Applier(settings.derivation(), settings.consumer),
            store,
            tables=(*settings.tables, DEAD_LETTERS),
            only=settings.own_rows(),
            newest=lambda: client.state().last_batch,
        )


def lines(found: Reconciled) -> Iterator[str]:
    """Yield what people are told."""
    if found.equal:
        yield f"equal: {found.rows} rows are as they should be"
        return
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.counts.items()))
    batches = ", ".join(map(str, sorted(found.batches_differing)[:_BATCHES_SHOWN]))
    yield f"differs: {counts}, of {found.rows} rows; batches {batches}"
    for one in found.differences:
        key = " ".join(f"{name}={value!r}" for name, value in one.key.items())
        yield f"{one.kind} {one.table} batch {one.batch} {key}"
    left = found.counts.total() - len(found.differences)
    if left:
        yield f"{left} more"
