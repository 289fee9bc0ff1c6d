"""Whole gateway nodes as processes, their peer links through :class:`~tests.faults.harness.links.Links`.

What HTTP carries goes to the nodes directly: a node that is cut off from its peers is still reached by its clients.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.cli.local_cluster import LocalCluster
from tests.faults.harness.links import Links

__all__: Final = ["GatewayCluster"]


class GatewayCluster(LocalCluster):
    """A local cluster with links, SIGSTOP and a prefix a node; closing it closes the links too."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        flags: tuple[str, ...] = (),
        prefix: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(directory, nodes, flags=flags)
        self._listening = {member.node_id: member.peer for member in self.members}
        self.links = Links(self._listening)
        self.prefix = dict(prefix or {})

    def command(self, node_id: str) -> list[str]:
        """The node's own address is the real one, that of each peer is the proxy of the pair."""
        seen = self.links.addresses(node_id, self._listening)
        members = [
            member if member.node_id == node_id else member._replace(peer_port=seen[member.node_id][1])
            for member in self.members
        ]
        plain, self.members = self.members, members
        try:
            return [*self.prefix.get(node_id, ()), *super().command(node_id)]
        finally:
            self.members = plain

    def freeze(self, node_id: str) -> None:
        """SIGSTOP."""
        os.kill(self.pid(node_id), signal.SIGSTOP)

    def thaw(self, node_id: str) -> None:
        """SIGCONT."""
        os.kill(self.pid(node_id), signal.SIGCONT)

    def close(self) -> None:
        """Kill what runs; close logs and links."""
        super().close()
        self.links.close()
