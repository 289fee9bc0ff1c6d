"""Whose data directory this is.

Owns the file ``identity``: cluster id, node id and a random UUID made when the directory was. A directory
opened under another name is refused, so that a log never speaks for a node it does not belong to.
Read next: :mod:`consensus.ballot`, :mod:`consensus.wal`.
"""

from __future__ import annotations

import uuid

import msgspec

from consensus.ballot import BALLOT_FILE, Ballot
from consensus.errors import Corrupt, IdentityMismatch
from consensus.sealed_file import TEMPORARY_SUFFIX, read_sealed, write_sealed
from consensus.segment import SEGMENT_SUFFIX
from consensus.storage import Storage

IDENTITY_FILE = "identity"
_MAGIC = b"OGIDENT1"


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """The stamp of a data directory."""

    cluster_id: str
    node_id: str
    node_uuid: str


def open_identity(storage: Storage, *, cluster_id: str, node_id: str) -> tuple[Identity, Ballot]:
    """Read the stamp and the ballot of a locked directory, or make both in an empty one.

    Raises:
        IdentityMismatch: the directory belongs to another cluster or node.
        Corrupt: a file is missing or changed. A directory with a journal and no stamp is never adopted.
    """
    # A process that was killed may have left names (a ballot, a segment) that only the page cache holds: what is
    # read from here on is acted upon, so it must not be forgotten by a power loss.
    storage.sync_directory()
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
        identity = Identity(cluster_id, node_id, uuid.uuid4().hex)
        write_sealed(storage, IDENTITY_FILE, _MAGIC, msgspec.msgpack.encode(identity))
        return identity, ballot
    payload = read_sealed(storage, IDENTITY_FILE, _MAGIC)
    try:
        identity = msgspec.msgpack.decode(payload, type=Identity)
    except msgspec.DecodeError as error:
        raise Corrupt(storage.label(IDENTITY_FILE), 0, f"the payload does not decode: {error}") from error
    if (identity.cluster_id, identity.node_id) != (cluster_id, node_id):
        raise IdentityMismatch(
            f"{storage.label(IDENTITY_FILE)} belongs to node {identity.node_id} of cluster {identity.cluster_id}, "
            f"not to node {node_id} of cluster {cluster_id}"
        )
    ballot = Ballot.load(storage)
    if ballot.term > 0 and not any(name.endswith(SEGMENT_SUFFIX) for name in names):
        raise Corrupt(storage.label(IDENTITY_FILE), 0, "the node has taken part, but its journal is missing")
    return identity, ballot
