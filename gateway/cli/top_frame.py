"""What ``oncegate top`` shows: two samples in, a frame out. Pure.

Owns: which figures there are and how each follows from the samples. A counter that is smaller than before began anew
with its process, so all of it is new. What cannot be told is None, never 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from oncegate.gateway.cli.top_sample import Labels, NodeSample, Sample, Series, quantile, value

_REQUESTS: Final = "oncegate_http_requests_total"
_DURATIONS: Final = "oncegate_http_request_duration_seconds_bucket"
_LAG: Final = "oncegate_flow_lag_"


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds of what ended between the samples; None where nothing did."""

    p50_ms: float | None
    p99_ms: float | None


class NodeRow(msgspec.Struct, frozen=True):
    """One member. ``behind``: entries that it has not applied and another one has committed."""

    node: str
    http: str
    state: str
    term: int | None
    applied: int | None
    behind: int | None
    applied_per_s: float | None
    requests_per_s: float | None
    flush: Latency
    cpu: float | None
    """Cores in use: 1.0 is one."""
    memory_bytes: int | None
    disk_used_bytes: int | None
    disk_free_bytes: int | None
    error: str


class FlowRow(msgspec.Struct, frozen=True):
    """One consumer of a flow, as the leader sees it."""

    flow: str
    consumer: str
    lag_batches: int
    lag_items: int
    lag_s: float
    trend: str


class Frame(msgspec.Struct, frozen=True):
    """The cluster between two samples; rates are of a second."""

    unix_s: float
    interval_s: float
    leader: str | None
    term: int | None
    members: int
    answering: int
    commits_per_s: float | None
    replays_per_s: float | None
    requests_per_s: float | None
    refused_per_s: float | None
    failed_per_s: float | None
    writes: Latency
    reads: Latency
    entries: Latency
    sessions: int | None
    keys: int | None
    nodes: list[NodeRow]
    flows: list[FlowRow]
    """The one that is farthest behind first."""


def frame(before: Sample, after: Sample) -> Frame:
    """Return what happened between two samples, and what is so at the second one."""
    pairs = [(before.nodes.get(name), node) for name, node in after.nodes.items()]
    leading = _leading(after)
    newest = max((_index(node, "commit_index") or 0 for node in after.nodes.values()), default=0)
    of_leader = None if leading is None else leading.metrics
    interval_s = max((node.at_s - old.at_s for old, node in pairs if old is not None), default=0.0)
    return Frame(
        unix_s=after.unix_s,
        interval_s=interval_s,
        leader=None if leading is None else leading.node,
        term=None if leading is None else _index(leading, "term"),
        members=len(after.nodes),
        answering=sum(node.cluster is not None for node in after.nodes.values()),
        commits_per_s=_commits(before, after, interval_s),
        replays_per_s=_total(pairs, "oncegate_replayed_total"),
        requests_per_s=_total(pairs, _REQUESTS, lambda of: True),
        refused_per_s=_total(pairs, _REQUESTS, lambda of: of["status"].startswith("4")),
        failed_per_s=_total(pairs, _REQUESTS, lambda of: of["status"].startswith("5")),
        writes=_latency(pairs, _DURATIONS, lambda of: of["outcome"] == "ok" and _is_write(of)),
        reads=_latency(pairs, _DURATIONS, lambda of: of["outcome"] == "ok" and _is_read(of)),
        entries=_latency(pairs, "oncegate_entry_seconds_bucket"),
        sessions=None if of_leader is None else _whole(value(of_leader, "oncegate_sessions")),
        keys=None if of_leader is None else _whole(value(of_leader, "oncegate_idempotency_keys")),
        nodes=[_node(old, node, newest) for old, node in pairs],
        flows=[] if of_leader is None else _flows(of_leader),
    )


def _leading(sample: Sample) -> NodeSample | None:
    """Return the node that leads in the highest term: one that was cut off may still believe that it does."""
    found = [node for node in sample.nodes.values() if node.cluster is not None and node.cluster["role"] == "leader"]
    return max(found, key=lambda node: _index(node, "term") or 0, default=None)


def _index(node: NodeSample, name: str) -> int | None:
    return None if node.cluster is None else int(node.cluster[name])


def _commits(before: Sample, after: Sample, interval_s: float) -> float | None:
    """Return operations applied a second: the cluster's newest commit number counts each once."""
    numbers = [
        max((_index(node, "commit") or 0 for node in sample.nodes.values() if node.cluster is not None), default=None)
        for sample in (before, after)
    ]
    if numbers[0] is None or numbers[1] is None or interval_s <= 0:
        return None
    return max(0, numbers[1] - numbers[0]) / interval_s


