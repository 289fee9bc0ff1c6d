"""Metrics in Prometheus' format, read from the node when they are asked for.

Owns: names and help texts. Counting costs nothing on the hot path: the numbers are state that exists anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from oncegate.consensus.ports import ReplicaStatus, Role
from oncegate.gateway.answers import flow_state
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.connections import ConnectionCounts
from oncegate.gateway.live_check import LiveChecker
from oncegate.gateway.node.node import Node


class _NodeCollector(Collector):
    def __init__(self, node: Node, connections: ConnectionCounts, bodies: BodyBudget) -> None:
        self._node = node
        self._connections = connections
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        node, status = self._node, self._node.replica.status()
        machine = node.machine
        yield from _consensus(status)
        yield _gauge("commit", "commit number of the newest applied operation", machine.commit)
        yield _counter("replayed", "operations answered from their completion record", machine.replayed)
        yield _gauge("sessions", "live sessions", len(machine.sessions))
        yield _gauge("idempotency_keys", "idempotency keys that are remembered", len(machine.keys))
        yield _gauge("idempotency_key_bytes", "their bytes", machine.keys.bytes)
        yield _gauge("cluster_time_ms", "cluster time", machine.time_ms)
        yield _gauge("inflight_commands", "commands that wait for the log", node.proposer.inflight_commands)
        yield _gauge("inflight_bytes", "their bytes", node.proposer.inflight_bytes)
        yield _counter("entries", "log entries proposed by this node", node.proposer.entries)
        yield _gauge("connections", "open HTTP connections", self._connections.open)
        yield _counter("connections_refused", "connections for which there was no place", self._connections.refused)
        yield _counter("connections_ended", "connections ended: slow, or idle and in the way", self._connections.ended)
        yield _gauge("receiving_bytes", "bodies that have not arrived whole", self._bodies.bytes)
        yield _gauge("segment_pending_bytes", "sealed batches that wait for the disk", node.publisher.pending_bytes)
        yield from _state(node)
        if node.stream_store is not None:
            yield _counter("stream_store_reads", "rows looked up in the store", node.stream_store.reads)
            yield _counter("stream_store_failures", "look-ups without an answer", node.stream_store.failures)
        if node.live_check is not None:
            yield from _live_check(node.live_check)
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
            state = flow_state(machine, name)
            last.add_metric([name], state.last_batch)
            for consumer, behind in state.consumers.items():
                lag.add_metric([name, consumer], behind.lag_items)
                lag_ms.add_metric([name, consumer], behind.lag_ms)
        yield from (last, lag, lag_ms)


def _consensus(status: ReplicaStatus) -> Iterator[Metric]:
    counts = status.counters
    role = GaugeMetricFamily("oncegate_role", "1 for the role this node has", labels=["role"])
    for name in Role:
        role.add_metric([name.value], int(status.role is name))
    yield role
    yield _gauge("term", "Raft term", status.term)
    yield _gauge("leads", "1 if this node leads", int(status.role is Role.LEADER))
    yield _gauge("ready", "1 if this node leads and has applied the first entry of its term", int(status.ready))
    yield _gauge("has_leader", "1 if this node knows a leader within reach", int(status.leader_id is not None))
    yield _gauge("commit_index", "newest committed log index", status.commit_index)
    yield _gauge("applied_index", "newest applied log index", status.applied_index)
    yield _gauge("log_index", "newest log index", status.last_index)
    yield _gauge("journal_bytes", "size of the journal", status.journal_bytes)
    yield _gauge("flush_p50_ms", "median of recent flushes", status.flush_p50_ms)
    yield _gauge("flush_p99_ms", "99th percentile of recent flushes", status.flush_p99_ms)
    yield _counter("flushes", "flushes of the journal", status.flushes)
    yield _gauge("queued_entries", "entries that wait to be appended", status.queued_commands)
    yield _gauge("queued_bytes", "their bytes", status.queued_bytes)
    yield _gauge("appended_entries", "entries appended by this leader and not applied yet", status.appended_commands)
    yield _gauge("appended_bytes", "their bytes", status.appended_bytes)
    yield _counter("elections_started", "elections this node began", counts.elections_started)
    yield _counter("elections_won", "elections this node won", counts.elections_won)
    yield _counter("pre_votes_started", "times this node asked whether it could win", counts.pre_votes_started)
    yield _counter("leader_changes", "times another leader became known", counts.leader_changes)
    yield _counter("appends_refused", "appends that did not match the log or came too late", counts.appends_refused)
    yield _counter("transfers_started", "times this leader began to hand over", counts.transfers_started)
    yield _counter("transfers_failed", "times nobody took over", counts.transfers_failed)
    yield _gauge("members", "members in force", len(status.configuration.members))
    yield _gauge("voters", "members that vote", len(status.configuration.voters))
    yield _gauge("change_pending", "1 while a membership change is not committed", int(status.change_pending))
    connected = GaugeMetricFamily("oncegate_peer_connected", "1 if the member is connected", labels=["peer"])
    lag = GaugeMetricFamily("oncegate_peer_lag_entries", "entries a follower lacks, at the leader", labels=["peer"])
    flight = GaugeMetricFamily("oncegate_peer_in_flight_bytes", "sent and not acknowledged", labels=["peer"])
    for peer_id, peer in status.peers.items():
        connected.add_metric([peer_id], int(peer.connected))
        lag.add_metric([peer_id], peer.lag)
        flight.add_metric([peer_id], peer.in_flight_bytes)
    yield from (connected, lag, flight)


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


def _live_check(check: LiveChecker) -> Iterator[Metric]:
    verdict = GaugeMetricFamily("oncegate_live_check_verdict", "1 for the verdict on live traffic", labels=["verdict"])
    for name in ("ok", "anomaly", "unknown"):
        verdict.add_metric([name], int(check.verdict == name))
    yield verdict
    yield _counter("live_check_operations", "sampled operations that were checked", check.operations)
    yield _counter("live_check_windows", "windows that were checked", check.windows)
    yield _counter("live_check_anomalies", "sampled operations that cannot be explained", check.anomalies)
    yield _counter("live_check_dropped", "sampled operations beyond what a window takes", check.recorder.dropped)
    yield _gauge("live_check_keys", "rows with operations in the last window", check.keys)
    yield _gauge("live_check_last_seconds", "Unix time of the last check", check.last_unix_ms / 1000)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"oncegate_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"oncegate_{name}", text, value=value)


def exposition(node: Node, connections: ConnectionCounts, bodies: BodyBudget) -> tuple[bytes, str]:
    """Return the metrics of a node and their content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(node, connections, bodies))
    return generate_latest(registry), CONTENT_TYPE_LATEST
