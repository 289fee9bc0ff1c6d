"""Where the log begins: the file ``base``, and the removal of the segments before it.

The base is the last entry that is no longer needed (Raft §7, last included index and term), with the configuration in
force there. The file also says which segment comes first and how the log stood at that segment's start, so that
recovery is as exact behind a removed segment as behind one that is there. The base is published before anything is
removed, so a crash in between leaves segments that nobody needs; the next start removes them.
Read next: :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncegate.consensus.log.reserve import write_small
from oncegate.consensus.log.sealed_file import read_sealed_struct
from oncegate.consensus.log.segment import segment_name
from oncegate.consensus.log.segment_file import Segment
from oncegate.consensus.log.storage import Storage
from oncegate.consensus.ports import SavedPoint

BASE_FILE = "base"
_MAGIC = b"OGLBASE1"

NO_BASE: Final = SavedPoint(0, 0, b"")
"""The log begins with its first entry."""


class LogStart(msgspec.Struct, array_like=True, frozen=True):
    """Payload of the file."""

    base: SavedPoint
    sequence: int
    """Of the first segment."""
    prior_end: int | None
    """What its first record says: the end of the segment before it. None for the first of all."""
    last_index: int
    """Of the log when the segment was begun; entries behind it may have been replaced since."""
    last_term: int


FIRST_START: Final = LogStart(NO_BASE, 1, None, 0, 0)


def load_start(storage: Storage) -> LogStart:
    """Read the file, or say that the log begins at its beginning.

    Raises:
        oncegate.consensus.errors.Corrupt: the file is damaged.
    """
    if BASE_FILE not in storage.names():
        return FIRST_START
    return read_sealed_struct(storage, BASE_FILE, _MAGIC, LogStart)


def publish_and_remove(storage: Storage, start: LogStart, segments: list[Segment]) -> None:
    """Make ``start`` durable, then unlink ``segments``, oldest first; takes each out of the list when it is gone.

    Raises:
        OSError: the base may or may not be durable; what is left in ``segments`` was not removed. May be repeated.
    """
    write_small(storage, BASE_FILE, _MAGIC, msgspec.msgpack.encode(start))
    while segments:
        storage.remove(segment_name(segments[0].header.sequence))
        segments.pop(0).file.close()
    storage.sync_directory()
