"""Room for small files on a full disk: a file that is given up to write them.

A vote, or the log's base, must be written even when commands are refused for want of room. Owns the file ``reserve``.
Read next: :mod:`oncegate.consensus.log.sealed_file`, :mod:`oncegate.consensus.log.segment_file`.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from typing import Final

from oncegate.consensus.log.sealed_file import write_sealed
from oncegate.consensus.log.storage import Storage

logger = logging.getLogger(__name__)

NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""A disk, a quota or a limit on file sizes is exhausted; waiting may help, unlike for any other error."""

RESERVE_FILE: Final = "reserve"
RESERVE_BYTES: Final = 64 * 1024


def renew_reserve(storage: Storage) -> None:
    """Set the room aside, unless it is; raises ``OSError`` when the disk has not got it, and leaves nothing then."""
    if _is_there(storage):
        return
    try:
        file = storage.create(RESERVE_FILE, RESERVE_BYTES)
        try:
            file.sync()
        finally:
            file.close()
    except OSError:
        with suppress(OSError):
            storage.remove(RESERVE_FILE)
        raise
    storage.sync_directory()


def _is_there(storage: Storage) -> bool:
    if RESERVE_FILE not in storage.names():
        return False
    file = storage.open(RESERVE_FILE)
    try:
        # A crash may keep the name and forget the room.
        return file.size() >= RESERVE_BYTES
    finally:
        file.close()


def write_small(storage: Storage, name: str, magic: bytes, payload: bytes) -> None:
    """Do what :func:`oncegate.consensus.log.sealed_file.write_sealed` does, on a full disk by giving up the reserve.

    Raises:
        OSError: the disk failed, or is full and there was no reserve.
    """
    try:
        write_sealed(storage, name, magic, payload)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRNOS or RESERVE_FILE not in storage.names():
            raise
        logger.warning("the disk is full; the room set aside is used to write %s", storage.label(name))
        with suppress(FileNotFoundError):
            storage.remove(RESERVE_FILE)
        write_sealed(storage, name, magic, payload)
