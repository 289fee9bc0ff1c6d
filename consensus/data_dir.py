"""Opening a data directory: lock, stamp, ballot, journal, in that order.

Owns the order, and that a directory which was not opened whole is given back. Read next: :mod:`consensus.identity`,
:mod:`consensus.wal`.
"""

from __future__ import annotations

from consensus.config import ReplicaConfig
from consensus.identity import Identity, open_identity
from consensus.library import LibraryLog
from consensus.storage import Storage
from consensus.wal import Worker


def open_data_dir(config: ReplicaConfig, storage: Storage, worker: Worker) -> tuple[Identity, LibraryLog]:
    """Lock and open; blocks for as long as the journal takes to read.

    Raises:
        StorageError: the directory is locked, another node's, or corrupt (naming file and offset).
        OSError: the disk failed or is full.
    """
    try:
        storage.lock()
        identity, ballot = open_identity(storage, cluster_id=config.cluster_id, node_id=config.node_id)
        log = LibraryLog(
            storage,
            worker,
            ballot,
            segment_bytes=config.journal_segment_bytes,
            memory_bytes_max=config.log_memory_bytes_max,
        )
    except BaseException:
        storage.close()
        raise
    return identity, log
