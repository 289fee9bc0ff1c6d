"""What a flush of the journal costs by the size of its batch: time, processor time, bytes charged by the file system.

``python -m bench.journal [--megabytes 24] [--directory .]``: two journals on one disk, one that writes its batches past
the page cache and one that writes the same blocks through it, flushed in turn. Medians; the directory has to be on a
disk.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench.figures import header
from oncegate.consensus.log.storage import BLOCK_BYTES, BlockWriter, DirectoryStorage, File
from oncegate.consensus.log.wal import Journal

SIZES: Final = (350, 4_000, 15_000, 30_000, 64_000, 240_000, 1_000_000)
FLUSHES_MAX: Final = 1_000


class Cached(BlockWriter):
    """Writes through the page cache, up to the end of the last block: what is written whole is not read first."""

    def write(self, file: File, batch: Sequence[bytes], offset: int, size_bytes: int, file_bytes: int) -> None:
        """Write a batch."""
        file.write([*batch, bytes(min(-(offset + size_bytes) % BLOCK_BYTES, file_bytes - offset - size_bytes))], offset)


FORMS: Final = {"through the page cache": Cached, "past it": BlockWriter}


def bytes_charged() -> int:
    """Return the bytes that this process has made the file system write."""
    line = next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("write_bytes"))
    return int(line.split()[1])


class Flushes:
    """One journal, and what its flushes cost."""

    def __init__(self, name: str, directory: Path, worker: ThreadPoolExecutor) -> None:
        self.name = name
        self.journal = Journal(DirectoryStorage(directory), worker, segment_bytes=64 << 20, memory_bytes_max=1 << 20)
        self.journal._writer = FORMS[name]()  # noqa: SLF001 - its form is what is measured
        self.costs: list[tuple[float, float, int]] = []

    def flush(self, command: bytes) -> None:
        """Append a command and flush it."""
        self.journal.append(command, self.journal.last_index + 1, 1)
        charged, busy, began = bytes_charged(), time.process_time(), time.perf_counter()
        self.journal.flush()
        took = time.perf_counter() - began
        self.costs.append((took, time.process_time() - busy, bytes_charged() - charged))


def main() -> None:
    """Print a line for each size and form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=24, help="at most, for each size")
    parser.add_argument("--directory", type=Path, default=Path())
    options = parser.parse_args()
    header("journal", seed=1, durability="each batch flushed with fdatasync", calibrations={})
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(dir=options.directory) as where, ThreadPoolExecutor(1) as worker:
        both = [Flushes(name, Path(where, str(at)), worker) for at, name in enumerate(FORMS)]
        worker.submit(lambda: None).result()  # the spare segments are made: nothing else writes
        print(f"{'batch':>9}  {'form':<24}{'flush us':>10}{'of it CPU us':>14}{'bytes charged':>15}{'flushes':>9}")
        for size in SIZES:
            for _ in range(min(FLUSHES_MAX, options.megabytes * 2**20 // size)):
                command = rng.randbytes(size)
                for one in both:
                    one.flush(command)
            for one in both:
                took, busy, charged = (statistics.median(column) for column in zip(*one.costs, strict=True))
                count = len(one.costs)
                print(f"{size:>9}  {one.name:<24}{took * 1e6:>10.1f}{busy * 1e6:>14.1f}{charged:>15,.0f}{count:>9}")
                one.costs.clear()
        for one in both:
            one.journal.close()


if __name__ == "__main__":
    main()
