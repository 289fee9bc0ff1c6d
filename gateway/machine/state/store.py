"""RocksDB as this package uses it: it ingests whole files of sorted cells and reads single cells and ranges.

Owns: every call of rocksdict, its options, and what its errors mean. Must not know what a cell holds.

Nothing is ever written through the memtable or the log of RocksDB. :class:`CellWriter` makes a sorted file and
:meth:`RocksStore.ingest` adds it in one atomic, durable step: the file is flushed when it is finished, and
the ingest flushes the new link, the directory and the manifest before it returns (checked with strace).
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
)

from oncegate.gateway.machine.state.errors import StateCorrupt, StoreFailed

CACHE_BYTES_DEFAULT: Final = 96 * 2**20
BLOOM_BITS: Final = 10
BLOCK_BYTES: Final = 4096
OPEN_FILES_MAX: Final = 512
LEVEL0_FILES: Final = 4
"""Files that overlap each other before they are merged: each costs an absent key one look into a filter."""
COMPACTION_BYTES_PER_S: Final = 96 * 2**20
"""Merging writes no faster, so that it leaves the disk to the journal's flushes."""
FILE_BYTES: Final = 16 * 2**20
"""Size of merged files. Removing a file holds up the journal's flushes for as long as the disk takes to give its
blocks back: 15 ms for 64 MiB where it is told of them at once."""
REOPEN_WAIT_S: Final = 5.0
_WRITEBACK_BYTES: Final = 2**20
_LOG_FILE_BYTES_MAX: Final = 2**20
_LOG_FILES: Final = 2
_CONFIG_FILE: Final = "rocksdict-config.json"
"""Written by the binding at each open and not flushed; it holds nothing that :func:`options` does not say."""
_DAMAGE: Final = ("Corruption", "Not implemented", "Invalid argument")
"""How errors begin that say: what is on disk is not what was written."""
_UNREADABLE: Final = "Input/output error"
"""What the disk answers to a read of a block that it has lost: damage as well."""
_SIDE_FILES: Final = ("LOCK", "LOG", _CONFIG_FILE)


def options(cache: Cache, *, create: bool, direct: bool = False) -> Options:
    """Return the options of every store of this process; they share ``cache``. ``direct``: pass by the kernel's."""
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(BLOOM_BITS, False)
    # Filters and indexes count as cache, so that memory stays bounded whatever the number of rows.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    made = Options(raw_mode=True)
    made.set_block_based_table_factory(table)
    made.create_if_missing(create)
    made.set_use_direct_reads(direct)
    made.set_compression_type(DBCompressionType.none())
    made.set_paranoid_checks(True)
    made.set_max_background_jobs(2)
    made.set_max_open_files(OPEN_FILES_MAX)
    made.set_write_buffer_size(2**20)
    made.set_level_zero_file_num_compaction_trigger(LEVEL0_FILES)
    made.set_target_file_size_base(FILE_BYTES)
    made.set_bytes_per_sync(_WRITEBACK_BYTES)
    made.set_ratelimiter(COMPACTION_BYTES_PER_S, 100_000, 10)
    # A scan steps over every deletion, so a file with many deletions is merged early.
    made.add_compact_on_deletion_collector_factory(4096, 1024, 0.5)
    made.set_max_log_file_size(_LOG_FILE_BYTES_MAX)
    made.set_keep_log_file_num(_LOG_FILES)
    made.set_stats_dump_period_sec(0)
    return made


