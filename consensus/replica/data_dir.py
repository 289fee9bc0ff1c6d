"""Opening a data directory: lock, stamp, ballot, journal, incarnation, in that order.

Owns the order, and that a directory which was not opened whole is given back. Read next:
:mod:`oncegate.consensus.log.identity`, :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.errors import IdentityMismatch
from oncegate.consensus.log.identity import DirectoryIdentity, begin_incarnation, open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.storage import Storage
from oncegate.consensus.log.wal import Worker
from oncegate.consensus.net.known_peers import KnownPeers


def open_data_dir(
    config: ReplicaConfig, storage: Storage, worker: Worker
) -> tuple[DirectoryIdentity, LibraryLog, KnownPeers]:
    """Lock and open; blocks for as long as the journal takes to read.

    Raises:
        StorageError: the directory is locked, another node's, or corrupt (naming file and offset).
        OSError: the disk failed or is full.
    """
    try:
        storage.lock()
        first_members = sorted(config.initial_configuration.members)
        identity, ballot = open_identity(
            storage, cluster_id=config.cluster_id, node_id=config.node_id, first_members=first_members
        )
        log = LibraryLog(
            storage,
            worker,
            ballot,
            segment_bytes=config.journal_segment_bytes,
            memory_bytes_max=config.log_memory_bytes_max,
        )
        if log.membership.current_index == 0 and identity.first_members != first_members:
            # Nothing in the log says who votes, so another list would be another cluster with the same name.
            log.abandon()
            raise IdentityMismatch(
                f"{config.data_dir} was made with the members {identity.first_members}, the settings say "
                f"{first_members}: members are added and removed through the leader"
            )
        try:
            known_peers = KnownPeers(storage)
            # Last: a directory that is refused stays as it was found.
            identity = begin_incarnation(storage, identity)
        except BaseException:
            log.abandon()
            raise
    except BaseException:
        storage.close()
        raise
    return identity, log, known_peers
