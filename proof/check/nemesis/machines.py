"""Faults of one node's machine: its clock, its disk, its power, and the bits of its files.

A power loss and a torn tail lose only what was not acknowledged, so all nodes may suffer them at once. After a flipped
bit a node has to refuse to start and name the file, or to serve the truth; a node that refuses is removed and joins
anew, as an operator does it (docs/operations.md). A damaged block of the state fences the node, and costs it no data:
a repair fetches a fresh copy.
"""

from __future__ import annotations

import contextlib
import os
import random as random_module
import subprocess
import sys
from functools import partial
from typing import Any, Final

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.segment import SEGMENT_SUFFIX
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json
from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check import damage, tenants
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import DAY_S, Equipment
from oncegate.proof.check.nemesis import members
from oncegate.proof.check.nemesis.fault import (
    Fault,
    FaultChoice,
    Injection,
    PlanView,
    Random,
    all_or_any,
    all_or_one,
    any_damageable,
    fault,
    leader_or_any,
    nobody,
    start_again,
)

VERDICT_S: Final = 20.0
DECLARE_S: Final = 5.0
UNFLUSHED_S: Final = 2.0
_JOURNAL: Final = f"*{SEGMENT_SUFFIX}"
FLIPS: Final = tuple(
    case.name
    for case in damage.ALL
    if case.verdict == "refuses" and "bit of" in case.name and not case.name.startswith("spare")
)
_OTHERWISE: Final = "ballot: bit of the payload"
"""When the journal has too few records for the flip that was planned."""
_BY_NAME: Final = {case.name: case for case in damage.ALL}


_BUSY: Final = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"


def _starve(one: Injection, cluster: CheckCluster) -> str:
    count = int(one.argument("for_each_core")) * (os.cpu_count() or 1)
    command = [sys.executable, "-S", "-c", _BUSY, str(os.getpid())]
    one.kept = [subprocess.Popen(command) for _ in range(count)]
    return f"{count} busy processes"


def _feed(one: Injection, cluster: CheckCluster) -> None:
    for process in one.kept or ():
        process.kill()
        process.wait()


def _flood(one: Injection, cluster: CheckCluster) -> str:
    if cluster.tenants is None:
        return "left out: the nodes know no tenants"
    send_json("PUT", f"{cluster.asked()}/v1/tables/{tenants.TABLE}", {"kind": "resident"}, DECLARE_S)
    endpoints = [cluster.endpoint(node_id) for node_id in cluster.meant]
    one.kept = cluster.tenants.flood(one.argument("tenant"), one.argument("workers"), endpoints)
    return f"{one.argument('workers')} senders"


def _end_flood(one: Injection, cluster: CheckCluster) -> str | None:
    return None if one.kept is None else tenants.said_at_end(one.kept)


def _tenant(random: Random, view: PlanView) -> dict[str, Any]:
    return {"tenant": random.choice(["rated", "greedy"]), "workers": random.randrange(4, 65)}


def _set_clocks(one: Injection, cluster: CheckCluster) -> str:
    offset_s, rate = float(one.argument("offset_s", 0.0)), float(one.argument("rate", 1.0))
    for node_id in one.targets:
        cluster.clocks[node_id].step(offset_s, rate=rate)
    return f"{offset_s:+g} s" + (f", {rate:g} times as fast" if rate != 1.0 else "")


def _set_clocks_right(one: Injection, cluster: CheckCluster) -> None:
    for node_id in one.targets:
        cluster.clocks[node_id].step(0)


def _jump(random: Random, view: PlanView) -> FaultChoice:
    size = min(10 ** random.uniform(-1, 5), DAY_S)
    return FaultChoice(leader_or_any(random, view), {"offset_s": round(random.choice((-1, 1)) * size, 3)})


def _fill(one: Injection, cluster: CheckCluster) -> str:
    for node_id in one.targets:
        cluster.disks[node_id].fill()
    left = sum(cluster.disks[node_id].free_bytes for node_id in one.targets)
    return f"full: {left} bytes are left"


def _give_back(one: Injection, cluster: CheckCluster) -> None:
    for node_id in one.targets:
        cluster.disks[node_id].give_back()


def _slow_flushes(one: Injection, cluster: CheckCluster) -> str:
    for node_id in one.targets:
        cluster.flushes[node_id].slow(float(one.argument("delay_s")))
    return f"each flush takes {one.argument('delay_s'):g} s longer"


def _usual_flushes(one: Injection, cluster: CheckCluster) -> None:
    for node_id in one.targets:
        cluster.flushes[node_id].slow(0)


def _lose_power(one: Injection, cluster: CheckCluster) -> str:
    flushes = {node_id: cluster.flushes[node_id] for node_id in one.targets}
    for control in flushes.values():
        control.slow(0.5)
    # Without load nothing is unflushed, and nothing can be lost.
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: any(one.unflushed_bytes(_JOURNAL) for one in flushes.values()), UNFLUSHED_S, "a write")
    rng = random_module.Random(one.argument("seed"))
    with cluster.lock:
        cluster.kill(*one.targets)
        lost = {}
        for node_id, control in flushes.items():
            lost[node_id] = control.lose(rng, kept=float(one.argument("kept")))
            control.slow(0)
    return "bytes lost: " + ", ".join(f"{node_id} {count}" for node_id, count in lost.items())


