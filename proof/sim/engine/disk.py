"""The fake disk of one machine, with the ways in which disks fail.

Adds to :class:`oncegate.proof.sim.engine.fake_disk.FakeDisk`, which drops or tears by sector what was not flushed:
failing flushes, and bits that flip while the node is down. Read next: :mod:`oncegate.proof.sim.engine.node`.
"""

from __future__ import annotations

import errno
import random
import struct

from oncegate.consensus.log.segment import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, scan
from oncegate.proof.sim.engine.fake_disk import FakeDisk


class SimDisk(FakeDisk):
    """One directory; survives its process."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_syncs = 0
        """How many of the next flushes fail; what they should have made durable is then unknown."""

    def called(self, call: str, name: str) -> None:
        self.on_call(call, name)
        if call == "sync" and self.fail_syncs:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, "flush failed", name)

    def release(self) -> None:
        """The process died, the machine did not: the page cache stays, also what a failed flush did not write."""
        self._locked = False

    def kill(self, rng: random.Random | None = None) -> None:
        super().kill(rng)
        self.fail_syncs = 0

    def flip(self, name: str, offset: int, bit: int) -> None:
        """Change one bit of what is on the platter."""
        inode = self._inodes[name]
        inode.data[offset] ^= 1 << bit
        if offset < len(inode.durable):
            inode.durable[offset] ^= 1 << bit

    def last_batch(self) -> tuple[str, int, int] | None:
        """File and bounds of the batch that was flushed last: no later record proves that it was."""
        for name in reversed(self.names()):
            if not name.endswith(SEGMENT_SUFFIX):
                continue
            data = bytes(self.bytes_of(name))
            _, _, base, _, seed = struct.unpack_from("<8sQQQI", data)
            records = list(scan(data, SEGMENT_HEADER_BYTES, seed))
            if records:
                last = records[-1]
                start = max(last.prior_end - base, SEGMENT_HEADER_BYTES)
                return name, start, last.offset + RECORD_HEADER_BYTES + len(last.payload)
        return None
