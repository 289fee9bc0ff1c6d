"""Bare replicas as processes, their client, and the end of every test with them: heal, settle, compare.

:class:`ReplicaCluster` owns addresses and settings; :mod:`oncegate.gateway.local.processes` owns processes, and
:mod:`tests.faults.harness.raw_client` what they say to clients. :class:`Scene` is what a test holds. Waiting is for
conditions, each with a deadline and a name.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from oncegate.gateway.local import waiting
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.processes import ProcessCluster
from oncegate.proof.check.links import Links
from oncegate.proof.check.proxy import Address
from tests.faults.harness.history import check
from tests.faults.harness.raw_client import NoAnswer, RawClient

DEADLINE_S: Final = 40.0
ELECTION_S_MAX: Final = 1.2
"""``election_ms_max`` of the default settings."""
SMALL: Final[dict[str, Any]] = {
    "command_bytes_max": 256 * 1024,
    "append_bytes_max": 64 * 1024,
    "journal_segment_bytes": 1024 * 1024,
}
"""Settings under which segments roll within a test."""


class ReplicaCluster(ProcessCluster):
    """Processes of one cluster. Closing kills what still runs.

    Args:
        directory: data of node ``n`` goes to ``directory/n``, its log to ``directory/n.log``.
        nodes: how many.
        linked: peers reach each other through proxies; else directly.
        config: settings of :class:`oncegate.consensus.ReplicaConfig`.
        record: the state machine remembers everything; else nothing.
        module: what to run with ``python -m``.
        prefix: by node, the words of a command that runs its process, before its own words.
        places: by node, its data directory if it is elsewhere.
        seed: of the links.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        linked: bool = True,
        config: Mapping[str, Any] = SMALL,
        record: bool = True,
        module: str = "tests.faults.harness.replica_process",
        prefix: Mapping[str, Sequence[str]] = MappingProxyType({}),
        places: Mapping[str, Path] = MappingProxyType({}),
        seed: int = 0,
    ) -> None:
        super().__init__(directory)
        ports = free_ports(2 * nodes)
        names = [f"n{number + 1}" for number in range(nodes)]
        self.listening: dict[str, Address] = {n: ("127.0.0.1", ports[i]) for i, n in enumerate(names)}
        self.clients: dict[str, Address] = {n: ("127.0.0.1", ports[nodes + i]) for i, n in enumerate(names)}
        self.links = Links(self.listening, seed=seed) if linked else None
        self._config, self._record, self._module = dict(config), record, module
        self._prefix, self._places = prefix, places

    @property
    def ids(self) -> list[str]:
        """Names of the nodes."""
        return list(self.listening)

    def data(self, node: str) -> Path:
        """The node's data directory."""
        return self._places.get(node, self.directory / node)

    def command(self, name: str) -> list[str]:
        """The command line of a node."""
        peers = {peer: address for peer, address in self.listening.items() if peer != name}
        if self.links is not None:
            peers = {peer: ("127.0.0.1", self.links.port(peer)) for peer in peers}
        settings = {
            "name": name,
            "listen": self.listening[name],
            "peers": peers,
            "client": self.clients[name],
            "directory": str(self.data(name)),
            "config": self._config,
            "record": self._record,
        }
        return [*self._prefix.get(name, ()), sys.executable, "-m", self._module, json.dumps(settings)]

    def close(self) -> None:
        """Kill what runs, close the links; idempotent."""
        super().close()
        if self.links is not None:
            self.links.close()


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

    async def term_and_leader(self, node: str) -> tuple[int, str]:
        """Return the term of a node, and whom it follows."""
        status = await self.client.status(node)
        return status["term"], status["leader_id"]

    async def caught_up(self, node: str, leader: str) -> None:
        """Wait until a node follows ``leader`` and has applied all that it has committed by now."""
        commit = (await self.client.status(leader))["commit_index"]

        async def look() -> bool:
            status = (await self.statuses(node)).get(node)
            return status is not None and status["leader_id"] == leader and status["applied_index"] >= commit

        await until(look, what=f"{node} follows {leader} and has caught up")

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