Wanted = Callable[[dict[str, str]], bool]
_Pairs = list[tuple[NodeSample | None, NodeSample]]


def _rises(old: Series, new: Series, name: str, wanted: Wanted | None) -> Iterator[tuple[Labels, float]]:
    """Yield by how much counters of a name have risen."""
    earlier = old.get(name, {})
    for labels, now in new.get(name, {}).items():
        if wanted is None or wanted(defaultdict(str, labels)):
            then = earlier.get(labels, 0.0)
            yield labels, now - then if now >= then else now


def _rate(old: NodeSample | None, new: NodeSample, name: str, wanted: Wanted | None = None) -> float | None:
    """Return by how much counters of a node rose a second; None if they are not known at both moments."""
    if old is None or name not in new.metrics or not old.metrics or new.at_s <= old.at_s:
        return None
    return sum(rise for _, rise in _rises(old.metrics, new.metrics, name, wanted)) / (new.at_s - old.at_s)


def _total(pairs: _Pairs, name: str, wanted: Wanted | None = None) -> float | None:
    rates = [rate for old, new in pairs if (rate := _rate(old, new, name, wanted)) is not None]
    return sum(rates) if rates else None


def _latency(pairs: _Pairs, name: str, wanted: Wanted | None = None) -> Latency:
    buckets: dict[float, float] = {}
    for old, new in pairs:
        if old is None or not old.metrics:
            continue  # all that the node ever did would look like new
        for labels, rise in _rises(old.metrics, new.metrics, name, wanted):
            bound = _bound(labels)
            if bound is not None:
                buckets[bound] = buckets.get(bound, 0.0) + rise
    return Latency(_ms(quantile(0.5, buckets)), _ms(quantile(0.99, buckets)))


def _bound(labels: Labels) -> float | None:
    """Return the upper bound of a bucket; None for what is no bucket."""
    try:
        bound = float(dict(labels).get("le", "nan"))
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _is_read(of: dict[str, str]) -> bool:
    """Whether a request reads rows; watches last as long as somebody watches."""
    return "/rows" in of["route"] and (of["method"] == "GET" or of["route"] == "/v1/rows")


def _is_write(of: dict[str, str]) -> bool:
    return of["method"] != "GET" and not _is_read(of)


def _node(old: NodeSample | None, new: NodeSample, newest: int) -> NodeRow:
    applied = _index(new, "applied_index")
    before = None if old is None else _index(old, "applied_index")
    elapsed_s = 0.0 if old is None else new.at_s - old.at_s
    rate = None if applied is None or before is None or elapsed_s <= 0 else max(0, applied - before) / elapsed_s
    metrics = new.metrics
    used = metrics.get("oncegate_disk_used_bytes")
    return NodeRow(
        node=new.node,
        http=new.http,
        state=_state(new),
        term=_index(new, "term"),
        applied=applied,
        behind=None if applied is None else max(0, newest - applied),
        applied_per_s=rate,
        requests_per_s=_rate(old, new, _REQUESTS, lambda of: True),
        flush=_latency([(old, new)], "oncegate_flush_seconds_bucket"),
        cpu=_rate(old, new, "process_cpu_seconds_total"),
        memory_bytes=_whole(value(metrics, "process_resident_memory_bytes")),
        disk_used_bytes=None if used is None else int(sum(used.values())),
        disk_free_bytes=_whole(value(metrics, "oncegate_disk_free_bytes")),
        error=new.error,
    )


def _state(node: NodeSample) -> str:
    if node.cluster is None:
        return "unreachable" if node.asked else node.error
    if node.cluster.get("damage"):
        return "damaged"
    if node.cluster.get("stalled"):
        return "commits nothing"
    if value(node.metrics, "oncegate_disk_full"):
        return "disk full"
    me: Any = next((one for one in node.cluster["members"] if one["id"] == node.node), None)
    return str(node.cluster["role"]) if me is None or me.get("voter", True) else "learner"


def _flows(metrics: Series) -> list[FlowRow]:
    trends = {
        (of["flow"], of["consumer"]): of["trend"]
        for labels, held in metrics.get(f"{_LAG}trend", {}).items()
        if held and (of := defaultdict(str, labels))
    }
    rows = []
    for labels, batches in metrics.get(f"{_LAG}batches", {}).items():
        of = defaultdict(str, labels)
        items, seconds = (value(metrics, f"{_LAG}{name}", **of) or 0.0 for name in ("items", "seconds"))
        trend = trends.get((of["flow"], of["consumer"]), "")
        rows.append(FlowRow(of["flow"], of["consumer"], int(batches), int(items), seconds, trend))
    return sorted(rows, key=lambda row: (-row.lag_s, -row.lag_items, row.flow, row.consumer))


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
