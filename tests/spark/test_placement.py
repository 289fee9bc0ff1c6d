"""Batches over partitions: the same replicas, bounded bytes and partitions, and no row lost or moved out of turn."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from cassandra.metadata import KeyspaceMetadata, Metadata, Murmur3Token, TokenMap
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.stores.cassandra.encoding import encode
from oncegate.stores.cassandra.placement import PARTITIONS_MAX, Ring, place
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

TABLE = StoreTable(
    name="t",
    columns=(
        Column("a", ColumnType.TEXT),
        Column("b", ColumnType.INT64),
        Column("c", ColumnType.INT64),
        Column("v", ColumnType.TEXT),
    ),
    partition_key=("a", "b"),
    clustering=(Clustering("c", descending=True),),
)


class DriversRing:
    """What the driver knows of a cluster of ``nodes`` nodes with four tokens each; keyspace `ks` has ``copies``."""

    def __init__(self, nodes: int, copies: int) -> None:
        self.keyspaces = Metadata()
        self.keyspaces.keyspaces["ks"] = KeyspaceMetadata("ks", True, "SimpleStrategy", {"replication_factor": copies})
        hosts = [Host(f"10.0.0.{node}", SimpleConvictionPolicy, host_id=uuid.UUID(int=node)) for node in range(nodes)]
        tokens = [-(2**63) + 2**64 * part // (nodes * 4) - 1 for part in range(1, nodes * 4 + 1)]
        owners = {Murmur3Token(token): hosts[at % nodes] for at, token in enumerate(tokens)}
        self.token_map = TokenMap(Murmur3Token, owners, sorted(owners), self.keyspaces)
        for host in hosts:
            host.set_location_info("dc", "rack")

    def replicas(self, key: bytes) -> frozenset[Any]:
        found = self.token_map.get_replicas("ks", Murmur3Token.from_key(key))
        return frozenset(host.host_id for host in found)


def batch(rows: list[tuple[str, int, int, int]]) -> pa.RecordBatch:
    cells = [{"a": a, "b": b, "c": c, "v": "v" * size, WRITE_TS: 1} for a, b, c, size in rows]
    return pa.RecordBatch.from_pylist(cells, schema=TABLE.schema)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9), st.integers(0, 9), st.integers(0, 300)), max_size=80),
    st.sampled_from([(1, 1), (3, 1), (3, 2), (3, 3), (5, 3)]),
    st.sampled_from([200, 2_000, 10**6]),
)
@settings(deadline=None)
def test_each_row_is_sent_once_with_others_of_its_replicas_only(
    rows: list[tuple[str, int, int, int]], cluster: tuple[int, int], bound: int
) -> None:
    known, given_rows = DriversRing(*cluster), batch(rows)
    placed = place(TABLE, given_rows, Ring.of(known, "ks"))
    assert placed.rows.to_pylist() == [given_rows.to_pylist()[at] for at in placed.positions.tolist()]
    encoded = encode(b"id", [placed.rows.column(name) for name in TABLE.schema.names])
    spans = list(placed.spans(encoded.offsets, bound))
    assert [at for first, end, _ in spans for at in range(first, end)] == list(range(len(rows)))
    written = placed.rows.to_pylist()
    for first, end, key in spans:
        inside = written[first:end]
        assert encoded.offsets[end] - encoded.offsets[first] <= bound or end - first == 1
        keys = {_serialised(row) for row in inside}
        assert key in keys
        assert {known.replicas(one) for one in keys} == {known.replicas(key)}


def _serialised(row: dict[str, Any]) -> bytes:
    parts = [row["a"].encode(), row["b"].to_bytes(8, "big", signed=True)]
    return b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)


def test_small_partitions_fill_batches_up_to_their_number_and_large_ones_are_cut() -> None:
    rows = batch([("small", at, 0, 0) for at in range(250)] + [("wide", 0, at, 100) for at in range(400)])
    placed = place(TABLE, rows, Ring.of(DriversRing(1, 1), "ks"))
    encoded = encode(b"id", [placed.rows.column(name) for name in TABLE.schema.names])
    sizes = [end - first for first, end, _ in placed.spans(encoded.offsets, 32_768)]
    assert sizes[:2] == [PARTITIONS_MAX] * 2
    assert len(sizes) < 16
    # Without knowledge of the ring no two partitions travel together.
    alone = place(TABLE, rows, None)
    assert len(list(alone.spans(encoded.offsets, 32_768))) >= 251


@pytest.mark.parametrize("metadata", [Metadata(), DriversRing(3, 0)])
def test_ring_that_says_nothing_of_the_keyspace_is_none(metadata: Any) -> None:
    assert Ring.of(metadata, "ks") is None
