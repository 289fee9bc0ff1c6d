"""The metrics of a node, read from it when a client asks for them.

Owns: names, help texts and labels, each declared once in :data:`METRICS`; docs/metrics.md is made of it. Most numbers
are state that exists anyway; what has to be counted is counted in
:class:`~oncegate.consensus.histogram.Histogram`, a few calls each.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from oncegate.consensus.counters import Counters
from oncegate.consensus.ports import ReplicaStatus, Role
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.connections import ConnectionCounts
from oncegate.gateway.live_check.checker import LiveChecker
from oncegate.gateway.machine.idempotency_keys import kind_bytes_max
from oncegate.gateway.machine.tenant_share import NOBODY
from oncegate.gateway.node.node import Node
from oncegate.gateway.observability.access import AccessLog
from oncegate.gateway.observability.audit import AuditLog
from oncegate.gateway.observability.exposition import CONTENT_TYPE, Metric, Value
from oncegate.gateway.observability.process import DiskFigures, ProcessFigures, process_figures
from oncegate.gateway.observability.request_times import RequestTimes
from oncegate.gateway.wire import FlowState, Trend
from oncegate.rifl.key_records import KeyKind
from oncegate.version import __version__

if TYPE_CHECKING:
    from oncegate.gateway.node.stream_store import StreamStore

_BUILD: Final = (__version__, platform.python_version())


class Sources(NamedTuple):
    """What metrics are read from: one moment of one node."""

    node: Node
    status: ReplicaStatus
    connections: ConnectionCounts
    bodies: BodyBudget
    flows: Mapping[str, FlowState]
    requests: RequestTimes
    audit: AuditLog | None
    access: AccessLog | None
    process: ProcessFigures
    disk: DiskFigures

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


def _stored(read: Callable[[StreamStore], Value]) -> Callable[[Sources], Value]:
    return lambda of: None if of.node.stream_store is None else read(of.node.stream_store)


def _live(read: Callable[[LiveChecker], Value]) -> Callable[[Sources], Value]:
    return lambda of: None if of.node.live_check is None else read(of.node.live_check)


def _key_bytes_max(node: Node, kind: KeyKind) -> int:
    return kind_bytes_max(node.machine.keys.taken(kind, NOBODY), node.settings.idempotency_keys_bytes_max)


def _verdicts(live: LiveChecker) -> Value:
    return {(verdict,): verdict == live.verdict for verdict in ("ok", "anomaly", "unknown")}


def _lag(attribute: str, per_unit: int = 1) -> Callable[[Sources], Value]:
    return lambda of: {names: lag / per_unit for names, lag in of.per_consumer(attribute).items()}


def gauge(name: str, text: str, read: Callable[[Sources], Value], *labels: str) -> Metric:
    """Declare a number that may rise and fall."""
    return Metric(name, "gauge", text, read, labels)


def counter(name: str, text: str, read: Callable[[Sources], Value], *labels: str) -> Metric:
    """Declare a number that starts at 0 with the process and only rises."""
    return Metric(name, "counter", text, read, labels)


def histogram(name: str, text: str, read: Callable[[Sources], Value], *labels: str) -> Metric:
    """Declare durations in seconds, counted in buckets since the process started."""
    return Metric(name, "histogram", text, read, labels)


def _of_process(metric: Metric) -> Metric:
    """Give a metric the name that Prometheus' own client libraries give it."""
    return metric._replace(prefix="")


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
    gauge("disk_full", "1 if there is no room for the next segment of the journal", lambda of: of.status.disk_full),
    gauge(
        "commit_stalled_seconds",
        "at the leader, for how long entries have waited while nothing was committed; 0 while none waits",
        lambda of: of.status.stalled_s,
    ),
    gauge(
        "peer_disk_full",
        "at the leader, 1 if a member refused the latest entries for want of room",
        lambda of: of.per_peer("disk_full"),
        "peer",
    ),
    histogram("flush_seconds", "one write and flush of the journal", lambda of: of.status.flush_times),
    histogram(
        "replication_seconds",
        "at the leader, from when an append left to the acknowledgement that may commit it",
        lambda of: of.counters.replication,
    ),
    histogram(
        "entry_seconds",
        "at the leader, from the proposal of an entry to its result: flushed on a majority, and applied",
        lambda of: of.node.proposer.entry_times,
    ),
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
    gauge(
        "learners",
        "members that do not vote yet; one that never comes is given up by removing it",
        lambda of: len(of.status.configuration.members) - len(of.status.configuration.voters),
    ),
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
    gauge("ending_rows", "rows that end by themselves", lambda of: len(of.node.machine.ends)),
    gauge("idempotency_keys", "idempotency keys that are remembered", lambda of: len(of.node.machine.keys)),
    gauge(
        "idempotency_key_bytes",
        "bytes that remembered idempotency keys count; kind: key, or event",
        lambda of: {(kind.name.lower(),): of.node.machine.keys.kinds[kind].bytes for kind in KeyKind},
        "kind",
    ),
    gauge(
        "idempotency_key_bytes_max",
        "bytes that keys of this kind may count while the other kind holds what it does, if this node leads",
        lambda of: {(kind.name.lower(),): _key_bytes_max(of.node, kind) for kind in KeyKind},
        "kind",
    ),
    gauge("cluster_time_seconds", "cluster time", lambda of: of.node.machine.time_ms / 1000),
    gauge("inflight_commands", "commands that wait for the log", lambda of: of.node.proposer.inflight_commands),
    gauge("inflight_bytes", "bytes of the commands that wait for the log", lambda of: of.node.proposer.inflight_bytes),
    counter("entries", "log entries proposed by this node", lambda of: of.node.proposer.entries),
    counter(
        "http_requests",
        "requests that were answered; status 499: the client had gone",
        lambda of: of.requests.counts(),
        *("method", "route", "status"),
    ),
    histogram(
        "http_request_duration_seconds",
        "from when a request was read to its answer; outcome: ok, refused (4xx), failed (5xx) or gone",
        lambda of: of.requests.by_outcome(),
        *("method", "route", "outcome"),
    ),
    counter("audit_lines", "acts in the audit log", lambda of: 0 if of.audit is None else of.audit.lines),
    counter(
        "audit_failures",
        "acts that could not be written into the audit log; the node's log has them",
        lambda of: 0 if of.audit is None else of.audit.failures,
    ),
    counter(
        "access_log_dropped",
        "requests that the access log left out, beyond 2000 a second",
        lambda of: None if of.access is None else of.access.dropped,
    ),
    gauge("connections", "open HTTP connections", lambda of: of.connections.open),
    counter("connections_refused", "connections for which there was no place", lambda of: of.connections.refused),
    counter("connections_ended", "connections ended: slow, or idle and in the way", lambda of: of.connections.ended),
    gauge("watchers", "watches of rows", lambda of: of.node.watching.watchers),
    gauge("history_changes", "changes of rows kept for watches", lambda of: of.node.watching.history.changes),
    gauge("history_bytes", "memory of these changes, roughly", lambda of: of.node.watching.history.bytes),
    gauge("history_first_commit", "commit number they reach back to", lambda of: of.node.watching.history.first),
    gauge(
        "receiving_bytes", "bodies that have not arrived whole", lambda of: of.bodies.bytes + of.bodies.waiting_bytes
    ),
    gauge("receiving_requests", "requests whose bodies have not arrived whole", lambda of: of.bodies.receiving),
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
    gauge(
        "state_damaged",
        "1 if a block of the state is damaged: the node serves nothing",
        lambda of: of.node.damaged,
    ),
    counter("state_scrubbed_bytes", "keys and values read to find damage", lambda of: of.node.scrubber.bytes),
    counter("state_scrubs", "times all of the state was read", lambda of: of.node.scrubber.passes),
    gauge(
        "state_scrub_last_timestamp_seconds", "Unix time of the end of the last one", lambda of: of.node.scrubber.last_s
    ),
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
    gauge("live_check_last_timestamp_seconds", "Unix time of the last check", _live(lambda it: it.last_unix_ms / 1000)),
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
    gauge("flow_lag_batches", "sealed batches above the cursor", _lag("lag_batches"), "flow", "consumer"),
    gauge("flow_lag_items", "items above the cursor: changes of rows", _lag("lag_items"), "flow", "consumer"),
    gauge("flow_lag_seconds", "age of the oldest batch above the cursor", _lag("lag_ms", 1000), "flow", "consumer"),
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
        "flow_shed_items",
        "items that a flow left out because its consumers were far behind, since it was declared",
        lambda of: {(name,): flow.shed_items for name, flow in of.flows.items()},
        "flow",
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
    gauge("disk_free_bytes", "what is left on the file system of the data directory", lambda of: of.disk.free_bytes),
    gauge("disk_size_bytes", "size of that file system", lambda of: of.disk.size_bytes),
    gauge(
        "disk_used_bytes",
        "what a part of the data directory takes on the disk",
        lambda of: {(part,): size for part, size in of.disk.parts.items()},
        "part",
    ),
    gauge("build_info", "1 for the build that runs", lambda _: {_BUILD: 1}, "version", "python"),
    *map(
        _of_process,
        (
            counter("process_cpu_seconds", "processor time, of user and system", lambda of: of.process.cpu_s),
            gauge("process_resident_memory_bytes", "resident memory", lambda of: of.process.resident_bytes),
            gauge("process_virtual_memory_bytes", "virtual memory", lambda of: of.process.virtual_bytes),
            gauge("process_open_fds", "open file descriptors", lambda of: of.process.open_files),
            gauge("process_max_fds", "most file descriptors that may be open", lambda of: of.process.files_max),
            gauge("process_threads", "threads of Python", lambda of: of.process.threads),
            gauge("process_start_time_seconds", "Unix time of the start", lambda of: of.process.started_s),
        ),
    ),
)
"""Every metric, in the order of the exposition."""


def exposition(
    node: Node,
    connections: ConnectionCounts,
    bodies: BodyBudget,
    requests: RequestTimes,
    audit: AuditLog | None,
    access: AccessLog | None,
    disk: DiskFigures,
) -> tuple[bytes, str]:
    """Return the metrics of a node and their content type."""
    flows = {name: node.consumers.state(name) for name in node.machine.flows.names()}
    of = Sources(
        node, node.replica.status(), connections, bodies, flows, requests, audit, access, process_figures(), disk
    )
    text = "".join(f"{line}\n" for metric in METRICS for line in metric.lines(of))
    return text.encode(), CONTENT_TYPE
