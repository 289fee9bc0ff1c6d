"""A cluster to be checked: real node processes on loopback whose network, disks, clocks and flushes we control.

:class:`CheckCluster` owns the means: processes, proxies, small file systems, clocks, and what has to be undone after a
fault. :mod:`oncegate.proof.check.nemesis` decides what is done with them, and when. Clients reach the nodes without a
proxy, also those that are cut off from their peers.

Methods block. Several threads may call them: a node's process changes under :attr:`CheckCluster.lock`.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.gateway.node.settings import MemberAddress
from oncegate.proof.check.certificates import Certificates
from oncegate.proof.check.earlier_build import python, unpack
from oncegate.proof.check.equipment import Equipment, RestoredReads, SmallDisk, Target, WallClock
from oncegate.proof.check.errors import CheckError
from oncegate.proof.check.flush_control import FlushControl
from oncegate.proof.check.links import Links
from oncegate.proof.check.socket_owner import owner_of
from oncegate.proof.check.tenants import Tenants

READY_S: Final = 60.0
DISK_BYTES: Final = 256 * 2**20
SMALL_BODY_BYTES_MAX: Final = 384 * 1024
"""Largest body on a small disk; the node's log is small then, too (:mod:`oncegate.proof.check.node_process`)."""
_ENDED_BY_US: Final = (0, -signal.SIGKILL, -signal.SIGTERM)
"""How a process ends that was killed or stopped."""


def _secret(directory: Path) -> Path:
    """Return the file of the peers' shared secret, without which a node cannot tell a forged frame."""
    path = directory / "peers.secret"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path


