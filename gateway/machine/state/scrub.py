"""Reading all that is saved from the disk, again and again: damage in blocks that nobody asks for is found early.

Owns: when, how fast, and the counts. Reads a copy made of hard links, so that no look-up waits, past the kernel's
cache where the file system allows it. What is found goes to :meth:`oncegate.gateway.machine.state.MachineState.found`,
as if a read had come upon it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from oncegate.consensus.errors import NotReady
from oncegate.gateway.machine.state.durable import MachineState
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.pacer import Pacer
from oncegate.gateway.machine.state.restore import all_cells
from oncegate.gateway.machine.state.store import RocksStore, new_cache, snapshot_files

FIRST_PAUSE_S: Final = 60.0
PAUSE_S: Final = 3600.0
"""Between two passes."""
_CACHE_BYTES: Final = 2**20
_CELLS_BETWEEN_RESTS: Final = 64
log = logging.getLogger(__name__)


class Scrubber:
    """Reads one state at no more than ``bytes_per_s``, in a thread of its own; 0: never."""

    def __init__(self, state: MachineState, bytes_per_s: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.bytes = 0
        """Keys and values read since the start."""
        self.passes = 0
        """How often everything was read."""
        self.last_s = 0.0
        """Unix time of the end of the last whole pass."""

    def start(self) -> None:
        """Begin with the first pass in a minute."""
        if self._bytes_per_s:
            self._thread = threading.Thread(target=self._run, name="state-scrub", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop within one block; idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.wait(pause_s):
            pause_s = PAUSE_S
            try:
                self.look()
            except OSError as fault:
                log.warning("the saved state could not be scrubbed: %s", fault)

    def look(self) -> None:
        """Read everything once, unless nothing is saved; raises OSError when the disk has no room for links."""
        state = self._state
        path = state.store_path
        try:
            snapshot = state.open_snapshot()
        except NotReady:
            return
        with closing(snapshot):
            copy = snapshot.directory
            try:
                direct = _reads_directly(copy)
                with closing(
                    RocksStore(copy, new_cache(_CACHE_BYTES), create=False, read_only=True, direct=direct)
                ) as store:
                    whole = self._read(store)
            except StateCorrupt as damage:
                state.found_in_copy(damage, copy, path)
                return
        if whole:
            self.passes += 1
            self.last_s = time.time()

    def _read(self, store: RocksStore) -> bool:
        began_s, taken, pacer = self._clock(), 0, Pacer()
        with closing(all_cells(store)) as cells:
            for number, (key, value) in enumerate(cells):
                size = len(key) + len(value)
                taken += size
                self.bytes += size
                if not number % _CELLS_BETWEEN_RESTS:
                    pacer.rest()
                    ahead_s = taken / self._bytes_per_s - (self._clock() - began_s)
                    if self._stop.wait(ahead_s) if ahead_s > 0 else self._stop.is_set():
                        return False
        return True


def _reads_directly(directory: Path) -> bool:
    """Tell whether files there may be read past the kernel's cache."""
    for file in snapshot_files(directory):
        try:
            os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
    return True
