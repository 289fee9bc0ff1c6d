"""Batches of the journal as whole blocks in memory of their own, so that they go past the page cache.

Owns the memory from which blocks are written, and what the block that a batch begins in holds already. Through the page
cache a flush of 30 kB or more costs more processor time, takes memory from everything else, and dirties pieces that are
larger than itself (docs/decisions/0051-past-the-page-cache.md). Knows nothing of records.
Read next: :mod:`oncegate.consensus.log.storage`.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final

from oncegate.consensus.log.storage import BLOCK_BYTES, File

MEMORY_BYTES: Final = 1024 * 1024
"""Written in one call; a multiple of a block."""
_ZEROS: Final = bytes(BLOCK_BYTES)


class BlockWriter:
    """Writes batches one behind the other; one thread at a time."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, MEMORY_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._file: File | None = None
        self._end = 0
        self._tail = b""
        """What the block in which :attr:`_end` lies holds before it."""

    def write(self, file: File, batch: Sequence[bytes], offset: int, size_bytes: int, file_bytes: int) -> None:
        """Write a batch of ``size_bytes`` to a file of ``file_bytes`` that is zero from ``offset`` on; not flushed yet.

        The block before ``offset`` is written again as it is, and the last one filled with zeros: neither changes a
        byte, so a batch that power loss cuts looks as it would without them.
        """
        end = offset + size_bytes
        if end + -end % BLOCK_BYTES > file_bytes:
            self._file = None
            file.write(batch, offset)
            return
        if file is not self._file or offset != self._end:
            self._file, self._tail = file, file.read(offset % BLOCK_BYTES, offset - offset % BLOCK_BYTES)
        if offset % BLOCK_BYTES + size_bytes <= MEMORY_BYTES:
            self._write(file, batch, offset)
        else:
            rest = memoryview(b"".join(batch))
            while rest:
                # Each ends where a block does: between two of them the file looks as between two sectors.
                size = min(len(rest), MEMORY_BYTES - offset % BLOCK_BYTES)
                self._write(file, [rest[:size]], offset)
                rest, offset = rest[size:], offset + size
        self._end = end

    def _write(self, file: File, batch: Sequence[bytes | memoryview], offset: int) -> None:
        memory, at = self._memory, offset % BLOCK_BYTES
        start = offset - at
        memory[:at] = self._tail
        for part in batch:
            stop = at + len(part)
            memory[at:stop] = part
            at = stop
        used = at % BLOCK_BYTES
        self._tail = memory[at - used : at]
        if used:
            stop = at + BLOCK_BYTES - used
            memory[at:stop] = _ZEROS[: stop - at]
            at = stop
        file.write_blocks(self._view[:at], start)
