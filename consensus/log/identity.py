"""Whose data directory this is.

Owns the file ``identity``: cluster id, node id, a random UUID made when the directory was, and the number of times it
was opened, with a random number for each of the last times. A directory opened under another name is refused, so that a
log never speaks for a node it does not belong to. From the rest the peers tell a wiped directory, a copy and a restored
one from the one they know: see :mod:`oncegate.consensus.net.known_peers`.
Read next: :mod:`oncegate.consensus.log.ballot`, :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection

import msgspec

from oncegate.consensus.errors import Corrupt, IdentityMismatch
from oncegate.consensus.log.ballot import BALLOT_FILE, Ballot
from oncegate.consensus.log.reserve import recover_reserve, write_small
from oncegate.consensus.log.sealed_file import TEMPORARY_SUFFIX, read_sealed_struct, write_sealed
from oncegate.consensus.log.segment import SEGMENT_SUFFIX
from oncegate.consensus.log.storage import Storage

IDENTITY_FILE = "identity"
_MAGIC = b"OGIDENT2"
BOOTS_KEPT = 16


class DirectoryIdentity(msgspec.Struct, array_like=True, frozen=True):
    """The stamp of a data directory."""

    cluster_id: str
    node_id: str
    node_uuid: str
    incarnation: int
    """Times the directory was opened; durable before anything is said."""
    boots: list[int]
    """A random number below 2^63 for each of the last ``BOOTS_KEPT`` incarnations, the present one last."""
    first_members: list[str]
    """Ids of the initial configuration, sorted; empty for a node that joined."""

    def opened_again(self) -> DirectoryIdentity:
        """Return the stamp of the next incarnation."""
        boots = [*self.boots[1 - BOOTS_KEPT :], secrets.randbits(63)]
        return msgspec.structs.replace(self, incarnation=self.incarnation + 1, boots=boots)


def read_identity(storage: Storage) -> DirectoryIdentity:
    """Read the stamp; raises :class:`Corrupt` when it is missing or changed."""
    if IDENTITY_FILE not in storage.names():
        raise Corrupt(storage.label(IDENTITY_FILE), 0, "the identity is missing")
    return read_sealed_struct(storage, IDENTITY_FILE, _MAGIC, DirectoryIdentity)


def open_identity(
    storage: Storage, *, cluster_id: str, node_id: str, first_members: Collection[str] = ()
) -> tuple[DirectoryIdentity, Ballot]:
    """Read the stamp and the ballot of a locked directory, or make both in an empty one.

    Raises:
        IdentityMismatch: the directory belongs to another cluster or node.
        Corrupt: a file is missing or changed. A directory with a journal and no stamp is never adopted.
    """
    # A process that was killed may have left names (a ballot, a segment) that only the page cache holds: what is
    # read from here on is acted upon, so it must not be forgotten by a power loss.
    storage.sync_directory()
    recover_reserve(storage)
    for name in storage.names():
        if name.endswith(TEMPORARY_SUFFIX):
            storage.remove(name)
    names = storage.names()
    if IDENTITY_FILE not in names:
        if any(name.endswith(SEGMENT_SUFFIX) for name in names):
            raise Corrupt(storage.label(IDENTITY_FILE), 0, "there is a journal but no identity")
        if BALLOT_FILE in names and Ballot.load(storage).term > 0:
            raise Corrupt(storage.label(IDENTITY_FILE), 0, "there is a used ballot but no identity")
        # The stamp is written last: a crash before it leaves an unused ballot, which is simply written again.
        ballot = Ballot.create(storage)
        identity = DirectoryIdentity(cluster_id, node_id, uuid.uuid4().hex, 0, [], sorted(first_members))
        write_sealed(storage, IDENTITY_FILE, _MAGIC, msgspec.msgpack.encode(identity))
        return identity, ballot
    identity = read_identity(storage)
    if (identity.cluster_id, identity.node_id) != (cluster_id, node_id):
        raise IdentityMismatch(
            f"{storage.label(IDENTITY_FILE)} belongs to node {identity.node_id} of cluster {identity.cluster_id}, "
            f"not to node {node_id} of cluster {cluster_id}"
        )
    ballot = Ballot.load(storage)
    if ballot.term > 0 and not any(name.endswith(SEGMENT_SUFFIX) for name in names):
        raise Corrupt(storage.label(IDENTITY_FILE), 0, "the node has taken part, but its journal is missing")
    return identity, ballot


def begin_incarnation(storage: Storage, identity: DirectoryIdentity) -> DirectoryIdentity:
    """Raise the incarnation durably: after everything else has been found whole, before anything is said.

    Raises:
        OSError: the disk failed, or is full and its reserve used up.
    """
    identity = identity.opened_again()
    write_small(storage, IDENTITY_FILE, _MAGIC, msgspec.msgpack.encode(identity))
    return identity
