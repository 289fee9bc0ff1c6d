"""What the comparison is to show, and whether it does. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.pages import Judgement, Limit
from bench.peers.ratios import Key, Run, Spread, told

OURS: Final = "oncegate"
GAP_MAX_S: Final = 0.3
SAFE: Final = {
    1: (Key("etcd", "txn", 1), Key("nats", "sync", 1), Key("zookeeper", "create", 1)),
    64: (Key("etcd", "txn", 64), Key("nats", "sync", 64), Key("zookeeper", "create", 64)),
    512: (Key("etcd", "txn", 512), Key("nats", "sync", 512), Key("zookeeper", "create", 512)),
}
"""Duplicate-safe replicated systems by what is outstanding."""


class Target(NamedTuple):
    """A ratio that has to be reached in the median of the rounds.

    Attributes:
        what: our load, in words.
        beside: the others, in words.
        ours: our load.
        others: theirs; the best one of a round counts.
        wanted: the ratio.
        cost: a cost, which must be below ``wanted``; else a rate, which must be at least that.
    """

    what: str
    beside: str
    ours: Key
    others: tuple[Key, ...]
    wanted: float
    cost: bool = False


def _sdk(outstanding: int) -> Key:
    return Key(OURS, "sdk", outstanding)


def _others(outstanding: int) -> tuple[Key, ...]:
    """Return the load of each other system, the one that shares most where it has several."""
    n = outstanding
    return (*SAFE[n], Key("etcd", "put", n), Key("kafka", "batch", n), Key("restate", "put", n))


_BEST_OF_ONE: Final = (*SAFE[1], Key("etcd", "put", 1))
_SAFE_ONES: Final = "best of etcd's transaction, NATS, ZooKeeper"
TARGETS: Final = (
    Target("SDK, 1 outstanding", "best of ZooKeeper, etcd, NATS", _sdk(1), _BEST_OF_ONE, 1.0),
    Target("SDK, 64 outstanding", _SAFE_ONES, _sdk(64), SAFE[64], 2.1),
    Target("SDK, 512 outstanding", _SAFE_ONES, _sdk(512), SAFE[512], 2.4),
    *(
        Target(f"SDK, nodes in turn as theirs, {n} outstanding", beside, Key(OURS, "rotating", n), others, wanted)
        for n, beside, others, wanted in (
            (1, "best of ZooKeeper, etcd, NATS", _BEST_OF_ONE, 1.0),
            (64, _SAFE_ONES, SAFE[64], 2.1),
            (512, _SAFE_ONES, SAFE[512], 2.4),
        )
    ),
    Target("SDK, 64 outstanding, stretch", "NATS (Dragonboat had 2.7 of it)", _sdk(64), (SAFE[64][1],), 2.7),
    Target("64 independent clients, a key each", "NATS", Key(OURS, "key", 64), (SAFE[64][1],), 1.0),
    Target("64 independent clients, a session each", "NATS", Key(OURS, "session", 64), (SAFE[64][1],), 1.0),
    Target("512 independent clients, a key each", "ZooKeeper", Key(OURS, "key", 512), (SAFE[512][2],), 1.0),
    Target("512 independent clients, a session each", "ZooKeeper", Key(OURS, "session", 512), (SAFE[512][2],), 1.0),
    Target("512 independent clients, a key each", "etcd transaction", Key(OURS, "key", 512), (SAFE[512][0],), 1.5),
    Target("512 independent clients, a session each", "etcd transaction", Key(OURS, "session", 512),
           (SAFE[512][0],), 1.5),
    Target("ranges of 1,024, 4,096 records outstanding", "Kafka, 4,096 outstanding", Key(OURS, "ranges", 4096),
           (Key("kafka", "async", 4096),), 1.0),
    *(
        Target(f"processor time of the servers, SDK, {n} outstanding", "least of all", _sdk(n), _others(n), 1.0,
               cost=True)
        for n in (64, 512)
    ),
    *(
        Target(f"processor time of the servers, {n} independent clients, a {mode} each", "least of all",
               Key(OURS, mode, n), _others(n), 1.0, cost=True)
        for n in (64, 512) for mode in ("key", "session")
    ),
)  # fmt: skip


_INDEPENDENT: Final = Limit(
    "each request is a turn of the loop, a read and a write of a socket by itself, 16 µs of a node's 40 to 50; two of "
    "three reach a follower, which forwards them",
    "0048-who-waits-is-told-at-once",
)
_FORWARDED: Final = Limit(
    "two of three requests reach a follower, which forwards them: at least 73 µs more for a frame, and each of three "
    "streams makes smaller requests and entries than one",
    "0049-forwarded-in-few-frames",
)
LIMITS: Final = {
    _sdk(64): Limit(
        "not processors: 1.3 of two cores are busy; all that waits travels in one request, so client, leader and "
        "followers with their flushes take turns",
        "0060-members-save-in-turn",
    ),
    **{Key(OURS, "rotating", count): _FORWARDED for count in (1, 64, 512)},
    _sdk(512): Limit(
        "the leader's one thread, nine tenths of whose time are busy: a quarter reads and checks requests, a seventh "
        "applies, a tenth flushes; the SDK takes 4.9 of the 21.3 µs of a write",
        "0060-members-save-in-turn",
    ),
    **{Key(OURS, mode, count): _INDEPENDENT for mode in ("key", "session") for count in (64, 512)},
    Key(OURS, "ranges", 4096): Limit(
        "each key and value is checked and hashed by a call of Python, in the SDK first; Kafka looks at no record",
        "0060-members-save-in-turn",
    ),
}


DETECTION: Final = Limit(
    "the nodes take a tenth more processor time, and applying explains little of that: 3 % of a third of a microsecond "
    "in requests of 256; where the rest goes is not found",
    "0060-members-save-in-turn",
)


def verdict(
    what: str, wanted: str, reached: Spread | None, met: bool | None, limit: Limit | None = None, decimals: int = 2
) -> Judgement:
    """Return the judgement of a spread over the rounds."""
    return Judgement(what, wanted, told(reached, decimals) if reached else "", met, limit)


def judge(run: Run, *, disturbed: bool = False) -> list[Judgement]:
    """Return each target with the ratio that the run has, and the kills; a ``disturbed`` run has no verdict."""
    found = []
    for target in TARGETS:
        name, best = ("servers_cpu_us", min) if target.cost else ("rate", max)
        ratio = run.ratio(target.ours, target.others, name, best)
        met = None if ratio is None else ratio.median < target.wanted if target.cost else ratio.median >= target.wanted
        wanted = f"{'<' if target.cost else '≥'} {target.wanted:.1f}"
        found.append(verdict(f"{target.what} against {target.beside}", wanted, ratio, met, LIMITS.get(target.ours)))
    found += _of_kills(run.kills)
    if not disturbed:
        return found
    return [one._replace(met=None, why_not="disturbed" if one.reached else one.why_not) for one in found]


def of_dedup(dedup: Mapping[str, Any] | None) -> list[Judgement]:
    """Return what duplicate detection costs, by a run of ``bench.dedup``; the spread is its middle rounds."""
    found = []
    for what, wanted in (("latency, 1 outstanding", "≤ 1.05"), ("throughput, 512 outstanding", "≥ 0.95")):
        row = next((row for row in (dedup or {}).get("rows", ()) if row["what"] == what), None)
        spread = None if row is None else Spread(row["ratio"], row["quartile_low"], row["quartile_high"], 0)
        met = None if row is None else row["met"]
        found.append(verdict(f"duplicate detection on against off: {what}", wanted, spread, met, DETECTION, 3))
    return found


_KILL: Final = Limit(
    "connections of a killed process close once its memory is given back, 15 to 75 ms after the signal; then a random "
    "wait of 20 to 80 ms, an election of 2 to 4 ms, and whatever the other node still lacks",
    "0047-beside-other-systems",
)


def _of_kills(kills: Sequence[Mapping[str, Any]]) -> list[Judgement]:
    gaps: dict[str, list[float]] = {row["peer"]: row["gaps_s"] for row in kills}
    ours = Spread.of(gaps.pop(OURS, []))
    others = [statistics.median(of) for of in gaps.values() if of]
    ratio = Spread.of([one / min(others) for one in ours[:3]]) if ours and others else None
    return [
        verdict("leader killed: longest gap, s", f"< {GAP_MAX_S}", ours, ours and ours.high < GAP_MAX_S, _KILL),
        verdict("leader killed: longest gap against shortest median of all", "< 1.0", ratio, ratio and ratio.high < 1),
    ]
