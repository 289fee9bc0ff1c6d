"""Metrics in Prometheus' text format, read from the node when a client asks for them.

Owns: names, help texts and labels, each declared once in :data:`METRICS`; docs/metrics.md is made of it. Counting costs
nothing on the hot path: the numbers are state that exists anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from oncegate.consensus.counters import Counters
from oncegate.consensus.ports import ReplicaStatus, Role
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.connections import ConnectionCounts
from oncegate.gateway.live_check.checker import LiveChecker
from oncegate.gateway.node.node import Node
from oncegate.gateway.wire import FlowState, Trend

if TYPE_CHECKING:
    from oncegate.gateway.node.stream_store import StreamStore

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "oncegate_"


class Sources(NamedTuple):
    """What metrics are read from: one moment of one node."""

    node: Node
    status: ReplicaStatus
    connections: ConnectionCounts
    bodies: BodyBudget
    flows: Mapping[str, FlowState]

    @property
    def counters(self) -> Counters:
        """What consensus has counted."""
        return self.status.counters

    def per_peer(self, attribute: str) -> dict[tuple[str, ...], float]:
        """Return an attribute of every other member, by its id."""
        return {(id_,): getattr(peer, attribute) for id_, peer in self.status.peers.items()}

    def per_consumer(self, attribute: str) -> dict[tuple[str, ...], Any]:
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
        kind: as :func:`gauge` and :func:`counter` declare it.
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


def _stored(read: Callable[[StreamStore], Value]) -> Callable[[Sources], Value]:
    return lambda of: None if of.node.stream_store is None else read(of.node.stream_store)


def _live(read: Callable[[LiveChecker], Value]) -> Callable[[Sources], Value]:
    return lambda of: None if of.node.live_check is None else read(of.node.live_check)


def _verdicts(live: LiveChecker) -> Value:
    return {(verdict,): verdict == live.verdict for verdict in ("ok", "anomaly", "unknown")}


def gauge(name: str, text: str, read: Callable[[Sources], Value], *labels: str) -> Metric:
    """Declare a number that may rise and fall."""
    return Metric(name, "gauge", text, read, labels)


def counter(name: str, text: str, read: Callable[[Sources], Value], *labels: str) -> Metric:
    """Declare a number that starts at 0 with the process and only rises."""
    return Metric(name, "counter", text, read, labels)


METRICS: Final = (
    gauge("role", "1 for the role this node has", lambda of: {(r.value,): of.status.role is r for r in Role}, "role"),
    gauge("term", "Raft term", lambda of: of.status.term),
    gauge("leads", "1 if this node leads", lambda of: of.status.role is Role.LEADER),
    gauge("ready", "1 if this node leads and has applied the first entry of its term", lambda of: of.status.ready),
    gauge("has_leader", "1 if this node knows a leader within reach", lambda of: of.status.leader_id is not None),
    gauge("commit_index", "newest committed log index", lambda of: of.status.commit_index),
    gauge("applied_index", "newest applied log index", lambda of: of.status.applied_index),
    gauge("log_index", "newest log index", lambda of: of.status.last_index),
    gauge("journal_bytes", "size of the journal", lambda of: of.status.journal_bytes),
    gauge("flush_p50_ms", "median of recent flushes", lambda of: of.status.flush_p50_ms),
    gauge("flush_p99_ms", "99th percentile of recent flushes", lambda of: of.status.flush_p99_ms),
    counter("flushes", "flushes of the journal", lambda of: of.status.flushes),
    gauge("queued_entries", "entries that wait to be appended", lambda of: of.status.queued_commands),
    gauge("queued_bytes", "bytes of the entries that wait to be appended", lambda of: of.status.queued_bytes),
    gauge(
        "appended_entries",
        "entries appended by this leader and not applied yet",
        lambda of: of.status.appended_commands,
    ),
    gauge("appended_bytes", "bytes of the entries appended and not applied yet", lambda of: of.status.appended_bytes),
    counter("elections_started", "elections this node began", lambda of: of.counters.elections_started),
    counter("elections_won", "elections this node won", lambda of: of.counters.elections_won),
    counter(
        "pre_votes_started", "times this node asked whether it could win", lambda of: of.counters.pre_votes_started
    ),
    counter("leader_changes", "times another leader became known", lambda of: of.counters.leader_changes),
    counter(
        "appends_refused", "appends that did not match the log or came too late", lambda of: of.counters.appends_refused
    ),
    counter("transfers_started", "times this leader began to hand over", lambda of: of.counters.transfers_started),
    counter("transfers_failed", "times nobody took over", lambda of: of.counters.transfers_failed),
    gauge("members", "members in force", lambda of: len(of.status.configuration.members)),
    gauge("voters", "members that vote", lambda of: len(of.status.configuration.voters)),
    gauge("change_pending", "1 while a membership change is not committed", lambda of: of.status.change_pending),
    gauge("peer_connected", "1 if the member is connected", lambda of: of.per_peer("connected"), "peer"),
    gauge("peer_lag_entries", "entries a follower lacks, at the leader", lambda of: of.per_peer("lag"), "peer"),
    gauge(
        "peer_in_flight_bytes",
        "bytes sent to the member and not acknowledged",
        lambda of: of.per_peer("in_flight_bytes"),
        "peer",
    ),
    gauge("commit", "commit number of the newest applied operation", lambda of: of.node.machine.commit),
    counter("replayed", "operations answered from their completion record", lambda of: of.node.machine.replayed),
    gauge("sessions", "live sessions", lambda of: len(of.node.machine.sessions)),
    gauge("idempotency_keys", "idempotency keys that are remembered", lambda of: len(of.node.machine.keys)),
    gauge(
        "idempotency_key_bytes",
        "bytes of the idempotency keys that are remembered",
        lambda of: of.node.machine.keys.bytes,
    ),
    gauge("cluster_time_ms", "cluster time", lambda of: of.node.machine.time_ms),
    gauge("inflight_commands", "commands that wait for the log", lambda of: of.node.proposer.inflight_commands),
    gauge("inflight_bytes", "bytes of the commands that wait for the log", lambda of: of.node.proposer.inflight_bytes),
    counter("entries", "log entries proposed by this node", lambda of: of.node.proposer.entries),
    gauge("connections", "open HTTP connections", lambda of: of.connections.open),
    counter("connections_refused", "connections for which there was no place", lambda of: of.connections.refused),
    counter("connections_ended", "connections ended: slow, or idle and in the way", lambda of: of.connections.ended),
    gauge("receiving_bytes", "bodies that have not arrived whole", lambda of: of.bodies.bytes),
    gauge("segment_pending_bytes", "sealed batches that wait for the disk", lambda of: of.node.publisher.pending_bytes),
    counter("stream_store_reads", "rows looked up in the store", _stored(lambda it: it.reads)),
    counter("stream_store_failures", "look-ups without an answer", _stored(lambda it: it.failures)),
    gauge(
        "state_saved_index",
        "log index of the newest durable state",
        lambda of: 0 if (saved := of.node.state.saved) is None else saved.index,
    ),
    counter("state_saves", "saves of the state", lambda of: of.node.state.stats.saves),
    counter("state_save_failures", "attempts at a save that failed", lambda of: of.node.state.stats.failures),
    gauge("state_save_seconds", "time the newest save took", lambda of: of.node.state.stats.last_seconds),
    gauge(
        "state_fresh_bytes", "memory of rows that are not durable yet, roughly", lambda of: of.node.state.fresh_bytes
    ),
    gauge("state_disk_bytes", "size of the state on disk", lambda of: of.node.state.disk_bytes),
    gauge("segments_missing", "retained batches that this node lacks", lambda of: of.node.fetcher.missing),
    counter("segments_fetched", "batches fetched from other nodes", lambda of: of.node.fetcher.fetched),
    counter("segment_fetch_failures", "attempts to fetch a batch that failed", lambda of: of.node.fetcher.failures),
    gauge("live_check_verdict", "1 for the verdict on live traffic", _live(_verdicts), "verdict"),
    counter("live_check_operations", "sampled operations that were checked", _live(lambda it: it.operations)),
    counter("live_check_windows", "windows that were checked", _live(lambda it: it.windows)),
    counter("live_check_anomalies", "sampled operations that cannot be explained", _live(lambda it: it.anomalies)),
    counter(
        "live_check_dropped", "sampled operations beyond what a window takes", _live(lambda it: it.recorder.dropped)
    ),
    gauge("live_check_keys", "rows with operations in the last window", _live(lambda it: it.keys)),
    gauge("live_check_last_seconds", "Unix time of the last check", _live(lambda it: it.last_unix_ms / 1000)),
    gauge(
        "table_bytes",
        "bytes of resident rows",
        lambda of: {(name,): table.bytes for name, table in of.node.machine.tables.items()},
        "table",
    ),
    gauge(
        "flow_last_batch",
        "newest sealed batch",
        lambda of: {(name,): flow.last_batch for name, flow in of.flows.items()},
        "flow",
    ),
    gauge("flow_lag_items", "items above the cursor", lambda of: of.per_consumer("lag_items"), "flow", "consumer"),
    gauge(
        "flow_lag_ms",
        "age of the oldest batch above the cursor",
        lambda of: of.per_consumer("lag_ms"),
        "flow",
        "consumer",
    ),
    gauge(
        "flow_lag_trend",
        "1 for the verdict on how a consumer keeps up, as this node has seen it",
        lambda of: {
            (*names, trend): trend == verdict
            for names, verdict in of.per_consumer("trend").items()
            for trend in get_args(Trend)
        },
        "flow",
        "consumer",
        "trend",
    ),
    gauge(
        "flow_retained_bytes",
        "bytes of sealed batches that are retained",
        lambda of: {(name,): flow.retained_bytes for name, flow in of.flows.items()},
        "flow",
    ),
    gauge(
        "flow_held_bytes",
        "bytes that a consumer still waits for or, as `(time)`, the retention time keeps; holders overlap",
        lambda of: of.node.consumers.held_bytes(),
        "flow",
        "holder",
    ),
)
"""Every metric, in the order of the exposition."""


def exposition(node: Node, connections: ConnectionCounts, bodies: BodyBudget) -> tuple[bytes, str]:
    """Return the metrics of a node and their content type."""
    machine = node.machine
    flows = {name: node.consumers.state(name) for name in machine.flows.names()}
    of = Sources(node, node.replica.status(), connections, bodies, flows)
    text = "".join(f"{line}\n" for metric in METRICS for line in metric.lines(of))
    return text.encode(), CONTENT_TYPE
