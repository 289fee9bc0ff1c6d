"""Opening a state: the store that counts, or an empty one that stands in for a damaged one.

Owns: what makes a saved state damaged at a start. A damaged store stays as it is found, for whoever wants to look at
it, until a fresh state replaces it. Read next: :mod:`oncegate.gateway.machine.state.durable`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rocksdict import Cache

from oncegate.consensus.log.reserve import NO_SPACE_ERRNOS
from oncegate.gateway.machine.state.directory import StateDirectory
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.restore import Restored, restore
from oncegate.gateway.machine.state.store import RocksStore

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A locked directory and the store to work with, which is not the saved one while ``directory.damage`` is set."""

    directory: StateDirectory
    store: RocksStore
    restored: Restored


def open_state(path: Path, cache: Cache, *, stand_in: bool) -> Opened:
    """Open the directory at ``path``; with ``stand_in`` a damaged state is no error, and an empty one takes its place.

    Raises:
        DirectoryLocked, StateCorrupt, StateVersionUnknown, StoreFailed, OSError: nothing is left open.
    """
    directory = StateDirectory(path, keep_damaged=stand_in)
    try:
        if directory.damage is None:
            try:
                return Opened(directory, *_saved(directory, cache))
            except StateCorrupt as damage:
                if not stand_in:
                    raise
                with suppress(OSError):  # the next start finds it again
                    directory.mark_damaged(damage)
        store = RocksStore(directory.new_store(), cache, create=True)
        return Opened(directory, store, restore(store))
    except BaseException:
        directory.close()
        raise


def _saved(directory: StateDirectory, cache: Cache) -> tuple[RocksStore, Restored]:
    pointer = directory.pointer
    try:
        store = RocksStore(directory.store, cache, create=not pointer.index)
    except OSError as full:
        if full.errno not in NO_SPACE_ERRNOS or not directory.use_room():
            raise
        log.warning("the disk is full; the room set aside is used to open the state")
        store = RocksStore(directory.store, cache, create=not pointer.index)
    try:
        with suppress(OSError):  # the disk is full: a start before this one may have used it
            directory.set_room_aside()
        restored = restore(store)
        index = 0 if restored.point is None else restored.point.index
        if index < pointer.index:
            raise StateCorrupt(store.path, f"it has fallen back from index {pointer.index} to {index}")
    except BaseException:
        store.close()
        raise
    return store, restored
