"""A cluster, its client and the end of every test of this directory: heal, settle, compare.

:class:`Scene` is what a test holds. Waiting is for conditions, each with a deadline and a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from oncegate.gateway.local import waiting
from oncegate.proof.check.links import Links
from tests.faults.harness.history import check
from tests.faults.harness.raw_client import NoAnswer, RawClient
from tests.faults.harness.replica_cluster import ReplicaCluster

DEADLINE_S: Final = 40.0
ELECTION_S_MAX: Final = 1.2
"""``election_ms_max`` of the default settings."""


async def until(condition: Callable[[], Any], *, what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait until ``condition``, a function or a coroutine function, gives something true, and return that."""
    return await waiting.until(condition, deadline_s, what, every_s=0.01)


class Scene:
    """A running cluster and a client of it."""

    def __init__(self, cluster: ReplicaCluster, client: RawClient) -> None:
        self.cluster = cluster
        self.client = client

    @property
    def links(self) -> Links:
        """The network."""
        if self.cluster.links is None:
            raise ValueError("this cluster has no links")
        return self.cluster.links

    async def statuses(self, *names: str, timeout_s: float = 0.5) -> dict[str, dict[str, Any]]:
        """What the nodes that answer say of themselves."""
        found = {}
        for name in names or self.cluster.ids:
            with contextlib.suppress(NoAnswer):
                found[name] = await self.client.status(name, timeout_s=timeout_s)
        return found

    async def leader(self, *among: str, deadline_s: float = DEADLINE_S) -> str:
        """The ready leader among these nodes, or all; waits for one."""

        async def look() -> str | None:
            statuses = await self.statuses(*among)
            ready = [(status["term"], name) for name, status in statuses.items() if status["ready"]]
            return max(ready)[1] if ready else None

        leader: str = await until(look, what="a ready leader", deadline_s=deadline_s)
        return leader

    def others(self, *names: str) -> list[str]:
        """All names but these."""
        return [name for name in self.cluster.ids if name not in names]

    async def progress(self, commands: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until so many more commands are acknowledged."""
        goal = self.client.history.commands + commands
        await until(lambda: self.client.history.commands >= goal, what=f"{commands} commands", deadline_s=deadline_s)

    async def settled(self, *names: str) -> dict[str, dict[str, Any]]:
        """Wait until these nodes, or all, have applied the same log to its end; returns what they hold."""

        async def look() -> bool:
            statuses = await self.statuses(*names)
            if len(statuses) < len(names or self.cluster.ids):
                return False
            # A leader of the present is among them, and nothing is left to apply anywhere.
            ends = {(one["term"], one["commit_index"], one["applied_index"]) for one in statuses.values()}
            leads = any(one["ready"] and one["commit_index"] == one["last_index"] for one in statuses.values())
            agree = len(ends) == 1 and all(commit == applied for _, commit, applied in ends)
            return leads and agree

        await until(look, what="all nodes equal")
        return {name: await self.client.ask(name, "dump") for name in names or self.cluster.ids}

    async def finish(self, *names: str) -> None:
        """Heal everything, wait for all nodes, and check what the client saw against what they hold."""
        if self.cluster.links is not None:
            self.cluster.links.heal()
        if not names:
            self.cluster.start()
        check(self.client.history, await self.settled(*names))


@contextlib.asynccontextmanager
async def running(directory: Path, nodes: int = 3, **options: Any) -> AsyncIterator[Scene]:
    """A started cluster with a ready leader, which all nodes follow."""
    with ReplicaCluster(directory, nodes, **options) as cluster:
        cluster.start()
        try:
            async with RawClient(cluster.clients) as client:
                scene = Scene(cluster, client)
                await scene.settled()
                yield scene
        except Exception as failure:
            for name in cluster.ids:
                failure.add_note(f"--- log of {name}\n{cluster.log_tail(name, 30)}")
            raise