def _tear(one: Injection, cluster: CheckCluster) -> str:
    torn = []
    with cluster.lock:
        cluster.kill(*one.targets)
        for node_id in one.targets:
            with contextlib.suppress(LookupError, OSError, Corrupt):  # no record, or damaged by another fault
                torn.append(f"{node_id} {_BY_NAME['tail: torn batch'].inflict(cluster.data(node_id) / 'raft')}")
    return "torn: " + ", ".join(torn)


def _flip(one: Injection, cluster: CheckCluster) -> str:
    (node_id,) = one.targets
    directory = cluster.data(node_id) / "raft"
    with cluster.lock:
        cluster.kill(node_id)
        name = str(one.argument("damage"))
        try:
            spoiled = _BY_NAME[name].inflict(directory)
        except LookupError:
            name = _OTHERWISE
            spoiled = _BY_NAME[name].inflict(directory)
        cluster.damaged[node_id] = spoiled if isinstance(spoiled, str) else spoiled[0]
        cluster.start(node_id)
    return f"{name}, in {cluster.damaged[node_id]}"


def _settle_damage(one: Injection, cluster: CheckCluster) -> str:
    return members.settle_damage(cluster, one.targets[0], VERDICT_S)


def _spoil(one: Injection, cluster: CheckCluster) -> str:
    (node_id,) = one.targets
    members.read_state(cluster, node_id)  # so that something is saved
    cluster.spoiled.add(node_id)
    spoiled = damage.spoil_saved_state(cluster.data(node_id) / "state")
    # A reader of rows may find them in a cache; a backup reads every block.
    with contextlib.suppress(RequestRefused, Unreachable):
        members.read_state(cluster, node_id)
    return f"a byte of {spoiled}"


def _repair(one: Injection, cluster: CheckCluster) -> str | None:
    (node_id,) = one.targets
    return members.repair_state(cluster, node_id, VERDICT_S) if node_id in cluster.spoiled else None


# Other programs want the processor too: one to six busy processes for each core.
fault(
    Fault(
        "starved_processor",
        group="processor",
        strike=_starve,
        heal=_feed,
        whom=nobody,
        how=lambda random, view: {"for_each_core": random.randrange(1, 7)},
        weight=0.5,
        seconds=(0.5, 3.0),
        excludes="processor",
    )
)
# Another tenant sends as fast as it is answered, to all nodes, with a rate of its own or without any.
fault(
    Fault(
        "flooding_tenant",
        group="tenants",
        strike=_flood,
        heal=_end_flood,
        whom=nobody,
        how=_tenant,
        weight=0.5,
        seconds=(1.0, 4.0),
        needs=frozenset({Equipment.TENANTS}),
        excludes="tenants",
    )
)

# A wall clock that jumps or runs at another speed; the monotonic clock stays the machine's.
_clock = partial(
    Fault,
    group="clocks",
    strike=_set_clocks,
    heal=_set_clocks_right,
    whom=leader_or_any,
    needs=frozenset({Equipment.CLOCK}),
    excludes="clock",
    seconds=(0.5, 4.0),
)
# Forth or back, by a power of ten of milliseconds, at most a day.
fault(_clock("clock_step", draw=_jump))
# Half to four times as fast.
fault(_clock("clock_drift", how=lambda random, view: {"rate": round(2 ** random.uniform(-1, 2), 3)}))

_disk = partial(Fault, group="disks", whom=all_or_one)
# Another process takes every byte that is left on a node's file system, or on all of them.
fault(
    _disk(
        "full_disk",
        strike=_fill,
        heal=_give_back,
        needs=frozenset({Equipment.DISK}),
        excludes="room",
        seconds=(1.0, 4.0),
    )
)
# Each flush takes longer, on one node or on all: by a millisecond to most of an election time-out.
fault(
    _disk(
        "slow_disk",
        strike=_slow_flushes,
        heal=_usual_flushes,
        how=lambda random, view: {"delay_s": round(10 ** random.uniform(-3, -0.3), 4)},
        needs=frozenset({Equipment.FLUSHES}),
        excludes="flushes",
        seconds=(0.5, 4.0),
    )
)

_power = partial(Fault, group="power", heal=start_again, seconds=(0.3, 2.0))
# The power goes while flushes are slow: what was not flushed, in whatever file, is there or not, names too.
fault(
    _power(
        "power_loss",
        strike=_lose_power,
        whom=all_or_any(0.6),
        how=lambda random, view: {"kept": random.choice([0.0, 0.5]), "seed": random.randrange(2**32)},
        needs=frozenset({Equipment.FLUSHES}),
        excludes="flushes",
    )
)
# The power cut the last batch of the journal before its flush: only a sector in its middle is there.
fault(_power("torn_tail", strike=_tear, whom=all_or_any(0.3)))

_damage = partial(
    Fault,
    group="damage",
    whom=any_damageable,
    excludes="members",
    persistent=True,
    recovery_s=members.RECOVERY_S,
    seconds=(1.0, 4.0),
)
# A bit of any file whose bits count changes while the node is down: it refuses by name, or serves the truth.
fault(
    _damage(
        "flipped_bit",
        strike=_flip,
        heal=_settle_damage,
        how=lambda random, view: {"damage": random.choice(FLIPS)},
    )
)
# A byte of a running node's saved state changes, and the node meets it: it serves nothing until it is repaired.
fault(_damage("damaged_block", strike=_spoil, heal=_repair))
