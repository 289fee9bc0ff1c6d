"""Room for small files on a full disk: a file that becomes the one to be written.

A vote, or the log's base, must be written even when commands are refused for want of room, and again at the next
election. Room that is given back to a full disk goes to whoever asks first, the node's own next segment among them. So
it never is: the reserve is written in place and takes the small file's name, and what had that name is the next reserve
(:func:`write_small`). On a file system that never overwrites in place the reserve may serve once only.
Owns the file ``reserve``.
Read next: :mod:`oncegate.consensus.log.sealed_file`, :mod:`oncegate.consensus.log.segment_file`.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from typing import Final

from oncegate.consensus.log.sealed_file import TEMPORARY_SUFFIX, encode_sealed, write_sealed
from oncegate.consensus.log.segment import SEGMENT_SUFFIX
from oncegate.consensus.log.storage import Storage

logger = logging.getLogger(__name__)

NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""A disk, a quota or a limit on file sizes is exhausted; waiting may help, unlike for any other error."""

RESERVE_FILE: Final = "reserve"
RESERVE_BYTES: Final = 64 * 1024
_FORMER: Final = ".former" + TEMPORARY_SUFFIX


def renew_reserve(storage: Storage, size_bytes: int = RESERVE_BYTES) -> None:
    """Set the room aside, unless it is; raises ``OSError`` when the disk has not got it, and keeps what there is then.

    Made aside: a smaller one, which :func:`write_small` leaves, may be all that the next vote has.
    """
    if _is_there(storage, size_bytes):
        return
    aside = RESERVE_FILE + TEMPORARY_SUFFIX
    try:
        file = storage.create(aside, size_bytes)
        try:
            file.sync()
        finally:
            file.close()
    except OSError:
        with suppress(OSError):
            storage.remove(aside)
        raise
    storage.rename(aside, RESERVE_FILE)
    storage.sync_directory()


def give_up_reserve(storage: Storage) -> bool:
    """Make the room free; returns whether there was any."""
    if RESERVE_FILE not in storage.names():
        return False
    with suppress(FileNotFoundError):
        storage.remove(RESERVE_FILE)
    return True


def _is_there(storage: Storage, size_bytes: int) -> bool:
    try:
        file = storage.open(RESERVE_FILE)
    except FileNotFoundError:
        return False
    try:
        # A crash may keep the name and forget the room.
        return file.size() >= size_bytes
    finally:
        file.close()


def write_small(storage: Storage, name: str, magic: bytes, payload: bytes) -> None:
    """Do what :func:`oncegate.consensus.log.sealed_file.write_sealed` does, on a full disk with the reserve.

    Any number of times in a row, as long as the payloads fit into a block of the file system. The first file of its
    name gets none of it: it would leave no room for the next vote.

    Raises:
        OSError: the disk failed, or is full and there was no reserve.
    """
    try:
        write_sealed(storage, name, magic, payload)
    except OSError as error:
        full = error.errno in NO_SPACE_ERRNOS and name in storage.names()
        if not full or not _claim(storage, name + TEMPORARY_SUFFIX):
            raise
        logger.warning("the disk is full; the room set aside is used to write %s", storage.label(name))
        _exchange(storage, name, encode_sealed(magic, payload))


def recover_reserve(storage: Storage) -> None:
    """Take as the reserve, if it is missing, what a kill has left of an exchange; at the start, before names go.

    A file that was replaced may still be the one that counts, under both names. Then they read the same, and it is
    left alone.
    """
    names = storage.names()
    if RESERVE_FILE in names:
        return
    for former in (name for name in names if name.endswith(_FORMER)):
        name = former.removesuffix(_FORMER)
        if name in names and _content(storage, name) != _content(storage, former):
            # For good first: a power loss that forgets the rename would find what is written over it.
            storage.sync_directory()
            storage.rename(former, RESERVE_FILE)
            return
    for name in names:
        if name + TEMPORARY_SUFFIX in names and not name.endswith(SEGMENT_SUFFIX):
            storage.rename(name + TEMPORARY_SUFFIX, RESERVE_FILE)
            return


def _content(storage: Storage, name: str) -> bytes:
    file = storage.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def _claim(storage: Storage, temporary: str) -> bool:
    # By its name, in one step: two threads write small files, and a third renews the reserve.
    try:
        storage.rename(RESERVE_FILE, temporary)
    except FileNotFoundError:
        return False
    return True


def _exchange(storage: Storage, name: str, sealed: bytes) -> None:
    """Write into the claimed reserve, give it the name, and keep the file that had the name as the reserve.

    That file is nobody's room before the new one has its name for good: written over, it would be a lost vote after
    a power loss that forgets the rename. Until then it has a name that the next start removes.
    """
    temporary, former = name + TEMPORARY_SUFFIX, name + _FORMER
    file = storage.open(temporary)
    try:
        file.write([sealed], 0)
        file.truncate(len(sealed))
        file.sync()
    finally:
        file.close()
    with suppress(FileNotFoundError):
        storage.remove(former)
    # Without links this one is written, and the next has no reserve.
    with suppress(OSError):
        storage.link(name, former)
    storage.rename(temporary, name)
    storage.sync_directory()
    with suppress(FileNotFoundError):
        storage.rename(former, RESERVE_FILE)
        storage.sync_directory()