class CheckCluster(LocalCluster):
    """A local cluster in which everything can go wrong; closing it ends all of its processes.

    Data of node ``n`` is below ``directory/n``, its log is ``directory/n.log``. The planned faults need ``equipment``;
    ``seed`` is that of jitter and resets. With :attr:`Equipment.DISK` bodies are small, as the disks are.

    Raises Unavailable if this machine does not allow the equipment (:func:`~oncegate.proof.check.equipment.missing`).
    """

    def __init__(
        self, directory: Path, nodes: int = 3, *, equipment: Collection[Equipment] = (), seed: int = 0
    ) -> None:
        directory = directory.resolve()  # as /proc names the files of a node
        super().__init__(directory, nodes)
        directory.mkdir(parents=True, exist_ok=True)
        self.flags = (*self.flags, "--secret-file", str(_secret(directory)))
        self.lock = threading.RLock()
        self.equipment = frozenset(equipment)
        self.first_ids: Final = tuple(self.ids)
        """The members that are there before and after all faults."""
        self.damaged: dict[str, str] = {}
        """Nodes whose files were changed, and how: they may refuse to start, and are replaced then."""
        self.spoiled: set[str] = set()
        """Nodes whose saved state was changed while they ran: they are repaired."""
        self.absent: set[str] = set()
        """Nodes that are not meant to run now: removed, or to be added."""
        self.crashes: dict[str, str] = {}
        """Nodes that ended by themselves, undamaged, and how: a defect, whatever the history says."""
        self.targets: dict[str, Target] = {}
        self.restored_reads: RestoredReads | None = None
        """By what backups are judged; without it none is made."""
        self.disks: dict[str, SmallDisk] = {}
        self.clocks: dict[str, WallClock] = {}
        self.flushes: dict[str, FlushControl] = {}
        tls = Equipment.PEER_TLS in self.equipment
        self.certificates = Certificates(directory / "certificates") if tls else None
        """Those of the nodes, where they speak TLS with each other."""
        earlier = Equipment.EARLIER_BUILD in self.equipment
        self.earlier_build = unpack(directory / "earlier") if earlier else None
        self.run_earlier: set[str] = set()
        """Nodes that are started with the earlier build."""
        self._founded = not earlier
        """Whether the first start has been; with the earlier build beside, that one founds the cluster."""
        self.tenants = Tenants(directory / "tokens.toml") if Equipment.TENANTS in self.equipment else None
        if self.tenants is not None:
            self.flags = (*self.flags, "--tokens-file", str(self.tenants.file))
        self.links = Links({member.node_id: member.peer for member in self.members}, self._node_of, seed=seed)
        try:
            for node_id in self.ids:
                self._equip(node_id)
        except BaseException:
            self.close()
            raise

    def _node_of(self, port: int) -> str | None:
        return owner_of(port, {node_id: process.pid for node_id, process in list(self._processes.items())})

    def _equip(self, node_id: str) -> None:
        if self.certificates is not None:
            self.certificates.issue(node_id)
        if Equipment.DISK in self.equipment:
            self.disks[node_id] = SmallDisk(self.directory / node_id, DISK_BYTES)
        if Equipment.CLOCK in self.equipment:
            self.clocks[node_id] = WallClock(self.directory, node_id)
        if Equipment.FLUSHES in self.equipment:
            control = self.directory / f"{node_id}.flushes"
            self.flushes[node_id] = FlushControl(control, self._data_inside(node_id), seen_as=self.data(node_id))

    def register(self, target: Target) -> None:
        """Let faults kill ``target``; it ends with the cluster."""
        self.targets[target.name] = target

    # Where things are

    def data(self, node_id: str) -> Path:
        """A node's data directory, as this process sees it."""
        disk = self.disks.get(node_id)
        return self.directory / node_id if disk is None else disk.path / "data"

    def _data_inside(self, node_id: str) -> Path:
        return self.directory / node_id / "data" if node_id in self.disks else self.directory / node_id

    def command(self, node_id: str) -> list[str]:
        """Return a node's command line: its own address is the real one, each peer's is that of the peer's proxy."""
        # The members of the beginning, without those added since: a node whose log names none keeps to its list.
        members = [
            member if member.node_id == node_id else member._replace(peer_port=self.links.port(member.node_id))
            for member in self.members
            if member.node_id == node_id or member.node_id in self.first_ids
        ]
        small = node_id in self.disks
        clock = self.clocks.get(node_id)
        preloaded = () if clock is None else (str(clock.library),)
        return [
            *(self.disks[node_id].prefix if small else ()),
            *(() if clock is None else clock.prefix),
            *(self.flushes[node_id].prefix(*preloaded) if node_id in self.flushes else ()),
            *self._python(node_id),
            *("-m", "oncegate.proof.check.node_process"),
            *(str(os.getpid()), str(self.links.port(node_id)), "serve"),
            *("--node", node_id, "--data-dir", str(self._data_inside(node_id))),
            *(("--join",) if node_id in self._joining else ()),
            *(flag for member in members for flag in ("--member", str(member))),
            *(() if self.certificates is None else self.certificates.flags(node_id)),
            *(("--body-bytes-max", str(SMALL_BODY_BYTES_MAX)) if small else ()),
            *self.flags,
        ]

    def _python(self, node_id: str) -> list[str]:
        if self.earlier_build is None or node_id not in self.run_earlier:
            return [sys.executable]
        return python(self.earlier_build)

    def expand(self, node_id: str) -> MemberAddress:
        """Note a node that is to join, equipped as the others; one that was noted before joins anew."""
        with self.lock:
            if node_id in self.ids:
                self._joining.add(node_id)
                return next(member for member in self.members if member.node_id == node_id)
            new = super().expand(node_id)
            self.links.add(node_id, new.peer)
            self._equip(node_id)
            return new

    def begin_joining(self, node_id: str) -> MemberAddress:
        """Start a node that is no member, to be added."""
        with self.lock:
            new = self.expand(node_id)
            self.absent.discard(node_id)
            self._joining.add(node_id)
            self.start(node_id)
            return new

    # Processes

    def start(self, *node_ids: str) -> None:
        """Start these nodes, or all that are meant to run and do not."""
        with self.lock:
            if not self._founded:
                self._found_by_the_earlier_build()
            for node_id in node_ids or self.meant:
                if node_id in self.absent:
                    continue
                self._look_for_crash(node_id)
                super().start(node_id)

    def _found_by_the_earlier_build(self) -> None:
        """Let it found the cluster, and stop: this build begins one at a level that the earlier one does not know."""
        self._founded = True
        self.run_earlier.update(self.first_ids)
        super().start(*self.first_ids)
        self.wait_ready(*self.first_ids)
        found = functools.partial(self._has_identity, *self.first_ids)
        wait_for(found, READY_S, "the identity of the cluster")
        self.stop(*self.first_ids)
        self.run_earlier.clear()

    def _has_identity(self, *node_ids: str) -> bool:
        return all((self.state(node_id) or {}).get("identity") for node_id in node_ids)

    def _look_for_crash(self, node_id: str) -> None:
        """Note a node that has ended by itself, before it is started again."""
        status = self.ended_by_itself(node_id)
        if status is None or node_id in self.damaged:
            return
        self.crashes.setdefault(node_id, f"ended by itself with status {status}: {self.log_tail(node_id, 1)}")

    def ended_by_itself(self, node_id: str) -> int | None:
        """Return the status with which a node's last process ended, unless it runs or was ended by the check."""
        process = self._processes.get(node_id)
        status = None if process is None else process.poll()
        return None if status in _ENDED_BY_US else status

    @property
    def meant(self) -> list[str]:
        """The nodes that are meant to run."""
        return [node_id for node_id in self.ids if node_id not in self.absent]

    def kill(self, *node_ids: str) -> None:
        """Kill these with SIGKILL, all at once; wait until they are gone."""
        with self.lock:
            super().kill(*node_ids)

    def freeze(self, *node_ids: str) -> None:
        """SIGSTOP; without effect on a node that does not run."""
        with self.lock:
            super().freeze(*node_ids)

    def thaw(self, *node_ids: str) -> None:
        """SIGCONT."""
        with self.lock:
            super().thaw(*node_ids)

    # Who is who

    def asked(self, among: Sequence[str] | None = None) -> str:
        """HTTP address of a node that can be asked for a change: one that is ready, if there is one."""
        candidates = [n for n in among or self.meant if self.is_running(n) and n not in self.frozen]
        for node_id in candidates:
            if self.is_ready(node_id):
                return self.endpoint(node_id)
        raise CheckError(f"none of {', '.join(candidates) or 'the nodes'} is ready")

    def wipe(self, node_id: str) -> None:
        """Empty the data directory of a node that is down; nothing of it is damaged any more."""
        if self.is_running(node_id):
            raise CheckError(f"{node_id} runs")
        shutil.rmtree(self.data(node_id), ignore_errors=True)
        if node_id in self.flushes:
            self.flushes[node_id].forget()
        self.damaged.pop(node_id, None)
        self.spoiled.discard(node_id)
        self._processes.pop(node_id, None)  # how the last one ended is no news any more

    def close(self) -> None:
        """Kill what runs, registered processes too, unmount, close the links. Idempotent."""
        super().close()
        for target in self.targets.values():
            target.kill()
        for disk in self.disks.values():
            disk.close()
        for control in self.flushes.values():
            control.close()
        if self.tenants is not None:
            self.tenants.close()
        self.links.close()
