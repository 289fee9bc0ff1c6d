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
    Action,
    Down,
    Fault,
    FaultChoice,
    PlanView,
    Random,
    all_or_one,
    any_damageable,
    any_node,
    fault,
    leader_or_any,
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


@fault
class StarvedProcessor(Fault):
    """Other programs want the processor too: one to six busy processes for each core."""

    name = "starved_processor"
    group = "processor"
    weight = 0.5
    seconds = (0.5, 3.0)
    excludes = "processor"

    def __init__(self, action: Action) -> None:
        super().__init__(action)
        self._busy: list[subprocess.Popen[bytes]] = []

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        return FaultChoice((), {"for_each_core": random.randrange(1, 7)})

    def inject(self, cluster: CheckCluster) -> str:
        count = int(self.argument("for_each_core")) * (os.cpu_count() or 1)
        command = [sys.executable, "-S", "-c", _BUSY, str(os.getpid())]
        self._busy = [subprocess.Popen(command) for _ in range(count)]
        return f"{count} busy processes"

    def heal(self, cluster: CheckCluster) -> str | None:
        for process in self._busy:
            process.kill()
            process.wait()
        return None


@fault
class FloodingTenant(Fault):
    """Another tenant sends as fast as it is answered, to all nodes, with a rate of its own or without any."""

    name = "flooding_tenant"
    group = "tenants"
    weight = 0.5
    seconds = (1.0, 4.0)
    needs = frozenset({Equipment.TENANTS})
    excludes = "tenants"

    def __init__(self, action: Action) -> None:
        super().__init__(action)
        self._flood: subprocess.Popen[str] | None = None

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        return FaultChoice((), {"tenant": random.choice(["rated", "greedy"]), "workers": random.randrange(4, 65)})

    def inject(self, cluster: CheckCluster) -> str:
        if cluster.tenants is None:
            return "left out: the nodes know no tenants"
        send_json("PUT", f"{cluster.asked()}/v1/tables/{tenants.TABLE}", {"kind": "resident"}, DECLARE_S)
        endpoints = [cluster.endpoint(node_id) for node_id in cluster.meant]
        self._flood = cluster.tenants.flood(self.argument("tenant"), self.argument("workers"), endpoints)
        return f"{self.argument('workers')} senders"

    def heal(self, cluster: CheckCluster) -> str | None:
        return None if self._flood is None else tenants.said_at_end(self._flood)


class _Clock(Fault):
    """A wall clock that jumps or runs at another speed; the monotonic clock stays the machine's."""

    group = "clocks"
    whom = leader_or_any
    needs = frozenset({Equipment.CLOCK})
    excludes = "clock"
    seconds = (0.5, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        offset_s, rate = float(self.argument("offset_s", 0.0)), float(self.argument("rate", 1.0))
        for node_id in self.targets:
            cluster.clocks[node_id].step(offset_s, rate=rate)
        return f"{offset_s:+g} s" + (f", {rate:g} times as fast" if rate != 1.0 else "")

    def heal(self, cluster: CheckCluster) -> str | None:
        for node_id in self.targets:
            cluster.clocks[node_id].step(0)
        return None


@fault
class ClockStep(_Clock):
    """The clock of a node jumps, forth or back, by a power of ten of milliseconds, at most a day."""

    name = "clock_step"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        size = min(10 ** random.uniform(-1, 5), DAY_S)
        return FaultChoice(leader_or_any(random, view), {"offset_s": round(random.choice((-1, 1)) * size, 3)})


@fault
class ClockDrift(_Clock):
    """The clock of a node runs half to four times as fast."""

    name = "clock_drift"

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"rate": round(2 ** random.uniform(-1, 2), 3)}


@fault
class FullDisk(Fault):
    """Another process takes every byte that is left on a node's file system, or on all of them."""

    name = "full_disk"
    group = "disks"
    whom = all_or_one
    needs = frozenset({Equipment.DISK})
    excludes = "room"
    seconds = (1.0, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        for node_id in self.targets:
            cluster.disks[node_id].fill()
        left = sum(cluster.disks[node_id].free_bytes for node_id in self.targets)
        return f"full: {left} bytes are left"

    def heal(self, cluster: CheckCluster) -> str | None:
        for node_id in self.targets:
            cluster.disks[node_id].give_back()
        return None


@fault
class SlowDisk(Fault):
    """Each flush takes longer, on one node or on all: by a millisecond to most of an election time-out."""

    name = "slow_disk"
    group = "disks"
    whom = all_or_one
    needs = frozenset({Equipment.FLUSHES})
    excludes = "flushes"
    seconds = (0.5, 4.0)

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"delay_s": round(10 ** random.uniform(-3, -0.3), 4)}

    def inject(self, cluster: CheckCluster) -> str:
        for node_id in self.targets:
            cluster.flushes[node_id].slow(float(self.argument("delay_s")))
        return f"each flush takes {self.argument('delay_s'):g} s longer"

    def heal(self, cluster: CheckCluster) -> str | None:
        for node_id in self.targets:
            cluster.flushes[node_id].slow(0)
        return None


