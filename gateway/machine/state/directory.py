"""The directory of the saved state: which store in it counts.

Owns: the names below, the lock, and the one switch from one store to another.

| name | what |
|---|---|
| ``CURRENT`` | sealed file (:mod:`oncegate.consensus.log.sealed_file`): name of the store that counts, least index it
must hold |
| ``store-<n>`` | a store; any other than the one that counts is a leftover |
| ``copy-<n>`` | a snapshot that is being read |
| ``save-<n>`` | a file of cells in the making |
| ``reserve`` | room for opening the store on a full disk |
| ``DAMAGED`` | sealed file: the store that was found to be damaged, where and why; it must not be served again |

``CURRENT`` exists before the first store does, and it never names an older index than the node has reported as saved. A
store with an older index, or a directory with a store but without ``CURRENT``, is refused and not taken for an empty
state.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Final

import msgspec

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.reserve import give_up_reserve, renew_reserve
from oncegate.consensus.log.sealed_file import read_sealed, read_sealed_struct, write_sealed
from oncegate.consensus.log.storage import DirectoryStorage, Storage
from oncegate.gateway.machine.state.errors import StateCorrupt

CURRENT: Final = "CURRENT"
DAMAGED: Final = "DAMAGED"
_MAGIC: Final = b"OGSTATE1"
ROOM_TO_OPEN_BYTES: Final = 2**20
_DAMAGED_MAGIC: Final = b"OGDAMAG1"
_STORE: Final = "store-"
_COPY: Final = "copy-"
_SAVE: Final = "save-"


class Pointer(msgspec.Struct, array_like=True, frozen=True):
    """What ``CURRENT`` says; ``index`` is 0 before the first save."""

    store: str
    index: int


class _Damaged(msgspec.Struct, array_like=True, frozen=True):
    """What ``DAMAGED`` says; ``wanted``: the operator has asked for a fresh copy."""

    store: str
    path: str
    reason: str
    wanted: bool


def read_pointer(path: Path, storage: Storage) -> Pointer | None:
    """Read ``CURRENT`` of the directory at ``path``; None for one in which no store was begun. Raises StateCorrupt."""
    names = storage.names()
    if CURRENT not in names:
        if any(name.startswith(_STORE) for name in names):
            raise StateCorrupt(path / CURRENT, "it is missing")
        return None
    try:
        pointer = msgspec.msgpack.decode(read_sealed(storage, CURRENT, _MAGIC), type=Pointer)
    except (Corrupt, msgspec.DecodeError) as fault:
        raise StateCorrupt(path / CURRENT, str(fault)) from fault
    if pointer.index and pointer.store not in names:
        raise StateCorrupt(path / pointer.store, "it is missing")
    return pointer


class StateDirectory:
    """The directory, locked for this process until :meth:`close`.

    With ``keep_damaged``, a damaged directory is opened and left as it is; :attr:`damage` says what was found.

    Raises:
        DirectoryLocked: another process has it open.
        StateCorrupt: ``CURRENT`` is damaged or missing although there is a store, or the store is marked as damaged.
    """

    def __init__(self, path: Path, *, keep_damaged: bool = False) -> None:
        self.path = path
        self.damage: StateCorrupt | None = None
        """What is wrong with the store that counts, as far as it is marked."""
        self.wanted = False
        """A fresh copy was asked for."""
        self._storage = DirectoryStorage(path)
        try:
            self._storage.lock()
            # A killed process may have renamed CURRENT without flushing the directory. Flush it before the code below
            # removes the store that CURRENT named before.
            self._storage.sync_directory()
            self._clear_asides()
            self.pointer = Pointer("", 0)
            try:
                self.pointer = self._read()
                self._read_damage()
            except StateCorrupt as damage:
                if not keep_damaged:
                    raise
                # The store stays known if only DAMAGED is unreadable: a new mark must name it, or the next start would
                # take the mark for an earlier store's and serve this one.
                self.damage, self.wanted = damage, self._was_wanted()
            taken = max(map(_number, [self.pointer.store, *self._storage.names()]))
            self._numbers = itertools.count(taken + 1)
            for name in self._storage.names():
                if name.startswith(_STORE) and name != self.pointer.store and self.damage is None:
                    shutil.rmtree(path / name)
            if self.damage is not None and not keep_damaged:
                raise self.damage
        except BaseException:
            self._storage.close()
            raise

    def _read_damage(self) -> None:
        if DAMAGED not in self._storage.names():
            return
        try:
            found = read_sealed_struct(self._storage, DAMAGED, _DAMAGED_MAGIC, _Damaged)
        except Corrupt as fault:
            raise StateCorrupt(self.path / DAMAGED, str(fault)) from fault
        if found.store == self.pointer.store:
            self.damage, self.wanted = StateCorrupt(Path(found.path), found.reason), found.wanted
        else:
            self._storage.remove(DAMAGED)  # the store that it names was replaced

    def _was_wanted(self) -> bool:
        """Tell whether a fresh copy was asked for before this start, where ``CURRENT`` itself cannot be read."""
        try:
            return read_sealed_struct(self._storage, DAMAGED, _DAMAGED_MAGIC, _Damaged).wanted
        except (Corrupt, FileNotFoundError):
            return False

    def mark_damaged(self, damage: StateCorrupt, *, wanted: bool = False) -> None:
        """Have every later start know that the store that counts must not be served; durable on return.

        ``wanted``: a fresh copy is to replace it. Raises OSError; :attr:`damage` is set in any case.
        """
        self.damage, self.wanted = damage, wanted
        marked = _Damaged(self.pointer.store, str(damage.path), damage.reason, wanted)
        write_sealed(self._storage, DAMAGED, _DAMAGED_MAGIC, msgspec.msgpack.encode(marked))

    def _read(self) -> Pointer:
        pointer = read_pointer(self.path, self._storage)
        if pointer is None:
            pointer = Pointer(f"{_STORE}1", 0)
            write_sealed(self._storage, CURRENT, _MAGIC, msgspec.msgpack.encode(pointer))
        return pointer

    def _clear_asides(self) -> None:
        for name in self._storage.names():
            if name.startswith(_COPY):
                shutil.rmtree(self.path / name)
            elif name.startswith(_SAVE):
                (self.path / name).unlink()

    @property
    def store(self) -> Path:
        """The store that counts."""
        return self.path / self.pointer.store

    def advance(self, index: int) -> None:
        """Record that the current store holds ``index``; durable on return."""
        self._write(Pointer(self.pointer.store, index))

    def switch(self, store: Path, index: int) -> None:
        """Make ``store`` the current one; atomic and durable on return. It is sound."""
        self._write(Pointer(store.name, index))
        if self.damage is not None:
            self.damage, self.wanted = None, False
            (self.path / DAMAGED).unlink(missing_ok=True)

    def _write(self, pointer: Pointer) -> None:
        write_sealed(self._storage, CURRENT, _MAGIC, msgspec.msgpack.encode(pointer))
        self.pointer = pointer

    def new_store(self) -> Path:
        """Return a free name for a store."""
        return self._free(_STORE)

    def new_copy(self) -> Path:
        """Return a free name for a snapshot to be read."""
        return self._free(_COPY)

    def new_save(self) -> Path:
        """Return a free name for a file of cells."""
        return self._free(_SAVE)

    def _free(self, kind: str) -> Path:
        # From several threads: one step of a counter cannot be interrupted.
        return self.path / f"{kind}{next(self._numbers)}"

    def set_room_aside(self) -> None:
        """Keep the room that opening the store takes, for a start on a full disk; raises OSError if there is none."""
        renew_reserve(self._storage, ROOM_TO_OPEN_BYTES)

    def use_room(self) -> bool:
        """Give that room up; returns whether there was any."""
        return give_up_reserve(self._storage)

    def check_room(self, size_bytes: int) -> None:
        """Raise OSError if the disk has no room for ``size_bytes``."""
        probe = self._free(_SAVE)
        try:
            self._storage.create(probe.name, size_bytes).close()
        finally:
            probe.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock."""
        self._storage.close()


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0
