"""The published figures of the same experiments, and what differs. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ByPart = Mapping[str, Mapping[str, float | None]]
FIGURES: Final = {
    "saturating": {
        "synchronous": (1297, 20.66, 286.8, 49_900.0),
        "queue": (1291, 0.83, 3.46, 413.0),
        "integrated": (1289, 1.26, 5.17, 445.0),
    },
    "eighty": {
        "synchronous": (1000, 5.35, 89.21, 13_800.0),
        "queue": (1000, 0.84, 3.26, 141.0),
        "integrated": (1000, 0.80, 3.31, 171.0),
    },
}
"""Messages a second; median, standard deviation and maximum of the response time in ms. Two database nodes."""
CPU: Final[_ByPart] = {
    "synchronous": {"app": 11.0, "db": 39.6, "queue": None},
    "queue": {"app": 21.6, "db": 36.4, "queue": 16.6},
    "integrated": {"app": 2.30, "db": 40.9, "queue": None},
}
"""Average load of **one machine** of a part, per cent; two database nodes, saturating at 1,290 messages a second."""
MACHINES: Final[Mapping[str, Mapping[str, int]]] = {
    "synchronous": {"app": 1, "db": 2},
    "queue": {"app": 1, "db": 2, "queue": 1},
    "integrated": {"app": 1, "db": 2},
}
"""Of each part in that run: what a data flow takes is the load of a part times its machines, summed up."""
CPU_RATIO_16: Final = 0.79
"""Integrated over external queue, the same sum with 16 database nodes."""
NETWORK: Final[_ByPart] = {
    "synchronous": {"app": 2.06, "db": 8.90, "queue": None},
    "queue": {"app": 2.87, "db": 8.83, "queue": 0.68},
    "integrated": {"app": 0.36, "db": 7.41, "queue": None},
}
"""MB/s, likewise."""
NETWORK_16: Final[_ByPart] = {
    "synchronous": {"app": 13.6, "db": 57.7, "queue": None},
    "queue": {"app": 16.0, "db": 54.0, "queue": 4.06},
    "integrated": {"app": 2.34, "db": 45.6, "queue": None},
}
"""MB/s, 16 database nodes."""
MACHINES_16: Final = {"synchronous": 19, "queue": 21, "integrated": 18}


def cpu_ratio() -> float:
    """Return integrated over external queue of all machines' processor time, two database nodes."""
    ours, queue = (
        sum(count * (CPU[name][part] or 0.0) for part, count in MACHINES[name].items())
        for name in ("integrated", "queue")
    )
    return ours / queue


def bytes_ratio(figures: _ByPart = NETWORK) -> float:
    """Return integrated over external queue of all bytes sent."""
    ours, queue = (sum(of or 0.0 for of in figures[name].values()) for name in ("integrated", "queue"))
    return ours / queue


def machines_ratio() -> float:
    """Return integrated over external queue of all machines beside 16 database nodes."""
    return MACHINES_16["integrated"] / MACHINES_16["queue"]


DIFFERS: Final = (
    "**What differs from the published ones.** Theirs ran on machines of their own for each part, with two to sixteen "
    "database nodes; here all parts share one machine, so a part that takes processor time takes it from the others, "
    "and a rate is that of the whole machine. Their integrated flow runs triggers that are queued with the write in "
    "the store; ours is the replicated log of the gateway as the queue and a Spark job as its workers, in front of an "
    "unmodified Cassandra. Queue (NATS JetStream, three replicas, `sync_interval: always`) and gateway flush on a "
    "majority before they answer; Cassandra syncs its log in groups of 10 ms, for which the answers of the first two "
    "data flows wait and those of the integrated one do not. Rows travel compressed with LZ4 in all three, which the "
    "published ones are not known to do. Bytes are those of connections between parts, without headers of packets and "
    "without what Spark's JVM and its Python workers tell each other. At a given rate a response time here counts "
    "from when the post was due, so waiting for a turn counts too. Saturating, each data flow takes the same posts as "
    "fast as it answers them, so one that only accepts them answers faster than its copies are written; theirs was "
    "held at the rate of its store. Costs of a post are judged saturating, as the published ones were. "
    "The queue is asked at the servers that lead its stream and its consumer, its one worker acknowledges a batch at "
    "once, and its application writes tweets with prepared statements of cassandra-driver."
)