class _Power(Down):
    group = "power"
    seconds = (0.3, 2.0)
    all_share: float
    """How often it befalls all nodes at once rather than one."""

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        nodes = view.nodes if random.random() < cls.all_share else any_node(random, view)
        return FaultChoice(nodes, cls.how(random, view))


@fault
class PowerLoss(_Power):
    """The power goes while flushes are slow: what was not flushed, in whatever file, is there or not, names too."""

    name = "power_loss"
    needs = frozenset({Equipment.FLUSHES})
    excludes = "flushes"
    all_share = 0.6

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"kept": random.choice([0.0, 0.5]), "seed": random.randrange(2**32)}

    def inject(self, cluster: CheckCluster) -> str:
        flushes = {node_id: cluster.flushes[node_id] for node_id in self.targets}
        for control in flushes.values():
            control.slow(0.5)
        # Without load nothing is unflushed, and nothing can be lost.
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: any(one.unflushed_bytes(_JOURNAL) for one in flushes.values()), UNFLUSHED_S, "a write")
        rng = random_module.Random(self.argument("seed"))
        with cluster.lock:
            cluster.kill(*self.targets)
            lost = {}
            for node_id, control in flushes.items():
                lost[node_id] = control.lose(rng, kept=float(self.argument("kept")))
                control.slow(0)
        return "bytes lost: " + ", ".join(f"{node_id} {count}" for node_id, count in lost.items())


@fault
class TornTail(_Power):
    """The power cut the last batch of the journal before its flush: only a sector in its middle is there."""

    name = "torn_tail"
    all_share = 0.3

    def inject(self, cluster: CheckCluster) -> str:
        torn = []
        with cluster.lock:
            cluster.kill(*self.targets)
            for node_id in self.targets:
                with contextlib.suppress(LookupError, OSError, Corrupt):  # no record, or damaged by another fault
                    torn.append(f"{node_id} {_BY_NAME['tail: torn batch'].inflict(cluster.data(node_id) / 'raft')}")
        return "torn: " + ", ".join(torn)


@fault
class FlippedBit(Fault):
    """A bit of any file whose bits count changes while the node is down: it refuses by name, or serves the truth."""

    name = "flipped_bit"
    group = "damage"
    whom = any_damageable
    excludes = "members"
    persistent = True
    recovery_s = members.RECOVERY_S
    seconds = (1.0, 4.0)

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"damage": random.choice(FLIPS)}

    def inject(self, cluster: CheckCluster) -> str:
        (node_id,) = self.targets
        directory = cluster.data(node_id) / "raft"
        with cluster.lock:
            cluster.kill(node_id)
            name = str(self.argument("damage"))
            try:
                spoiled = _BY_NAME[name].inflict(directory)
            except LookupError:
                name = _OTHERWISE
                spoiled = _BY_NAME[name].inflict(directory)
            cluster.damaged[node_id] = spoiled if isinstance(spoiled, str) else spoiled[0]
            cluster.start(node_id)
        return f"{name}, in {cluster.damaged[node_id]}"

    def heal(self, cluster: CheckCluster) -> str | None:
        (node_id,) = self.targets
        return members.settle_damage(cluster, node_id, VERDICT_S)


@fault
class DamagedBlock(Fault):
    """A byte of a running node's saved state changes, and the node meets it: it serves nothing until it is repaired."""

    name = "damaged_block"
    group = "damage"
    whom = any_damageable
    excludes = "members"
    persistent = True
    recovery_s = members.RECOVERY_S
    seconds = (1.0, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        (node_id,) = self.targets
        members.read_state(cluster, node_id)  # so that something is saved
        cluster.spoiled.add(node_id)
        spoiled = damage.spoil_saved_state(cluster.data(node_id) / "state")
        # A reader of rows may find them in a cache; a backup reads every block.
        with contextlib.suppress(RequestRefused, Unreachable):
            members.read_state(cluster, node_id)
        return f"a byte of {spoiled}"

    def heal(self, cluster: CheckCluster) -> str | None:
        (node_id,) = self.targets
        return members.repair_state(cluster, node_id, VERDICT_S) if node_id in cluster.spoiled else None
