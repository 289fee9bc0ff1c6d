"""A whole cluster on this machine: one ``oncegate serve`` a node, on loopback.

Owns: the members' addresses, the nodes' command lines, readiness and who leads. :mod:`oncegate.gateway.local.processes`
owns the processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from oncegate.gateway.local.blocking_http import TIMEOUT_S, get, get_json
from oncegate.gateway.local.ports import free_ports, is_free
from oncegate.gateway.local.processes import ProcessCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.gateway.node.settings import MemberAddress

START_S: Final = 30.0
LOOK_S: Final = 0.5
"""How long one question to one node may take while somebody looks for the leader: some nodes may be frozen."""


class NodeEnded(RuntimeError):
    """A node ended by itself while somebody waited for it; the message ends with its log's last lines."""


class LocalCluster(ProcessCluster):
    """Node processes of one cluster. Closing kills what still runs.

    Args:
        directory: data of node ``n`` goes to ``directory/n``, its log to ``directory/n.log``.
        nodes: how many.
        first_port: HTTP ports from here on, peer ports in between; None takes free ones.
        flags: further flags of ``oncegate serve``.
        environment: further environment variables of the nodes.

    Raises:
        OSError: no free ports.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        first_port: int | None = None,
        flags: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, environment=environment)
        ports = free_ports(2 * nodes) if first_port is None else list(range(first_port, first_port + 2 * nodes))
        self.members = [MemberAddress(f"n{i + 1}", "127.0.0.1", ports[2 * i], ports[2 * i + 1]) for i in range(nodes)]
        self.flags = flags
        self._joining: set[str] = set()

    @property
    def ids(self) -> list[str]:
        """Ids of the nodes."""
        return [member.node_id for member in self.members]

    @property
    def meant(self) -> list[str]:
        """The nodes that are meant to run."""
        return self.ids

    @property
    def endpoints(self) -> list[str]:
        """HTTP addresses of the nodes."""
        return [member.http for member in self.members]

    def endpoint(self, node_id: str) -> str:
        """Return a node's HTTP address."""
        return next(member.http for member in self.members if member.node_id == node_id)

    def ports_in_use(self) -> list[int]:
        """Return the members' ports on which a process listens now: it could be taken for a node."""
        ports = [(member.host, port) for member in self.members for port in (member.http_port, member.peer_port)]
        return [port for host, port in ports if not is_free(host, port)]

    def expand(self, node_id: str) -> MemberAddress:
        """Note a node that is to join the running cluster, on free ports; it is started like the others."""
        new = MemberAddress(node_id, "127.0.0.1", *free_ports(2))
        self.members = [*self.members, new]
        self._joining.add(node_id)
        return new

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node."""
        members = [flag for member in self.members for flag in ("--member", str(member))]
        own = ["--node", node_id, "--data-dir", str(self.directory / node_id)]
        if node_id in self._joining:
            own.append("--join")
        return [sys.executable, "-m", "oncegate", "serve", *own, *members, *self.flags]

    def is_ready(self, node_id: str, timeout_s: float = 2.0) -> bool:
        """Tell whether a node answers a linearizable read."""
        return get(f"{self.endpoint(node_id)}/readyz", timeout_s) is not None

    def all_ready(self, *node_ids: str) -> bool:
        """Tell whether these nodes, or all, answer linearizable reads; looks once at each.

        Raises:
            NodeEnded: one has ended.
        """
        for node_id in node_ids or self.ids:
            if not self.is_ready(node_id):
                if self.is_running(node_id):
                    return False
                raise NodeEnded(f"node {node_id} has ended:\n{self.log_tail(node_id)}")
        return True

    def wait_ready(self, *node_ids: str, timeout_s: float = START_S) -> None:
        """Wait until these nodes, or all, answer linearizable reads.

        Raises:
            NodeEnded: one has ended.
            TimeoutError: time is up; the message ends with the logs' last lines.
        """
        nodes = node_ids or tuple(self.ids)
        wait_for(
            lambda: self.all_ready(*nodes), timeout_s, f"{', '.join(nodes)} ready", state=lambda: self.log_tails(*nodes)
        )

    def log_tails(self, *node_ids: str) -> str:
        """Return the last lines of these nodes' logs, or of all."""
        return "".join(f"\n--- {node_id}\n{self.log_tail(node_id)}" for node_id in node_ids or self.ids)

    def state(self, node_id: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
        """Return ``/v1/cluster`` of a node, or None while it does not answer."""
        return get_json(f"{self.endpoint(node_id)}/v1/cluster", timeout_s)

    def leader(self, timeout_s: float = START_S) -> str:
        """Return the node that leads in the highest term among those that answer; waits for one.

        Raises:
            TimeoutError: there is none in time.
        """
        return wait_for(self._leader, timeout_s, "a node leads", state=self.log_tails)

    def leader_now(self, timeout_s: float = 2.0) -> str | None:
        """Return the same, or None when there is none in time."""
        try:
            return self.leader(timeout_s)
        except TimeoutError:
            return None

    def _leader(self) -> str | None:
        asked = [node_id for node_id in self.meant if self.is_running(node_id) and node_id not in self.frozen]
        states = [(node_id, self.state(node_id, LOOK_S)) for node_id in asked]
        leading = [(state["term"], node_id) for node_id, state in states if state and state["role"] == "leader"]
        return max(leading)[1] if leading else None
