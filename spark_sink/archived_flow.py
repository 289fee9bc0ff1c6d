"""A flow whose dropped batches come from its archive: the source reads both alike, without a gap or an overlap.

Owns: which of the two answers. Must not know Spark. Read next: `oncegate.stores.archive`, `flow_client`.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_client import ConsumerLease, FlowClient, FlowState
from oncegate.stores.archive import FlowArchive
from oncegate.stores.errors import StoreCode


class ArchivedFlow:
    """Reads batches from the gateway, and from the archive those that the gateway has dropped; calls as `FlowClient`.

    Args:
        gateway: client of the flow; None: only the archive is read, and nothing is attached.
        archive: URL of the archive.
        flow: name of the flow.
        cluster: identity of the cluster; asked of the gateway when empty.
    """

    def __init__(self, gateway: FlowClient | None, archive: str, flow: str, cluster: str = "") -> None:
        self._gateway, self._url, self._flow, self._cluster = gateway, archive, flow, cluster
        self._archive: FlowArchive | None = None
        self._dropped_through = 0

    def state(self) -> FlowState:
        """Return the flow with the batches that gateway and archive have together, and the gateway's consumers.

        Raises:
            StoreError: as `FlowClient.state`, and what the archive raises.
        """
        found = FlowState(1, 0, {}, self._cluster) if self._gateway is None else self._gateway.state()
        archive = self._opened(found.cluster_identity)
        archive.refresh()
        if self._gateway is None:
            return replace(found, first_batch=archive.first_batch, last_batch=archive.last_batch)
        joined = archive.first_batch < found.first_batch <= archive.last_batch + 1
        return replace(found, first_batch=archive.first_batch) if joined else found

    def batch(self, number: int) -> pa.RecordBatch:
        """Return the items of a sealed batch, columns of `PLAIN_SCHEMA`.

        Raises:
            StoreError: as `FlowClient.batch`; RETENTION_EXCEEDED, when neither has it.
        """
        if self._gateway is not None and number > self._dropped_through:
            try:
                return self._gateway.batch(number)
            except SinkError as refused:
                if refused.code is not StoreCode.RETENTION_EXCEEDED:
                    raise
                self._dropped_through = number
        archive = self._opened("")
        if not archive.first_batch <= number <= archive.last_batch:
            archive.refresh()
        return archive.batch(number)

    def attach(self, consumer: str, nonce: str) -> ConsumerLease:
        """See `FlowClient.attach`."""
        return self._live().attach(consumer, nonce)

    def move_cursor(self, consumer: str, batch: int, fence: int) -> int:
        """See `FlowClient.move_cursor`."""
        return self._live().move_cursor(consumer, batch, fence)

    def remove_consumer(self, consumer: str) -> None:
        """See `FlowClient.remove_consumer`."""
        self._live().remove_consumer(consumer)

    def _live(self) -> FlowClient:
        if self._gateway is None:
            raise SinkError(StoreCode.BAD_OPTION, "a consumer needs endpoints: an archive alone has no cursors")
        return self._gateway

    def _opened(self, cluster: str) -> FlowArchive:
        if self._archive is None:
            identity = self._cluster or cluster
            if not identity and self._gateway is not None:
                identity = self._gateway.state().cluster_identity
            self._archive = FlowArchive(self._url, identity, self._flow)
        return self._archive
