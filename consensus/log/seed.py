"""A log that begins behind a state that came from elsewhere: the first directory of a restored cluster.

Owns: which files such a directory needs before a node may open it. Must not know where the state came from.
Read next: :mod:`oncegate.consensus.log.log_base`, :func:`oncegate.consensus.core.applying.begin_at_saved`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from oncegate.consensus.config import MIB
from oncegate.consensus.configuration import decode
from oncegate.consensus.errors import StorageError
from oncegate.consensus.log.identity import IDENTITY_FILE, open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.storage import Storage
from oncegate.consensus.ports import SavedPoint

_SEGMENT_BYTES = 16 * MIB
"""Of the first segment; each segment says its own size."""


def begin_behind(storage: Storage, *, cluster_id: str, node_id: str, point: SavedPoint) -> None:
    """Make ``storage`` the log directory of ``node_id``, with no entry yet: the next one follows ``point``.

    Durable on return; a crash before leaves a directory that no node opens with the state of ``point``. The members are
    those of the point's configuration, and the node has voted for nobody.

    Raises:
        StorageError: the directory is not empty, or the configuration does not name the node as a voter.
        OSError: the disk failed or is full.
    """
    if node_id not in decode(point.configuration).voters:
        raise StorageError(f"node {node_id} is no voter of the configuration that the log is to begin with")
    storage.lock()
    try:
        if IDENTITY_FILE in storage.names():
            raise StorageError(f"{storage.label(IDENTITY_FILE)} is there: the directory is a node's already")
        _, ballot = open_identity(storage, cluster_id=cluster_id, node_id=node_id, first_members=[node_id])
        with ThreadPoolExecutor(1) as worker:
            log = LibraryLog(
                storage,
                worker,
                ballot,
                segment_bytes=_SEGMENT_BYTES,
                memory_bytes_max=MIB,
            )
            try:
                # After the first segment: a ballot that was used without a journal is refused as damage.
                ballot.save(point.term, None)
                log.reset_to(point)
            except BaseException:
                log.abandon()
                raise
            log.close()
    finally:
        storage.close()
