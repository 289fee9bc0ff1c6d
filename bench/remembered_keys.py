"""Many remembered idempotency keys in one node: ``python -m bench.remembered_keys --keys 50000000 --cache-mib 256``.

Keys are added to a node's own table and saved as a node saves them; only their operations are left out, since fifty
million would take most of the time. A process of its own then opens the state, as a start does, and applies entries of
keyed puts to it and to one of 10,000 keys in turn. Printed: seconds to open, resident memory, bytes on disk for a key,
and the processor time of a keyed write at both sizes with the median of the ratios within a turn. Names are UUIDs: the
worst order for the store.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.state import MachineState
from oncegate.rifl.ids import CommitNumber, Fingerprint
from oncegate.rifl.key_table import NO_TIME

SMALL: Final = 10_000
LIFE_MS: Final = 86_400_000
SAVED_KEYS: Final = 200_000
ENTRIES: Final = 40
ENTRY_COMMANDS: Final = 64
ROUNDS: Final = 15
CACHE_MIB: Final = 96
WAIT_S: Final = 3_600.0


def names(seed: int) -> Iterator[str]:
    """Yield keys as they are stored."""
    bits = random.Random(seed).getrandbits
    while True:
        yield f"k{uuid.UUID(int=bits(128))}"


class Grown:
    """A state on its way to a number of keys, or there."""

    def __init__(self, path: Path, cache_mib: int = CACHE_MIB) -> None:
        self.state = MachineState(path, cache_bytes=cache_mib << 20)
        self.machine = self.state.machine
        self.index = 0 if self.state.saved is None else self.state.saved.index

    def apply(self, *commands: Any) -> None:
        """Apply an entry."""
        self.index += 1
        apply(self.machine, self.index, 1, c.encode_entry(self.machine.time_ms, [*commands]))

    def save(self) -> None:
        """Begin a save once the one before is durable."""
        if not self.state.wait_saved(WAIT_S):
            raise SystemExit("a save takes an hour")
        self.state.begin_save(SavedPoint(self.index, 1, b""))

    def grow(self, count: int, seed: int) -> None:
        """Add keys, spread over a day, and save them; returns once all are durable."""
        self.state._pacer.hurry = True  # noqa: SLF001 - nobody waits for the interpreter
        self.apply(c.DeclareTable("t", "resident", 1 << 40))
        machine, keys, made = self.machine, self.machine.keys, names(seed)
        for at in range(count):
            now = machine.time_ms = type(machine.time_ms)(at * LIFE_MS // count)
            commit = machine.commit = CommitNumber(machine.commit + 1)
            keys.slot("", next(made), now, LIFE_MS).record(keys.next, Fingerprint(at), commit)
            if at % SAVED_KEYS == SAVED_KEYS - 1:
                self.index += 1
                self.save()
                if at % (SAVED_KEYS * 5) == SAVED_KEYS * 5 - 1:
                    print(f"{at + 1:,} keys", file=sys.stderr, flush=True)
        self.index += 1
        self.save()
        self.save()  # no record of before is in memory
        if not self.state.wait_saved(WAIT_S):
            raise SystemExit("a save takes an hour")

    def written_us(self, made: Iterator[str]) -> float:
        """Return the processor time of a keyed put, this thread's."""
        op = c.Op(1, int(c.OpKind.PUT), "t", "row", 7, b"1")  # type: ignore[arg-type]
        entries = [
            [c.Keyed(LIFE_MS, [c.KeyedOp(next(made), NO_TIME, op)]) for _ in range(ENTRY_COMMANDS)]
            for _ in range(ENTRIES)
        ]
        began = time.thread_time()
        for commands in entries:
            self.apply(*commands)
        return 1e6 * (time.thread_time() - began) / ENTRIES / ENTRY_COMMANDS


def resident_mib() -> float:
    """Return the memory of this process that is its own."""
    told = Path("/proc/self/status").read_text()
    return int(told.partition("RssAnon:")[2].split()[0]) / 1024


def measure(large: Path, small: Path, cache_mib: int) -> dict[str, Any]:
    """Open both and compare them; ``large`` comes first, so that its memory is told alone."""
    empty_mib, began = resident_mib(), time.perf_counter()
    grown = Grown(large, cache_mib)
    opened_s, opened_mib = time.perf_counter() - began, resident_mib()
    made, count = names(time.time_ns()), len(grown.machine.keys)
    for _ in range(5):
        grown.written_us(made)  # what is looked for comes into the cache
    other, turns = Grown(small, cache_mib), list[tuple[float, float]]()
    other.written_us(made)
    for turn in range(ROUNDS):
        sides = [grown, other] if turn % 2 else [other, grown]
        spent = {id(side): side.written_us(made) for side in sides}
        turns.append((spent[id(grown)], spent[id(other)]))
        for side in sides:
            side.save()
            side.state.wait_saved(WAIT_S)
    disk_bytes = grown.state.disk_bytes
    for side in (grown, other):
        side.state.close()
    return {
        "keys": count,
        "opened_s": opened_s,
        "empty_mib": empty_mib,
        "opened_mib": opened_mib,
        "working_mib": resident_mib(),
        "disk_bytes_a_key": disk_bytes / count,
        "large_us": statistics.median(one for one, _ in turns),
        "small_us": statistics.median(one for _, one in turns),
        "ratio": statistics.median(one / another for one, another in turns),
    }


def main() -> None:
    """Grow both states, or take those in ``--directory``, and print what is measured as JSON."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--keys", type=int, default=5_000_000)
    parse.add_argument("--directory", type=Path, help="keeps the states here, for the next time")
    parse.add_argument("--cache-mib", type=int, default=CACHE_MIB, help="as state_cache_bytes")
    parse.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parse.parse_args()
    directory = given.directory or Path(tempfile.mkdtemp(prefix="oncegate-keys-"))
    large, small = directory / f"keys-{given.keys}", directory / f"keys-{SMALL}"
    if given.measure:
        print(json.dumps(measure(large, small, given.cache_mib), indent=1))
        return
    directory.mkdir(exist_ok=True)
    for path, count in ((large, given.keys), (small, SMALL)):
        if not path.is_dir():
            began, grown = time.perf_counter(), Grown(path)
            grown.grow(count, 1)
            grown.state.close()
            print(f"{count:,} keys in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    run = [
        sys.executable,
        "-m",
        "bench.remembered_keys",
        "--measure",
        "--keys",
        str(given.keys),
        "--cache-mib",
        str(given.cache_mib),
    ]
    subprocess.run([*run, "--directory", str(directory)], check=True)
    if given.directory is None:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
