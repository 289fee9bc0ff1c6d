"""Control of flushes: how long one takes, and what a power loss takes back.

Two sides. A library preloaded into the node's process (``flush_shim.c``, compiled here) stands before every file call
of libc: those of Python, RocksDB and SQLite. It notes what a write replaces, which names are made, replaced or
removed, and strikes out what a flush has made safe. Outside, :class:`FlushControl` sets the delay of flushes and, after
a kill -9, leaves of what was not flushed what a disk without power leaves:

| noted | after the loss |
|---|---|
| a write | each 512-byte sector of it is there or is what it was, as chance will |
| a file's size | as it was, or as far as the sectors that are there reach |
| a name | of each directory the first few changes since its flush are there, the later ones never happened |

A file's flush saves what is in the file and not its name, as POSIX has it; real file systems are kinder. The notes stay
when the process dies: what a killed process left in the page cache can still be lost in the life of the next one. Not
undone: what is written through a memory map (SQLite's shared-memory index, no durable data; RocksDB maps nothing for
writing here) or through stdio (RocksDB's own log), and the renaming of a directory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from oncegate.consensus.log.segment import SECTOR_BYTES
from oncegate.proof.check.errors import Unavailable

_DELAY: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<IIQQQ")
_NAMES: Final = "names"
_DIRECTORY: Final = -1
"""Stands for the inode of any directory."""
DELAY_S_MAX: Final = 60.0


class _Change(NamedTuple):
    """One write, or one change of a file's size, and what stood there."""

    grows: bool
    cuts: bool
    offset: int
    length: int
    size: int
    old: bytes


class _Name(NamedTuple):
    """From ``noted`` on, ``path`` leads to the inode ``new`` instead of ``old``; 0 is no file."""

    noted: int
    path: Path
    new: int
    old: int


def shim_library(directory: Path) -> Path:
    """Return the preloaded library, compiled into ``directory`` unless it is there.

    Raises Unavailable if there is no C compiler, or it fails.
    """
    library = directory / "flush_shim.so"
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("no C compiler (cc, gcc or clang) is installed")
    directory.mkdir(parents=True, exist_ok=True)
    source, made = Path(__file__).with_name("flush_shim.c"), directory / f"flush_shim.{os.getpid()}"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl", "-lpthread"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise Unavailable(f"{compiler} does not compile {source.name}: {said.stderr.strip()[-300:]}")
    made.replace(library)
    return library


