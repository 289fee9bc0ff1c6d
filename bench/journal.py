"""What a flush of the journal costs by the size of its batch: time, processor time, bytes charged by the file system.

``python -m bench.journal [--megabytes 24] [--directory .]``: two journals on one disk, one that writes its batches past
the page cache and one that writes the same blocks through it, flushed in turn. Medians; the directory has to be on a
disk.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bench.figures import Latency
from bench.harness import Bench, Run, option
from bench.usage import written_bytes
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


def _flushed(journal: Journal, command: bytes) -> tuple[float, float, int]:
    """Append a command and flush it; returns seconds, seconds of processor time, and bytes charged."""
    journal.append(command, journal.last_index + 1, 1)
    charged, busy, began = written_bytes(), time.process_time(), time.perf_counter()
    journal.flush()
    return time.perf_counter() - began, time.process_time() - busy, written_bytes() - charged


def measure(run: Run) -> Iterator[dict[str, Any]]:
    rng = random.Random(run.options.seed)
    with ThreadPoolExecutor(1) as worker:
        journals = {}
        for at, (name, form) in enumerate(FORMS.items()):
            where = DirectoryStorage(run.directory / str(at))
            journals[name] = Journal(where, worker, segment_bytes=64 << 20, memory_bytes_max=1 << 20)
            journals[name]._writer = form()  # noqa: SLF001 - its form is what is measured
        worker.submit(lambda: None).result()  # the spare segments are made: nothing else writes
        for size in SIZES:
            costs: dict[str, list[tuple[float, float, int]]] = {name: [] for name in journals}
            for _ in range(min(FLUSHES_MAX, run.options.megabytes * 2**20 // size)):
                command = rng.randbytes(size)
                for name, journal in journals.items():
                    costs[name].append(_flushed(journal, command))
            for name, of in costs.items():
                took, busy, charged = zip(*of, strict=True)
                row = {"what": f"{name}, {size:,} bytes", "cpu_us": 1e6 * statistics.median(busy)}
                yield {**row, "charged_bytes": statistics.median(charged), **Latency.of(list(took))._asdict()}
        for journal in journals.values():
            journal.close()


BENCH: Final = Bench(
    "journal", __doc__, measure, durability="each batch flushed with fdatasync",
    options=(option("--megabytes", 24, "at most, for each size", quick=2, type=int),),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
