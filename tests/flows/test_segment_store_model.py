"""Segment files against a dictionary: put, put again, dropped and begun anew, on a disk that refuses at times."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from oncegate.flows.errors import NotFoundError, SegmentConflict, SegmentCorrupt
from oncegate.flows.segment import checksum
from oncegate.flows.segment_store import HEADER_BYTES, SegmentStore

FLOWS = ("f", "g")
NUMBERS = range(1, 6)


class Walk:
    def __init__(self, seed: int, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.dice, self.directory = random.Random(seed), directory
        self.store = SegmentStore(directory)
        self.batches: dict[tuple[str, int], bytes] = {}
        self.fails = False
        self.flushed: list[str] = []
        flush = os.fsync

        def fsync(descriptor: int) -> None:
            if self.fails:
                raise OSError(errno.EIO, "the disk refused")
            self.flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            flush(descriptor)

        patch.setattr(os, "fsync", fsync)

    def put(self) -> None:
        flow, number = self.dice.choice(FLOWS), self.dice.choice(NUMBERS)
        payload, place = self.dice.choice((b"one", b"two", b"", b"longer")), (flow, number)
        there, was_there = self.batches.get(place), (self.directory / flow).is_dir()
        self.fails, self.flushed = self.dice.random() < 0.15, []
        try:
            told = self.store.put(flow, number, payload)
        except SegmentConflict:
            assert there not in (None, payload), "other bytes, of whatever length"
            return
        except OSError:
            assert self.fails
            assert place in self.batches or not self.store.has(flow, number), "no batch is visible"
            return
        finally:
            self.fails = False
        assert there in (None, payload)
        assert told == checksum(payload)
        # Its name is durable, also where a crash may have come before the flush; and that of a new directory.
        assert str(self.directory / flow) in self.flushed
        assert was_there or str(self.directory) in self.flushed
        self.batches[place] = payload

    def drop(self) -> None:
        flow, number = self.dice.choice(FLOWS), self.dice.choice(NUMBERS)
        if self.dice.random() < 0.3:
            self.store.drop(flow, number)
            self.batches.pop((flow, number), None)
            return
        self.store.drop_through(flow, number)
        self.batches = {at: one for at, one in self.batches.items() if at[0] != flow or at[1] > number}
        left = [at for at in self.batches if at[0] == flow]
        assert (self.directory / flow).exists() <= bool(left), "an empty directory goes"

    def swap(self) -> None:
        """A file that lies under another one's name is none of it."""
        if len(self.batches) < 2:
            return
        one, other = self.dice.sample(sorted(self.batches), 2)
        path, kept = self.store.path(*other), self.store.path(*other).read_bytes()
        path.write_bytes(self.store.path(*one).read_bytes())
        for read in (self.store.get, self.store.checksum):
            with pytest.raises(SegmentCorrupt, match=f"holds batch {one[1]} of {one[0]}"):
                read(*other)
        path.write_bytes(kept + b"x" if self.dice.random() < 0.5 else kept[: HEADER_BYTES - 1])
        with pytest.raises(SegmentCorrupt):
            self.store.get(*other)
        with pytest.raises(SegmentCorrupt):
            self.store.put(*other, self.batches[other])
        path.write_bytes(kept)

    def restart(self) -> None:
        for flow in FLOWS:
            if (self.directory / flow).is_dir():
                (self.directory / flow / "0000000000000009.aside").write_bytes(b"left by a crash")
        self.store = SegmentStore(self.directory)
        assert not list(self.directory.glob("*/*.aside"))

    def check(self) -> None:
        for flow in FLOWS:
            assert self.store.list(flow) == sorted(number for name, number in self.batches if name == flow)
            for number in NUMBERS:
                payload = self.batches.get((flow, number))
                assert self.store.has(flow, number) == (payload is not None)
                if payload is None:
                    with pytest.raises(NotFoundError):
                        self.store.get(flow, number)
                else:
                    assert self.store.get(flow, number) == payload
                    assert self.store.checksum(flow, number) == checksum(payload)
                    assert self.store.piece(flow, number, 1, 3) == (len(payload), checksum(payload), payload[1:4])
        assert set(self.store.flows()) >= {name for name, _ in self.batches}


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_those_that_were_put_and_not_dropped_whatever_the_disk_refused(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(seed, tmp_path / "segments", monkeypatch)
    for _ in range(60):
        walk.dice.choice((walk.put, walk.put, walk.put, walk.drop, walk.swap, walk.restart))()
        walk.check()
