"""A cluster, its client and the end of every test of this directory: heal, settle, compare.

:class:`Scene` is what a test holds. Waiting is for conditions, each with a deadline and a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from oncegate.proof.check.links import Links
from tests.faults.harness.history import check
from tests.faults.harness.raw_client import NoAnswer, RawClient
from tests.faults.harness.replica_cluster import ReplicaCluster

DEADLINE_S: Final = 40.0
ELECTION_S_MAX: Final = 1.2
"""``election_ms_max`` of the default settings."""


async def until(
    condition: Callable[[], Any], *, what: str, deadline_s: float = DEADLINE_S, every_s: float = 0.01
) -> None:
    """Wait until ``condition``, a function or a coroutine function, gives something true."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline_s} s")
        await asyncio.sleep(every_s)


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
        for name in names or self.cluster.names:
            with contextlib.suppress(NoAnswer):
                found[name] = await self.client.status(name, timeout_s=timeout_s)
        return found

    async def leader(self, *among: str, deadline_s: float = DEADLINE_S) -> str:
        """The ready leader among these nodes, or all; waits for one."""

        ready: list[tuple[int, str]] = []

        async def look() -> bool:
            statuses = await self.statuses(*among)
            ready.extend((status["term"], name) for name, status in statuses.items() if status["ready"])
            return bool(ready)

        await until(look, what="a ready leader", deadline_s=deadline_s)
        return max(ready)[1]

    def others(self, *names: str) -> list[str]:
        """All names but these."""
        return [name for name in self.cluster.names if name not in names]

    async def progress(self, commands: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until so many more commands are acknowledged."""
        goal = self.client.history.commands + commands
        await until(lambda: self.client.history.commands >= goal, what=f"{commands} commands", deadline_s=deadline_s)

    async def settled(self, *names: str) -> dict[str, dict[str, Any]]:
        """Wait until these nodes, or all, have applied the same log to its end; returns what they hold."""

        async def look() -> bool:
            statuses = await self.statuses(*names)
            if len(statuses) < len(names or self.cluster.names):
                return False
            # A leader of the present is among them, and nothing is left to apply anywhere.
            ends = {(one["term"], one["commit_index"], one["applied_index"]) for one in statuses.values()}
            leads = any(one["ready"] and one["commit_index"] == one["last_index"] for one in statuses.values())
            agree = len(ends) == 1 and all(commit == applied for _, commit, applied in ends)
            return leads and agree

        await until(look, what="all nodes equal")
        return {name: await self.client.ask(name, "dump") for name in names or self.cluster.names}

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
            for name in cluster.names:
                failure.add_note(f"--- log of {name}\n" + "\n".join(cluster.log(name).splitlines()[-30:]))
            raise
