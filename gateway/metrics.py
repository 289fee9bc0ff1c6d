"""Metrics in Prometheus' format, read from the node when they are asked for.

Owns: names and help texts. Counting costs nothing on the hot path: the numbers are state that exists anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from consensus.ports import Role
from gateway.node import Node


class _NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node, status = self._node, self._node.replica.status()
        machine = node.machine
        yield _gauge("term", "Raft term", status.term)
        yield _gauge("leads", "1 if this node leads", int(status.role is Role.LEADER))
        yield _gauge("commit_index", "newest committed log index", status.commit_index)
        yield _gauge("applied_index", "newest applied log index", status.applied_index)
        yield _gauge("journal_bytes", "size of the journal", status.journal_bytes)
        yield _gauge("flush_p50_ms", "median of recent flushes", status.flush_p50_ms)
        yield _gauge("flush_p99_ms", "99th percentile of recent flushes", status.flush_p99_ms)
        yield _counter("flushes", "flushes of the journal", status.flushes)
        yield _gauge("commit", "commit number of the newest applied operation", machine.commit)
        yield _counter("replayed", "operations answered from their completion record", machine.replayed)
        yield _gauge("sessions", "live sessions", len(machine.sessions))
        yield _gauge("cluster_time_ms", "cluster time", machine.time_ms)
        yield _gauge("inflight_commands", "commands that wait for the log", node.proposer.inflight_commands)
        yield _gauge("inflight_bytes", "their bytes", node.proposer.inflight_bytes)
        yield _counter("entries", "log entries proposed by this node", node.proposer.entries)
        yield _gauge("segment_pending_bytes", "sealed batches that wait for the disk", node.publisher.pending_bytes)
        yield from _state(node)
        tables = GaugeMetricFamily("oncegate_table_bytes", "bytes of resident rows", labels=["table"])
        for name, table in machine.tables.items():
            tables.add_metric([name], table.bytes)
        yield tables
        last = GaugeMetricFamily("oncegate_flow_last_batch", "newest sealed batch", labels=["flow"])
        lag = GaugeMetricFamily("oncegate_flow_lag_items", "items above the cursor", labels=["flow", "consumer"])
        lag_ms = GaugeMetricFamily(
            "oncegate_flow_lag_ms", "age of the oldest batch above the cursor", labels=["flow", "consumer"]
        )
        for name in machine.flows.names():
            state = machine.flows.describe(name, machine.time_ms)
            last.add_metric([name], state.last_batch)
            for consumer, behind in state.consumers.items():
                lag.add_metric([name, consumer], behind.lag_items)
                lag_ms.add_metric([name, consumer], behind.lag_ms)
        yield from (last, lag, lag_ms)


def _state(node: Node) -> Iterator[Metric]:
    state, fetcher = node.state, node.fetcher
    yield _gauge(
        "state_saved_index", "log index of the newest durable state", 0 if (p := state.saved) is None else p.index
    )
    yield _counter("state_saves", "saves of the state", state.stats.saves)
    yield _counter("state_save_failures", "attempts at a save that failed", state.stats.failures)
    yield _gauge("state_save_seconds", "time the newest save took", state.stats.last_seconds)
    yield _gauge("state_fresh_bytes", "memory of rows that are not durable yet, roughly", state.fresh_bytes)
    yield _gauge("state_disk_bytes", "size of the state on disk", state.disk_bytes)
    yield _gauge("segments_missing", "retained batches that this node lacks", fetcher.missing)
    yield _counter("segments_fetched", "batches fetched from other nodes", fetcher.fetched)
    yield _counter("segment_fetch_failures", "attempts to fetch a batch that failed", fetcher.failures)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"oncegate_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"oncegate_{name}", text, value=value)


def exposition(node: Node) -> tuple[bytes, str]:
    """Return the metrics of a node and their content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(node))
    return generate_latest(registry), CONTENT_TYPE_LATEST
