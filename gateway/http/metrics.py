"""Metrics in Prometheus' text format, read from the node when a client asks for them.

Owns: names, help texts and labels, each declared once in :data:`METRICS`; docs/metrics.md is made of it. Counting costs
nothing on the hot path: the numbers are state that exists anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from oncegate.consensus.ports import ReplicaStatus, Role
from oncegate.gateway.answers import flow_state
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.connections import ConnectionCounts
from oncegate.gateway.node.node import Node
from oncegate.gateway.wire import FlowState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "oncegate_"


class Sources(NamedTuple):
    """What metrics are read from: one moment of one node."""

    node: Node
    status: ReplicaStatus
    connections: ConnectionCounts
    bodies: BodyBudget
    flows: Mapping[str, FlowState]

    def per_consumer(self, attribute: str) -> dict[tuple[str, ...], float]:
        """Return an attribute of every consumer, by flow and consumer."""
        return {
            (name, consumer): getattr(state, attribute)
            for name, flow in self.flows.items()
            for consumer, state in flow.consumers.items()
        }


Value = float | Mapping[tuple[str, ...], float] | None
"""A number; with labels the numbers by their values; None where the node has nothing of the kind."""


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: without prefix and, of a counter, without ``_total``.
        kind: a counter starts at 0 with the process and only rises.
        text: what it is, with the unit if the name has none.
        read: returns the value.
        labels: names of the labels, in the order of the value's keys.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    read: Callable[[Sources], Value]
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in the exposition."""
        return f"{_PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"

    def lines(self, of: Sources) -> list[str]:
        """Return the lines of the exposition."""
        value = self.read(of)
        if value is None:
            return []
        name = self.full_name
        values = value if isinstance(value, Mapping) else {(): value}
        shown = [f"{name}{self._labelled(labels)} {float(number)!r}" for labels, number in values.items()]
        return [f"# HELP {name} {self.text}", f"# TYPE {name} {self.kind}", *shown]

    def _labelled(self, values: tuple[str, ...]) -> str:
        pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True)]
        return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _live_check_verdicts(of: Sources) -> Value:
    if (live := of.node.live_check) is None:
        return None
    return {(verdict,): verdict == live.verdict for verdict in ("ok", "anomaly", "unknown")}


