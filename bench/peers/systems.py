"""The systems that are compared, and what their loads are called on the page."""

from __future__ import annotations

from typing import Final

from bench.peers.etcd import Etcd
from bench.peers.gateway import Gateway
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.peer import Peer
from bench.peers.restate import Restate
from bench.peers.zookeeper import ZooKeeper

PEERS: Final[tuple[type[Peer], ...]] = (Gateway, Etcd, Nats, ZooKeeper, Kafka, Restate)
LABELS: Final = {
    ("oncegate", "sdk"): "oncegate, SDK",
    ("oncegate", "rotating"): "oncegate, SDK, nodes in turn",
    ("oncegate", "batches"): "oncegate, batches of 100",
    ("oncegate", "ranges"): "oncegate, ranges of 1,024",
    ("oncegate", "key"): "oncegate, independent, a key each",
    ("oncegate", "session"): "oncegate, independent, a session each",
    ("etcd", "put"): "etcd put (not duplicate-safe)",
    ("etcd", "txn"): "etcd transaction",
    ("nats", "sync"): "NATS, message id",
    ("nats", "async"): "NATS, message id, async",
    ("zookeeper", "create"): "ZooKeeper create",
    ("kafka", "single"): "Kafka, a producer a caller",
    ("kafka", "batch"): "Kafka, one producer",
    ("kafka", "async"): "Kafka, async, linger 5 ms",
    ("restate", "put"): "Restate, idempotency key",
}
