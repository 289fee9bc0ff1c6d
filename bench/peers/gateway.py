"""This gateway: through its SDK, and as independent clients of one operation each through the foreign generator."""

from __future__ import annotations

import sys
from typing import ClassVar, Final

from bench.children import with_its_parent
from bench.peers.peer import Case, Peer, Standing
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.processes import ProcessCluster

_FOREIGN: Final = ("key", "session")
LAG_MAX: Final = 2_000
"""Writes that a node in sync may be behind under load, as many as with etcd."""


class _Nodes(LocalCluster):
    def command(self, node_id: str) -> list[str]:
        return with_its_parent(super().command(node_id))


class Gateway(Peer):
    """Three nodes with their defaults.

    Modes: ``sdk``, ``rotating``, ``batches``, ``ranges`` (:mod:`bench.peers.sdk_load`); ``key``, a PUT under an
    Idempotency-Key; ``session``, a request of one operation in a session of the caller's own (``load/web.go``).
    """

    name = "oncegate"
    title = "oncegate"
    version = "this commit"
    settings: ClassVar = {"log": "fdatasync on a majority before each answer; cannot be turned off"}
    duplicates = "sessions: while the lease lives and until acknowledged; keys: SEMANTICS.md"
    cases = (
        *(Case("sdk", n) for n in (1, 64, 512)),
        *(Case("rotating", n) for n in (1, 64, 512)),
        Case("batches", 800),
        Case("ranges", 4096),
        *(Case("key", n) for n in (1, 64, 512)),
        *(Case("session", n) for n in (1, 64, 512)),
    )
    kill_case = Case("sdk", 64)
    cluster: LocalCluster

    def _make_cluster(self) -> ProcessCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        cluster = _Nodes(self.directory)
        assert tuple(cluster.ids) == self.nodes
        return cluster

    @property
    def addresses(self) -> list[str]:
        """HTTP addresses."""
        return self.cluster.endpoints

    def command(self, name: str) -> list[str]:
        """Return the command line of a node."""
        return self.cluster.command(name)

    def is_ready(self) -> bool:
        """Whether all nodes answer linearizable reads."""
        return self.cluster.all_ready()

    def load_command(self, case: Case, *, warm_s: float, measured_s: float) -> list[str]:
        """Return the command of a measured load."""
        if case.mode in _FOREIGN:
            return super().load_command(case, warm_s=warm_s, measured_s=measured_s)
        return [*self._sdk(case), "--warm", str(warm_s), "--measured", str(measured_s)]

    def steady_command(self) -> list[str]:
        """Return the command of the load that goes on through kills."""
        return [*self._sdk(self.kill_case), "--steady"]

    def _sdk(self, case: Case) -> list[str]:
        words = ["--mode", case.mode, "--callers", str(case.outstanding), "--endpoints", ",".join(self.addresses)]
        return [sys.executable, "-m", "bench.peers.sdk_load", *words]

    def standing(self) -> Standing | None:
        """Ask the nodes."""
        leader = self.cluster.leader_now()
        states = [state for node in self.nodes if (state := self.cluster.state(node)) is not None]
        newest = max((state["commit"] for state in states), default=0)
        # One that has just started has applied what it had, and follows nobody yet.
        keep_up = sum(state["leader"] == leader and state["commit"] + LAG_MAX >= newest for state in states)
        return None if leader is None else Standing(leader, keep_up)
