"""The room for small files, on a disk that is full, through kills at any system call of one save after the other.

Payloads of several sizes, several files, and kills of the process or of the machine, between which the room is looked
for at the start as a node does. The file that counts is never the room for the next one, whatever was killed before:
each start finds of every file what was saved last, or what was being saved; and after one kill there is room for the
next saves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from errno import EIO
from itertools import count
from typing import Any

import pytest

from oncegate.consensus.log.reserve import RESERVE_FILE, recover_reserve, renew_reserve, write_small
from oncegate.consensus.log.sealed_file import TEMPORARY_SUFFIX, read_sealed
from oncegate.consensus.log.segment import SEGMENT_SUFFIX
from oncegate.proof.sim.engine.fake_disk import FakeDisk, Killed

MAGIC = b"TESTING1"
FILES = ("ballot", "base")
SEGMENT = f"journal-1{SEGMENT_SUFFIX}"


def lose_power_at(disk: FakeDisk, number: int) -> None:
    """Others take every byte that is freed, and the ``number``-th system call from now on is the last."""
    calls = count(1)

    def called(call: str, name: str) -> None:
        disk.fill()
        if next(calls) == number:
            raise Killed

    disk.on_call = called


def started(disk: FakeDisk) -> None:
    """Look for the room, and let the names of half-made files go, as a start does."""
    recover_reserve(disk)
    for name in disk.names():
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(name)


def content(disk: FakeDisk, name: str) -> bytes:
    return read_sealed(disk, name, MAGIC)


def prepared() -> FakeDisk:
    disk = FakeDisk()
    for name in FILES:
        write_small(disk, name, MAGIC, b"first")
    for name in (SEGMENT, SEGMENT + TEMPORARY_SUFFIX):
        disk.create(name, 4_096).sync()
    renew_reserve(disk)
    disk.sync_directory()
    return disk


@pytest.mark.parametrize("seed", range(8))
def test_each_start_finds_what_was_saved_or_being_saved_however_often_saves_on_a_full_disk_are_killed(
    seed: int,
) -> None:
    dice, killed = random.Random(seed), 0
    for _ in range(60):
        disk = prepared()
        may_be = {name: {b"first"} for name in FILES}
        for number in range(5):
            name = dice.choice((FILES[0], FILES[0], FILES[1]))
            payload = bytes([65 + number]) * dice.choice((1, 30, 900, 3_000))
            lose_power_at(disk, dice.randint(1, 14))
            try:
                write_small(disk, name, MAGIC, payload)
            except (Killed, OSError) as fault:  # two kills in a row may cost the room, and no file
                killed += isinstance(fault, Killed)
                may_be[name] = {*may_be[name], payload}
                disk.work_again()
                if dice.random() < 0.3:
                    disk.kill(dice.choice((None, dice)))
            else:
                may_be[name] = {payload}
                disk.work_again()
            for one, contents in may_be.items():
                assert content(disk, one) in contents
            if dice.random() < 0.7:
                lose_power_at(disk, dice.randint(1, 40))
                with suppress(Killed):
                    started(disk)
                disk.work_again()
                started(disk)
                if RESERVE_FILE in disk.names():
                    room = disk.bytes_of(RESERVE_FILE)
                    assert not any(disk.bytes_of(one) is room for one in FILES), "a file that counts is nobody's room"
                assert SEGMENT in disk.names()
            assert all(content(disk, one) in contents for one, contents in may_be.items())
    assert killed > 50


def test_room_is_found_again_after_a_kill_at_any_system_call_and_is_no_segment() -> None:
    for killed_at in range(1, 30):
        disk = prepared()
        lose_power_at(disk, killed_at)
        done = False
        with suppress(Killed):
            write_small(disk, "ballot", MAGIC, b"second")
            done = True
        disk.work_again()
        segment = disk.bytes_of(SEGMENT + TEMPORARY_SUFFIX)
        started(disk)
        found = content(disk, "ballot")
        if RESERVE_FILE in disk.names():
            assert disk.bytes_of(RESERVE_FILE) is not segment
        # And the next saves have what they need, although others take all that is free.
        disk.on_call = lambda call, name, disk=disk: disk.fill()  # type: ignore[misc]
        for payload in (b"third", b"fourth"):
            write_small(disk, "ballot", MAGIC, payload)
            assert content(disk, "ballot") == payload
        assert found in (b"first", b"second")
        if done:
            assert found == b"second"
            return
    raise AssertionError("a save takes more system calls than were tried")


def test_what_is_left_of_a_segment_is_no_room_for_small_files() -> None:
    disk = prepared()
    disk.remove(RESERVE_FILE)
    recover_reserve(disk)
    assert RESERVE_FILE not in disk.names()
    assert SEGMENT + TEMPORARY_SUFFIX in disk.names()


def test_first_file_of_its_name_leaves_the_room_to_the_next_vote() -> None:
    disk = prepared()
    disk.on_call = lambda call, name: disk.fill()
    with pytest.raises(OSError, match="full"):
        write_small(disk, "known-peers", MAGIC, b"first")
    assert RESERVE_FILE in disk.names()
    write_small(disk, "ballot", MAGIC, b"second")
    assert content(disk, "ballot") == b"second"


class CountedDisk(FakeDisk):
    """Knows which of the files that were opened are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[Any, list[None]]] = []

    def _counted(self, file: Any) -> Any:
        closed, close = list[None](), file.close

        def closing() -> None:
            closed.append(None)
            close()

        file.close = closing
        self.files.append((file, closed))
        return file

    def open(self, name: str) -> Any:
        return self._counted(super().open(name))

    def create(self, name: str, size: int = 0) -> Any:
        return self._counted(super().create(name, size))


def test_each_file_that_is_opened_is_closed_whatever_fails() -> None:
    """The room is asked for again and again for as long as a disk is full: descriptors would run out."""
    seen = set[str]()
    for failing in range(1, 40):
        disk = CountedDisk()
        for name in FILES:
            write_small(disk, name, MAGIC, b"first")
        renew_reserve(disk, 4_096)
        calls = count(1)

        def called(call: str, name: str, disk: FakeDisk = disk, calls: Iterator[int] = calls, n: int = failing) -> None:
            disk.fill()
            if next(calls) == n:
                seen.add(call)
                raise OSError(EIO, "failed")

        disk.on_call = called
        with suppress(OSError):
            write_small(disk, "ballot", MAGIC, b"second")
        with suppress(OSError):
            recover_reserve(disk)
        with suppress(OSError):
            renew_reserve(disk, 4_097)
        assert [len(closed) for _, closed in disk.files] == [1] * len(disk.files)
    assert seen >= {"create", "write", "sync", "rename"}
