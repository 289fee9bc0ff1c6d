"""What travels to Cassandra: many rows with one text are a fraction of their bytes, and arrive as they are."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pyarrow as pa
import pytest

from oncegate.stores import WRITE_TS, open_store
from oncegate.stores.cassandra.store import CassandraStore
from oncegate.stores.devcassandra import DevCluster
from oncegate.stores.stream_rows import STREAM_ROWS

pytestmark = pytest.mark.cassandra
ROWS = 2_000
VALUE = "the same words in every row, as in copies of one post, " * 3
_TCP_INFO_BYTES_ACKED_AT = 120
"""Of struct tcp_info (linux/tcp.h)."""


def sent_bytes(store: CassandraStore) -> int:
    """Return how many bytes of the connections that rows take the servers have acknowledged."""
    found = 0
    for pool in store._connection.writer().get_pools():
        told = pool._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found += struct.unpack_from("=Q", told, _TCP_INFO_BYTES_ACKED_AT)[0]
    return found


def test_rows_with_one_text_travel_in_a_fraction_of_their_bytes(cassandra: DevCluster) -> None:
    sent = {}
    columns: dict[str, list[Any]] = {"source": ["events"] * ROWS, "key": [f"{number:08d}" for number in range(ROWS)]}
    columns |= {"value": [VALUE] * ROWS, WRITE_TS: [1] * ROWS}
    rows = pa.RecordBatch.from_pydict(columns, schema=STREAM_ROWS.schema)
    for compression in ("on", "off"):
        with open_store(f"{cassandra.url(f'wire_{compression}')}?compression={compression}") as store:
            assert isinstance(store, CassandraStore)
            store.create([STREAM_ROWS])
            before = sent_bytes(store)
            store.write(STREAM_ROWS, rows)
            sent[compression] = sent_bytes(store) - before
            found = [row for part in store.scan(STREAM_ROWS) for row in part.to_pylist()]
            assert sorted((row["key"], row["value"]) for row in found) == [(key, VALUE) for key in columns["key"]]
    assert sent["off"] > ROWS * len(VALUE)
    assert sent["on"] < sent["off"] / 4