METRICS: Final = (
    Metric(
        "role",
        "gauge",
        "1 for the role this node has",
        lambda of: {(r.value,): of.status.role is r for r in Role},
        ("role",),
    ),
    Metric("term", "gauge", "Raft term", lambda of: of.status.term),
    Metric("leads", "gauge", "1 if this node leads", lambda of: int(of.status.role is Role.LEADER)),
    Metric(
        "ready",
        "gauge",
        "1 if this node leads and has applied the first entry of its term",
        lambda of: int(of.status.ready),
    ),
    Metric(
        "has_leader",
        "gauge",
        "1 if this node knows a leader within reach",
        lambda of: int(of.status.leader_id is not None),
    ),
    Metric("commit_index", "gauge", "newest committed log index", lambda of: of.status.commit_index),
    Metric("applied_index", "gauge", "newest applied log index", lambda of: of.status.applied_index),
    Metric("log_index", "gauge", "newest log index", lambda of: of.status.last_index),
    Metric("journal_bytes", "gauge", "size of the journal", lambda of: of.status.journal_bytes),
    Metric("flush_p50_ms", "gauge", "median of recent flushes", lambda of: of.status.flush_p50_ms),
    Metric("flush_p99_ms", "gauge", "99th percentile of recent flushes", lambda of: of.status.flush_p99_ms),
    Metric("flushes", "counter", "flushes of the journal", lambda of: of.status.flushes),
    Metric("queued_entries", "gauge", "entries that wait to be appended", lambda of: of.status.queued_commands),
    Metric("queued_bytes", "gauge", "bytes of the entries that wait to be appended", lambda of: of.status.queued_bytes),
    Metric(
        "appended_entries",
        "gauge",
        "entries appended by this leader and not applied yet",
        lambda of: of.status.appended_commands,
    ),
    Metric(
        "appended_bytes",
        "gauge",
        "bytes of the entries appended and not applied yet",
        lambda of: of.status.appended_bytes,
    ),
    Metric(
        "elections_started", "counter", "elections this node began", lambda of: of.status.counters.elections_started
    ),
    Metric("elections_won", "counter", "elections this node won", lambda of: of.status.counters.elections_won),
    Metric(
        "pre_votes_started",
        "counter",
        "times this node asked whether it could win",
        lambda of: of.status.counters.pre_votes_started,
    ),
    Metric(
        "leader_changes", "counter", "times another leader became known", lambda of: of.status.counters.leader_changes
    ),
    Metric(
        "appends_refused",
        "counter",
        "appends that did not match the log or came too late",
        lambda of: of.status.counters.appends_refused,
    ),
    Metric(
        "transfers_started",
        "counter",
        "times this leader began to hand over",
        lambda of: of.status.counters.transfers_started,
    ),
    Metric("transfers_failed", "counter", "times nobody took over", lambda of: of.status.counters.transfers_failed),
    Metric("members", "gauge", "members in force", lambda of: len(of.status.configuration.members)),
    Metric("voters", "gauge", "members that vote", lambda of: len(of.status.configuration.voters)),
    Metric(
        "change_pending",
        "gauge",
        "1 while a membership change is not committed",
        lambda of: int(of.status.change_pending),
    ),
    Metric(
        "peer_connected",
        "gauge",
        "1 if the member is connected",
        lambda of: {(id_,): peer.connected for id_, peer in of.status.peers.items()},
        ("peer",),
    ),
    Metric(
        "peer_lag_entries",
        "gauge",
        "entries a follower lacks, at the leader",
        lambda of: {(id_,): peer.lag for id_, peer in of.status.peers.items()},
        ("peer",),
    ),
    Metric(
        "peer_in_flight_bytes",
        "gauge",
        "bytes sent to the member and not acknowledged",
        lambda of: {(id_,): peer.in_flight_bytes for id_, peer in of.status.peers.items()},
        ("peer",),
    ),
    Metric("commit", "gauge", "commit number of the newest applied operation", lambda of: of.node.machine.commit),
    Metric(
        "replayed", "counter", "operations answered from their completion record", lambda of: of.node.machine.replayed
    ),
    Metric("sessions", "gauge", "live sessions", lambda of: len(of.node.machine.sessions)),
    Metric("idempotency_keys", "gauge", "idempotency keys that are remembered", lambda of: len(of.node.machine.keys)),
    Metric(
        "idempotency_key_bytes",
        "gauge",
        "bytes of the idempotency keys that are remembered",
        lambda of: of.node.machine.keys.bytes,
    ),
    Metric("cluster_time_ms", "gauge", "cluster time", lambda of: of.node.machine.time_ms),
    Metric(
        "inflight_commands", "gauge", "commands that wait for the log", lambda of: of.node.proposer.inflight_commands
    ),
    Metric(
        "inflight_bytes",
        "gauge",
        "bytes of the commands that wait for the log",
        lambda of: of.node.proposer.inflight_bytes,
    ),
    Metric("entries", "counter", "log entries proposed by this node", lambda of: of.node.proposer.entries),
    Metric("connections", "gauge", "open HTTP connections", lambda of: of.connections.open),
    Metric(
        "connections_refused", "counter", "connections for which there was no place", lambda of: of.connections.refused
    ),
    Metric(
        "connections_ended",
        "counter",
        "connections ended: slow, or idle and in the way",
        lambda of: of.connections.ended,
    ),
    Metric("receiving_bytes", "gauge", "bodies that have not arrived whole", lambda of: of.bodies.bytes),
    Metric(
        "segment_pending_bytes",
        "gauge",
        "sealed batches that wait for the disk",
        lambda of: of.node.publisher.pending_bytes,
    ),
    Metric(
        "stream_store_reads",
        "counter",
        "rows looked up in the store",
        lambda of: None if (store := of.node.stream_store) is None else store.reads,
    ),
    Metric(
        "stream_store_failures",
        "counter",
        "look-ups without an answer",
        lambda of: None if (store := of.node.stream_store) is None else store.failures,
    ),
    Metric(
        "state_saved_index",
        "gauge",
        "log index of the newest durable state",
        lambda of: 0 if (saved := of.node.state.saved) is None else saved.index,
    ),
    Metric("state_saves", "counter", "saves of the state", lambda of: of.node.state.stats.saves),
    Metric("state_save_failures", "counter", "attempts at a save that failed", lambda of: of.node.state.stats.failures),
    Metric("state_save_seconds", "gauge", "time the newest save took", lambda of: of.node.state.stats.last_seconds),
    Metric(
        "state_fresh_bytes",
        "gauge",
        "memory of rows that are not durable yet, roughly",
        lambda of: of.node.state.fresh_bytes,
    ),
    Metric("state_disk_bytes", "gauge", "size of the state on disk", lambda of: of.node.state.disk_bytes),
    Metric("segments_missing", "gauge", "retained batches that this node lacks", lambda of: of.node.fetcher.missing),
    Metric("segments_fetched", "counter", "batches fetched from other nodes", lambda of: of.node.fetcher.fetched),
    Metric(
        "segment_fetch_failures",
        "counter",
        "attempts to fetch a batch that failed",
        lambda of: of.node.fetcher.failures,
    ),
    Metric("live_check_verdict", "gauge", "1 for the verdict on live traffic", _live_check_verdicts, ("verdict",)),
    Metric(
        "live_check_operations",
        "counter",
        "sampled operations that were checked",
        lambda of: None if (live := of.node.live_check) is None else live.operations,
    ),
    Metric(
        "live_check_windows",
        "counter",
        "windows that were checked",
        lambda of: None if (live := of.node.live_check) is None else live.windows,
    ),
    Metric(
        "live_check_anomalies",
        "counter",
        "sampled operations that cannot be explained",
        lambda of: None if (live := of.node.live_check) is None else live.anomalies,
    ),
    Metric(
        "live_check_dropped",
        "counter",
        "sampled operations beyond what a window takes",
        lambda of: None if (live := of.node.live_check) is None else live.recorder.dropped,
    ),
    Metric(
        "live_check_keys",
        "gauge",
        "rows with operations in the last window",
        lambda of: None if (live := of.node.live_check) is None else live.keys,
    ),
    Metric(
        "live_check_last_seconds",
        "gauge",
        "Unix time of the last check",
        lambda of: None if (live := of.node.live_check) is None else live.last_unix_ms / 1000,
    ),
    Metric(
        "table_bytes",
        "gauge",
        "bytes of resident rows",
        lambda of: {(name,): table.bytes for name, table in of.node.machine.tables.items()},
        ("table",),
    ),
    Metric(
        "flow_last_batch",
        "gauge",
        "newest sealed batch",
        lambda of: {(name,): flow.last_batch for name, flow in of.flows.items()},
        ("flow",),
    ),
    Metric(
        "flow_lag_items",
        "gauge",
        "items above the cursor",
        lambda of: of.per_consumer("lag_items"),
        ("flow", "consumer"),
    ),
    Metric(
        "flow_lag_ms",
        "gauge",
        "age of the oldest batch above the cursor",
        lambda of: of.per_consumer("lag_ms"),
        ("flow", "consumer"),
    ),
)
"""Every metric, in the order of the exposition."""


def exposition(node: Node, connections: ConnectionCounts, bodies: BodyBudget) -> tuple[bytes, str]:
    """Return the metrics of a node and their content type."""
    machine = node.machine
    flows = {name: flow_state(machine, name) for name in machine.flows.names()}
    of = Sources(node, node.replica.status(), connections, bodies, flows)
    text = "".join(f"{line}\n" for metric in METRICS for line in metric.lines(of))
    return text.encode(), CONTENT_TYPE
