"""What all systems have in common: built, started, loaded, asked who leads, stopped, wiped.

Owns: the interface that :mod:`bench.peers.rounds` and :mod:`bench.peers.kills` work with. A system says what it is
(version, settings), which loads it takes and how one of its nodes is started; it never measures.
"""

from __future__ import annotations

import abc
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from bench.children import with_its_parent
from bench.peers import packages
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.processes import Closing, ProcessCluster
from oncegate.gateway.local.waiting import wait_for

NODES: Final = 3
READY_S: Final = 60.0
STANDING_S: Final = 5.0
VALUE_BYTES: Final = 200


class Case(NamedTuple):
    """One load of a system.

    Attributes:
        mode: how a write is made; each system names its own.
        outstanding: writes under way at once.
        flags: further flags of the generator.
    """

    mode: str
    outstanding: int
    flags: tuple[str, ...] = ()


class Standing(NamedTuple):
    """Who leads, and how many nodes keep up with it, itself included."""

    leader: str
    in_sync: int


class Processes(ProcessCluster):
    """The processes of a system. They end when the bench ends, however it does."""

    def __init__(self, peer: Peer, directory: Path) -> None:
        super().__init__(directory, environment=peer.environment)
        self._peer = peer

    @property
    def ids(self) -> list[str]:
        """Nodes and helpers."""
        return [*self._peer.nodes, *self._peer.helpers]

    def command(self, name: str) -> list[str]:
        """Return the command line of one."""
        return with_its_parent(self._peer.command(name))


class Peer(Closing):
    """A cluster of three nodes of one system, with its data below ``directory``. Closing kills it and deletes the data.

    Raises:
        NotBuilt: its packages are not to be had.
    """

    name: ClassVar[str]
    """On the command line."""
    title: ClassVar[str]
    """On the page."""
    version: ClassVar[str]
    settings: ClassVar[Mapping[str, str]]
    """What is not the default, and what decides about flushes."""
    duplicates: ClassVar[str]
    """What keeps a repeated write from being done twice, and for how long."""
    cases: ClassVar[tuple[Case, ...]]
    prime_s: ClassVar[float] = 2.0
    """Load before the first measured one; a JVM needs more."""
    prime_cases: ClassVar[tuple[Case, ...]] = ()
    """The loads of that, each so long; empty: that of the kills."""
    kill_case: ClassVar[Case]
    """The load under which the leader is killed."""
    helpers: ClassVar[tuple[str, ...]] = ()
    """Processes beside the nodes, which count as clients."""
    environment: ClassVar[Mapping[str, str]] = {}
    scheme: ClassVar[str] = ""
    """Of the addresses."""
    file: ClassVar[str] = ""
    """Name of a node's configuration file; empty: it has none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes = tuple(f"n{number + 1}" for number in range(NODES))
        self.generator = packages.go_program(packages.HERE / "load")
        self.ports = Ports.free()
        self.cluster = self._make_cluster()

    def _make_cluster(self) -> ProcessCluster:
        return Processes(self, self.directory)

    @property
    def addresses(self) -> list[str]:
        """Of the nodes, as the generator takes them."""
        return local(self.ports.clients, self.scheme)

    @abc.abstractmethod
    def command(self, name: str) -> list[str]:
        """Return the command line of a node or helper."""

    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Whether all nodes serve."""

    def configuration(self, name: str) -> list[str]:
        """Return the lines of a node's configuration file."""
        return []

    def file_of(self, name: str) -> Path:
        """Return where that is."""
        return self.directory / self.file.format(name)

    def configure(self) -> None:
        """Write the configuration files."""
        for name in self.nodes if self.file else ():
            self.file_of(name).write_text("\n".join([*self.configuration(name), ""]))

    def start(self) -> None:
        """Start all nodes on empty data and wait until they serve."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.configure()
        self.cluster.start()
        wait_for(self.is_ready, READY_S, f"{self.name} serves", state=self.log_tails, every_s=0.1)

    def restart(self, node: str) -> None:
        """Start a node that was killed, on its data."""
        self.cluster.start(node)

    def kill(self, node: str) -> None:
        """Kill a node's process."""
        self.cluster.kill(node)

    def load_command(self, case: Case, *, warm_s: float, measured_s: float) -> list[str]:
        """Return the command of a measured load."""
        return [*self._go(case), "-warm", f"{warm_s}s", "-measured", f"{measured_s}s"]

    def steady_command(self) -> list[str]:
        """Return the command of the load that goes on through kills."""
        return [*self._go(self.kill_case), "-steady", "-patience", "500ms"]

    def _go(self, case: Case) -> list[str]:
        words = ["-mode", case.mode, "-callers", str(case.outstanding), "-bytes", str(VALUE_BYTES)]
        return [*self._target(), *words, *case.flags]

    def _target(self) -> list[str]:
        return [str(self.generator), "-target", self.name, "-addresses", ",".join(self.addresses)]

    def standing(self) -> Standing | None:
        """Ask the cluster who leads; None while nobody does."""
        asked = [*self._target(), "-standing", "-patience", f"{STANDING_S}s"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=4 * STANDING_S)
        if answer.returncode:
            return None
        found = json.loads(answer.stdout)
        return Standing(self.nodes[found["leader"]], found["in_sync"])

    def node_pids(self) -> list[int]:
        """Return the processes that replicate."""
        return [self.cluster.pid(name) for name in self.nodes if self.cluster.is_running(name)]

    def helper_pids(self) -> list[int]:
        """Return the others."""
        return [self.cluster.pid(name) for name in self.helpers if self.cluster.is_running(name)]

    def log_tails(self) -> str:
        """Return the last lines of all logs."""
        return "".join(f"\n--- {name}\n{self.cluster.log_tail(name)}" for name in self.cluster.ids)

    def close(self) -> None:
        """Kill what runs and delete the data. Idempotent."""
        self.cluster.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Ports(NamedTuple):
    """Free ports of a system: of each kind one for each node."""

    clients: list[int]
    peers: list[int]
    third: list[int]

    @classmethod
    def free(cls) -> Ports:
        """Take some."""
        ports = free_ports(3 * NODES)
        return cls(ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :])


def local(ports: list[int], scheme: str = "") -> list[str]:
    """Return loopback addresses."""
    return [f"{scheme}127.0.0.1:{port}" for port in ports]
