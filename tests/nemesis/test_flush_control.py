"""What was not flushed can be taken back, sector by sector, and nothing else."""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.proof.check.flush_control import FlushControl, Recorder

SECTOR = 512


class Node:
    """The node's side of one file."""

    def __init__(self, directory: Path, control: FlushControl, name: str = "journal-1.segment") -> None:
        self.path = directory / name
        self.path.write_bytes(b"0" * 4 * SECTOR)
        self.fd = os.open(self.path, os.O_RDWR)
        record = os.open(control.control.with_suffix(".unflushed"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with control.control.open("r+b") as file:
            self.recorder = Recorder(mmap.mmap(file.fileno(), 4), record)
        self.flush = self.recorder.flush(os.fdatasync)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[FlushControl]:
    control = FlushControl(tmp_path / "n1.flushes")
    yield control
    control.close()


@pytest.fixture
def node(tmp_path: Path, control: FlushControl) -> Node:
    return Node(tmp_path, control)


def lose(control: FlushControl, kept: float, seed: int = 1) -> int:
    return control.lose(random.Random(seed), Path, kept=kept)


def test_what_was_flushed_stays(control: FlushControl, node: Node) -> None:
    node.recorder.pwrite(node.fd, b"1" * SECTOR, 0)
    node.flush(node.fd)
    assert control.unflushed_bytes() == 0
    assert lose(control, 0.0) == 0
    assert node.path.read_bytes() == b"1" * SECTOR + b"0" * 3 * SECTOR


def test_what_was_not_flushed_goes_back_to_what_stood_there(control: FlushControl, node: Node) -> None:
    node.recorder.pwrite(node.fd, b"1" * 100, 0)
    node.flush(node.fd)
    node.recorder.pwritev(node.fd, [b"2" * SECTOR, b"2" * 50], 100)
    node.recorder.pwrite(node.fd, b"3" * 60, 90)
    assert control.unflushed_bytes() == SECTOR + 110
    assert lose(control, 0.0) == SECTOR + 110
    assert node.path.read_bytes() == b"1" * 100 + b"0" * (4 * SECTOR - 100)


def test_sectors_are_kept_or_lost_whole(control: FlushControl, node: Node) -> None:
    node.recorder.pwrite(node.fd, b"1" * 4 * SECTOR, 0)
    seen = set()
    lost = lose(control, 0.5, seed=3)
    data = node.path.read_bytes()
    for at in range(0, 4 * SECTOR, SECTOR):
        sector = set(data[at : at + SECTOR])
        assert len(sector) == 1, "half a sector was lost"
        seen |= sector
    assert seen == set(b"01")
    assert lost == data.count(b"0")


def test_flush_of_one_file_does_not_save_another(tmp_path: Path, control: FlushControl, node: Node) -> None:
    other = tmp_path / "ballot"
    other.write_bytes(b"0" * 8)
    fd = os.open(other, os.O_RDWR)
    node.recorder.pwrite(node.fd, b"1" * 8, 0)
    node.recorder.pwrite(fd, b"1" * 8, 0)
    node.flush(node.fd)
    assert lose(control, 0.0) == 8
    assert (other.read_bytes(), node.path.read_bytes()[:8]) == (b"0" * 8, b"1" * 8)


def test_file_that_has_no_name_yet_is_not_missed(tmp_path: Path, control: FlushControl) -> None:
    node = Node(tmp_path, control, "journal-2.segment.tmp")
    node.recorder.pwrite(node.fd, b"1" * 8, 0)
    assert control.unflushed_bytes() == 0


def test_flush_takes_as_long_as_it_was_told(control: FlushControl, node: Node) -> None:
    control.slow(0.05)
    began = time.monotonic()
    node.flush(node.fd)
    assert time.monotonic() - began >= 0.05
    assert control.delay_s == 0.05
