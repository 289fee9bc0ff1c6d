"""Who belongs to the cluster, and who of them votes: a value that travels in the log, in snapshots and on disk.

A log entry that begins with ``MAGIC`` carries one; ``propose`` refuses a command that begins so, so that no other entry
is mistaken for it. Knows nothing of when it takes effect. Read next: :mod:`oncegate.consensus.log.membership`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

MAGIC: Final = b"\x00OGCONF1"
"""First bytes of a configuration entry. A caller's command never begins with them."""


class RaftMember(msgspec.Struct, array_like=True, frozen=True):
    """Where a member listens for its peers, and whether it counts in majorities (a learner does not)."""

    host: str
    port: int
    voter: bool = True
    data: str = ""
    """Opaque to consensus; the owner's own address of the node, for instance."""
    since: int = 0
    """Index of the entry that added the member, set by the leader; 0 for the first members. An id that was removed and
    added again is thereby another member, whose data directory may be new."""


class Configuration(msgspec.Struct, array_like=True, frozen=True):
    """The members by node id."""

    members: dict[str, RaftMember]

    @property
    def voters(self) -> frozenset[str]:
        """Ids of those that count in elections and commits."""
        return frozenset(node_id for node_id, member in self.members.items() if member.voter)

    @property
    def learners(self) -> frozenset[str]:
        """Ids of those that only receive the log."""
        return frozenset(self.members) - self.voters

    def with_member(self, node_id: str, member: RaftMember) -> Configuration:
        """Return a configuration in which ``node_id`` is ``member``."""
        return Configuration({**self.members, node_id: member})

    def without(self, node_id: str) -> Configuration:
        """Return a configuration without ``node_id``."""
        return Configuration({known: member for known, member in self.members.items() if known != node_id})

    @classmethod
    def of_addresses(cls, addresses: Mapping[str, tuple[str, int]]) -> Configuration:
        """Return the configuration in which all of ``addresses`` vote."""
        return cls({node_id: RaftMember(*address) for node_id, address in sorted(addresses.items())})


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Configuration).decode


def encode(configuration: Configuration) -> bytes:
    """Return the bytes of a configuration entry, the same on every node."""
    return MAGIC + _encode(configuration)


def is_configuration(command: bytes) -> bool:
    """Tell a configuration entry from a caller's command."""
    return command.startswith(MAGIC)


def decode(command: bytes) -> Configuration:
    """Read what :func:`encode` wrote; raises ``msgspec.DecodeError``."""
    return _decode(command[len(MAGIC) :])