class RocksStore:
    """One RocksDB directory. Look-ups and scans from any thread, everything else from one worker.

    A look-up holds the handle for its own length, a scan until its last cell was taken or the scan was closed, and
    closing holds it too. The binding refuses to close a handle that another thread is using, and RocksDB refuses to
    open a directory on which a cursor is left; so closing and opening wait. One thread holds the handle at a time, and
    may hold it several times over: rows are looked up between the cells of a scan. Ingests, copies and properties do
    not take it, since the one worker that calls them is also the one that closes.
    """

    def __init__(
        self, path: Path, cache: Cache, *, create: bool, read_only: bool = False, direct: bool = False
    ) -> None:
        self.path = path
        self._options = options(cache, create=create, direct=direct)
        self._access = AccessType.read_only() if read_only else AccessType.read_write()
        self._handle = threading.RLock()
        self.damage: StateCorrupt | None = None
        """What a look-up or a scan found to be damaged."""
        self.on_damage: Callable[[StateCorrupt], None] = lambda damage: None
        """Called with it, in the thread that found it."""
        self._open()

    def _open(self) -> None:
        (self.path / _CONFIG_FILE).unlink(missing_ok=True)
        # The column family is named because the binding would otherwise take its options from the file of the last
        # open, with a cache of 8 MiB: too small for one index of a large file, which each look-up would read again.
        families = {"default": self._options}
        self._db = _called(self.path, Rdict, str(self.path), self._options, families, self._access)

    def _noted(self, fault: Exception) -> Exception:
        if isinstance(fault, StoreFailed) and _UNREADABLE in str(fault):
            fault = StateCorrupt(self.path, str(fault))
        if isinstance(fault, StateCorrupt):
            self.damage = fault
            self.on_damage(fault)
        return fault

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None; raises StateCorrupt, StoreFailed."""
        try:
            with self._handle:
                found: bytes | None = self._db.get(key)
        except Exception as fault:  # noqa: BLE001 - as in _called
            raise self._noted(_typed(self.path, fault)) from None
        return found

    def values(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys, None for each that is not there; raises StateCorrupt, StoreFailed."""
        try:
            with self._handle:
                found: list[bytes | None] = self._db.get(keys)
        except Exception:  # noqa: BLE001 - the binding raises Exception for all there is; one by one names the key
            return [self.value(key) for key in keys]
        return found

    def scan(self, prefix: bytes, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the cells from ``prefix + start`` on, below ``prefix + end`` or of all the prefix, in key order.

        The cells are those of the moment of the first step. Take them all, or close the scan, in the thread that began
        it and without waiting for another: nobody else reads meanwhile. Raises StateCorrupt, StoreFailed.
        """
        yield from self._scanned(prefix, start, end, reverse=False)

    def scan_back(self, prefix: bytes, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the cells of :meth:`scan` against key order."""
        yield from self._scanned(prefix, start, end, reverse=True)

    def _scanned(
        self, prefix: bytes, start: bytes, end: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        reading = ReadOptions()
        reading.set_iterate_upper_bound(_after(prefix) if end is None else prefix + end)
        with self._handle:
            cursor = _called(self.path, self._db.iter, reading)
            step = cursor.prev if reverse else cursor.next
            try:
                if reverse:
                    cursor.seek_to_last()
                else:
                    cursor.seek(prefix + start)
                # No lower bound: the binding does not keep to one.
                while cursor.valid() and (key := cursor.key()) >= prefix + start:
                    yield key, cursor.value()
                    step()
                # An unreadable block ends a scan as the last cell does: only the status tells them apart.
                cursor.status()
            except Exception as fault:  # noqa: BLE001 - as in _called
                raise self._noted(_typed(self.path, fault)) from None
            finally:
                # A cursor that lives on in a traceback would keep the store open, and locked, after close.
                del cursor, step

    def ingest(self, file: Path) -> None:
        """Add the cells of a finished file, replacing older ones; atomic, and durable on return. The file is moved."""
        how = IngestExternalFileOptions()
        how.set_move_files(True)
        _called(self.path, self._db.ingest_external_file, [str(file)], how)

    def copy_to(self, directory: Path) -> None:
        """Make ``directory`` a store with the cells of this moment, by hard links: milliseconds at any size."""
        _called(self.path, Checkpoint(self._db).create_checkpoint, str(directory))

    @property
    def refuses_writes(self) -> bool:
        """A write or a merge has failed, after which RocksDB takes no ingest until it is opened again.

        Also true once :meth:`reopen` has closed the store and could not open it.
        """
        try:
            return bool(self._db.property_int_value("rocksdb.background-errors"))
        except DbClosedError:
            return True
        except Exception as fault:
            raise _typed(self.path, fault) from fault

    def reopen(self, *, wait_s: float = REOPEN_WAIT_S) -> None:
        """Close and open again: the way out of the error state in which RocksDB refuses all writes.

        Waits for the reads under way; reads that begin meanwhile wait some ten milliseconds until the store is open.

        Raises:
            StoreFailed: a scan was left half-way for ``wait_s``, and the store is usable as before; or the disk
                fails, and it is closed until another call succeeds.
        """
        if not self._handle.acquire(timeout=wait_s):
            raise StoreFailed(f"{self.path}: a scan under way keeps it open")
        try:
            self.close()
            self._open()
        finally:
            self._handle.release()

    @property
    def size_bytes(self) -> int:
        """Bytes of its files of cells."""
        try:
            return self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        except DbClosedError:
            return 0

    def writer(self, file: Path) -> CellWriter:
        """Begin a file of cells for :meth:`ingest`."""
        return CellWriter(file, self._options)

    def close(self) -> None:
        """Close; idempotent. Waits for the reads under way; a look-up afterwards raises."""
        with self._handle, contextlib.suppress(DbClosedError):
            self._db.close()


class CellWriter:
    """A file of cells in the making; keys strictly ascend. Blocking."""

    def __init__(self, file: Path, made: Options) -> None:
        self.file = file
        self.cells = 0
        self._writer = SstFileWriter(made)
        self._set = self._writer.__setitem__
        _called(file, self._writer.open, str(file))

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a cell, or with None the deletion of one."""
        try:
            if value is None:
                del self._writer[key]
            else:
                self._writer[key] = value
        except Exception as fault:
            raise _typed(self.file, fault) from fault
        self.cells += 1

    def put_all(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Do what :meth:`put` does with each of these cells."""
        if None in values:
            for key, value in zip(keys, values, strict=True):
                self.put(key, value)
            return
        try:
            deque(map(self._set, keys, values), maxlen=0)  # a loop in C
        except Exception as fault:
            raise _typed(self.file, fault) from fault
        self.cells += len(keys)

    def finish(self) -> None:
        """Flush the file to the disk; at least one cell was put."""
        _called(self.file, self._writer.finish)


def new_cache(size_bytes: int) -> Cache:
    """Return the cache of blocks, filters and indexes that the stores of one node share."""
    return Cache(size_bytes)


def snapshot_files(directory: Path) -> list[Path]:
    """Return the files of a copy, in order of name."""
    return sorted(path for path in directory.iterdir() if path.is_file() and not path.name.startswith(_SIDE_FILES))


def _after(prefix: bytes) -> bytes:
    """Return the smallest key above all that begin with ``prefix``, whose last byte is below 255."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def _called(path: Path, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as fault:
        raise _typed(path, fault) from fault


def _typed(path: Path, fault: Exception) -> Exception:
    if isinstance(fault, (TypeError, StateCorrupt, StoreFailed)):
        return fault
    reason = str(fault)
    if reason.startswith(_DAMAGE) or "No such file" in reason:
        return StateCorrupt(path, reason)
    failed = StoreFailed(f"{path}: {reason}")
    if "No space left" in reason:
        failed.errno = errno.ENOSPC
    return failed