class FlushControl:
    """Controls one process's flushes.

    Args:
        control: a file to be made; notes are kept beside it, the compiled library in its directory.
        root: what can be lost: this directory and all below, absolute and without symbolic links.
        seen_as: ``root`` as this process sees it, if not under the same path. Its parent exists.

    Raises Unavailable if the library cannot be compiled here.
    """

    def __init__(self, control: Path, root: Path, *, seen_as: Path | None = None) -> None:
        self.control = control
        self._library = shim_library(control.parent)
        self._root, self._data = root, root if seen_as is None else seen_as
        self._notes = control.with_name(control.name + ".unflushed")
        self._graves = self._data.with_name(self._data.name + ".unlinked")
        self.forget()
        control.write_bytes(bytes(_DELAY.size))
        with control.open("r+b") as file:
            self._delay = mmap.mmap(file.fileno(), _DELAY.size)

    def prefix(self, *preloaded: str) -> Sequence[str]:
        """Return the words before a command whose flushes are to be controlled; ``preloaded`` are other libraries."""
        return (
            "env",
            f"LD_PRELOAD={':'.join([str(self._library), *preloaded])}",
            f"ONCEGATE_FLUSHES={self.control}",
            f"ONCEGATE_FLUSHES_ROOT={self._root}",
        )

    @property
    def delay_s(self) -> float:
        """How long a flush takes longer than the disk itself."""
        return float(_DELAY.unpack_from(self._delay)[0]) / 1_000_000

    def slow(self, delay_s: float) -> None:
        """Let each flush take so much longer, at most a minute; from the next one on."""
        _DELAY.pack_into(self._delay, 0, int(1_000_000 * min(max(0.0, delay_s), DELAY_S_MAX)))

    def unflushed_bytes(self, pattern: str = "*") -> int:
        """How many bytes a power loss now would endanger in the files whose names match."""
        found = 0
        for path in self._data.rglob(pattern):
            with contextlib.suppress(FileNotFoundError):
                found += sum(change.length for change in self._changes(path.stat().st_ino))
        return found

    def forget(self) -> None:
        """Take everything for flushed: the files were replaced from outside, or have lost what they could lose."""
        for directory in (self._notes, self._graves):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)

    def lose(self, rng: random.Random, *, kept: float = 0.5) -> int:
        """Let the power go; only while the process is down. Returns the bytes of files that are not there any more.

        Args:
            rng: decides what is lost.
            kept: share of the sectors that survive; 0: nothing does that was not flushed, names included.
        """
        places = self._places()
        lost = sum(
            self._lose_writes(places[inode], inode, rng, kept) for inode in sorted(places, key=places.__getitem__)
        )
        self._lose_names(places, rng, kept)
        self.forget()
        return lost

    def close(self) -> None:
        """Unmap."""
        self._delay.close()

    # -- what is in the files ----------------------------------------------------------------------------

    def _places(self) -> dict[int, Path]:
        """Where each inode can be reached; those without a name in the directory of the unlinked."""
        found: dict[int, Path] = {}
        for top in (self._graves, self._data):
            for directory, _, names in os.walk(top):
                for name in names:
                    path = Path(directory, name)
                    found[path.lstat().st_ino] = path
        return found

    def _changes(self, inode: int) -> list[_Change]:
        """The changes of a file since its last flush, oldest first; no write followed a record that is cut short."""
        data = b""
        # What a flush that did not end was about to save comes first.
        for notes in sorted(self._notes.glob(f"{inode}.*"), key=lambda path: path.stat().st_mtime_ns):
            data += notes.read_bytes()
        with contextlib.suppress(FileNotFoundError):
            data += (self._notes / str(inode)).read_bytes()
        changes: list[_Change] = []
        at = 0
        while at + _RECORD.size <= len(data):
            kind, _, offset, length, size = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            grows, cuts = kind == ord("G"), kind == ord("T")
            old = b"" if grows else bytes(length)
            if kind in b"WT":
                old = data[at : at + length]
                at += length
                if len(old) < length:
                    break
            changes.append(_Change(grows, cuts, offset, length, size, old))
        return changes

    def _lose_writes(self, path: Path, inode: int, rng: random.Random, kept: float) -> int:
        changes = self._changes(inode)
        if not changes:
            return 0
        data = bytearray(path.read_bytes())
        written: list[bytes] = []
        for change in reversed(changes):
            end = change.offset + change.length
            written.append(bytes(data[change.offset : end]))
            if not change.grows:
                data.extend(bytes(max(0, end - len(data))))
                data[change.offset : end] = change.old
            data.extend(bytes(max(0, change.size - len(data))))
            del data[change.size :]
        # What the last flush left is there now; on top of it comes what chance keeps.
        lost = 0
        for change, new in zip(changes, reversed(written), strict=True):
            if change.grows or change.cuts:
                if rng.random() < kept:
                    size = change.offset if change.cuts else change.offset + change.length
                    data.extend(bytes(max(0, size - len(data))))
                    del data[size:]
                continue
            for start, stop in _sectors(change.offset, change.offset + len(new)):
                if rng.random() >= kept:
                    lost += stop - start
                    continue
                data.extend(bytes(max(0, stop - len(data))))
                data[start:stop] = new[start - change.offset : stop - change.offset]
        path.write_bytes(data)
        return lost

    # -- names -------------------------------------------------------------------------------------------

    def _ours(self, path: str) -> Path:
        return self._data / Path(path).relative_to(self._root) if path != str(self._root.parent) else self._data.parent

    def _unflushed_names(self) -> list[_Name]:
        """The changes of names since their directories' flushes, oldest first."""
        try:
            data = (self._notes / _NAMES).read_bytes()
        except FileNotFoundError:
            return []
        found: list[_Name] = []
        at = 0
        while (middle := data.find(b"\0", at)) >= 0 and (end := data.find(b"\0", middle + 1)) >= 0:
            kind, first, second, name = os.fsdecode(data[at:middle]).split(" ", 3)
            inode, other = int(first), int(second)
            path = self._ours(name)
            match kind:
                case "C" | "L":
                    found.append(_Name(at, path, inode, 0))
                case "U":
                    found.append(_Name(at, path, 0, inode))
                case "M":
                    found.append(_Name(at, path, _DIRECTORY, 0))
                case "D":
                    found.append(_Name(at, path, 0, _DIRECTORY))
                case "R":
                    target = self._ours(os.fsdecode(data[middle + 1 : end]))
                    found += [_Name(at, path, 0, inode), _Name(at, target, inode, other)]
                case "r":
                    target = self._ours(os.fsdecode(data[middle + 1 : end]))
                    found = [one._replace(path=_moved(one.path, path, target)) for one in found]
                case "S":
                    found = [one for one in found if one.path.parent != path or one.noted >= inode]
            at = end + 1
        return found

    def _lose_names(self, places: dict[int, Path], rng: random.Random, kept: float) -> None:
        wanted: dict[Path, int] = {}
        unflushed = self._unflushed_names()
        for directory in sorted({one.path.parent for one in unflushed}):
            names = [one for one in unflushed if one.path.parent == directory]
            first = rng.randrange(len(names) + 1) if kept else 0
            while 0 < first < len(names) and names[first - 1].noted == names[first].noted:
                first -= 1  # a rename happens as a whole
            wanted.update({one.path: one.old for one in reversed(names[first:])})
        for inode in set(wanted.values()) & set(places):
            with contextlib.suppress(FileExistsError):
                os.link(places[inode], self._graves / str(inode))
        for path, inode in sorted(wanted.items()):
            if inode != _DIRECTORY or not path.is_dir():
                _remove(path)
            if not path.parent.is_dir():
                continue
            if inode == _DIRECTORY:
                path.mkdir(exist_ok=True)
            elif inode:
                with contextlib.suppress(FileNotFoundError):
                    os.link(self._graves / str(inode), path)


def _sectors(start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        end = min(stop, start - start % SECTOR_BYTES + SECTOR_BYTES)
        yield start, end
        start = end


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path.is_relative_to(source) else path


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
