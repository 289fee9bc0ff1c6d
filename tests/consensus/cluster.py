"""Replicas in one process over real loopback sockets, and waiting for conditions with a deadline."""

from __future__ import annotations

import asyncio
import contextlib

from oncegate.consensus import Replica, ReplicaConfig
from oncegate.consensus.config import KIB, MIB
from oncegate.consensus.configuration import RaftMember
from oncegate.gateway.local import waiting
from oncegate.gateway.local.ports import free_ports

DEADLINE_S = 60.0


async def until(condition, *, deadline_s=DEADLINE_S, what="the condition"):
    """Wait until ``condition()`` is true, and return what it returned."""
    return await waiting.until(condition, deadline_s, what, every_s=0.005)


def free_addresses(count):
    return [("127.0.0.1", port) for port in free_ports(count)]


class ListMachine:
    """Remembers what was applied."""

    def __init__(self):
        self.entries = []

    def apply(self, index, term, command):
        self.entries.append((index, command))
        return (index, command)

    @property
    def commands(self):
        return [command for _, command in self.entries]


class Halted(AssertionError):
    """A replica wanted to end the process."""


class Cluster:
    """Up to three members with small segments; ``replicas`` holds the running ones."""

    def __init__(self, directory, names=("n1", "n2", "n3"), make_machine=lambda name: ListMachine(), **settings):
        self.directory, self.settings = directory, settings
        self.make_machine = make_machine
        self.addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        self.names = self.first = names
        self.replicas = {}
        self.machines = {}
        self.roles = []
        self.halts = []

    def config(self, name, **settings):
        chosen = {
            "command_bytes_max": 256 * KIB,
            "append_bytes_max": 64 * KIB,
            "journal_segment_bytes": MIB,
            **self.settings,
            **settings,
        }
        return ReplicaConfig(
            node_id=name,
            cluster_id="test",
            listen=self.addresses[name],
            peers={other: self.addresses[other] for other in self.peers_of(name)},
            joining=name not in self.first,
            data_dir=self.directory / name,
            **chosen,
        )

    def peers_of(self, name):
        """What the settings say: the first members, and to a node that joined, everybody."""
        return [other for other in (self.first if name in self.first else self.addresses) if other != name]

    async def join(self, name):
        """Start a node that is no member yet."""
        self.addresses[name] = free_addresses(1)[0]
        self.names = (*self.names, name)
        return await self.start(name)

    def member(self, name):
        return RaftMember(*self.addresses[name])

    async def start(self, *names, **settings):
        for name in names or self.names:
            self.machines[name] = self.make_machine(name)
            replica = Replica(
                self.config(name, **settings),
                self.machines[name],
                on_call=self.on_call,
                on_role=lambda change, name=name: self.roles.append((name, change)),
                halt=self.halted,
            )
            await replica.start()
            self.replicas[name] = replica
        return self

    def halted(self, reason):
        self.halts.append(reason)
        raise Halted(reason)

    async def on_call(self, node_id, payload):
        if payload == b"fail":
            raise RuntimeError("asked to fail")
        if payload == b"hang":
            await asyncio.Event().wait()
        return node_id.encode() + b":" + payload

    async def stop(self, *names):
        for name in names or list(self.replicas):
            await self.replicas.pop(name).stop()

    def leader_now(self, *, among=None):
        for name in among or self.replicas:
            status = self.replicas[name].status()
            if status.ready:
                return name
        return None

    async def leader(self, *, among=None):
        return await until(lambda: self.leader_now(among=among), what="a ready leader")

    async def by_role(self):
        """Names: the leader's first, once it is ready, then the others' in order."""
        leader = await self.leader()
        return (leader, *sorted(name for name in self.names if name != leader))

    def cut(self, name):
        """Drop everything that ``name`` hears and says; its sockets stay open."""
        replica = self.replicas[name]
        replica._transport.send = lambda peer, message: True
        replica._inbound.peer_said = lambda peer, epoch, messages: None
        for connection in replica._transport._peers.values():
            connection._owner = _Deaf(connection._owner)


class _Deaf:
    def __init__(self, owner):
        self.owner = owner

    def received(self, connection, messages):
        pass

    def __getattr__(self, name):
        return getattr(self.owner, name)


@contextlib.asynccontextmanager
async def running(directory, names=("n1", "n2", "n3"), **settings):
    cluster = Cluster(directory, names, **settings)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
    assert not cluster.halts
