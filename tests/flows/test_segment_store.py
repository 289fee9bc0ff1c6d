"""Segment files: whole or not there, and never served damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncegate.flows import segment, segment_store
from oncegate.flows.errors import BadRequestError, NotFoundError, SegmentConflict, SegmentCorrupt
from oncegate.flows.segment_store import HEADER_BYTES, Header, SegmentStore, encode_header

PAYLOAD = bytes(range(256)) * 2


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path / "segments")


def test_batch_comes_back_after_a_restart(store: SegmentStore) -> None:
    assert store.put("orders", 1, PAYLOAD) == segment.checksum(PAYLOAD)
    again = SegmentStore(store.directory)
    assert again.get("orders", 1) == PAYLOAD
    assert again.checksum("orders", 1) == segment.checksum(PAYLOAD)
    assert again.has("orders", 1)


def test_same_batch_again_is_a_no_op(store: SegmentStore) -> None:
    store.put("f", 1, PAYLOAD)
    inode = store.path("f", 1).stat().st_ino
    assert store.put("f", 1, PAYLOAD) == segment.checksum(PAYLOAD)
    assert store.path("f", 1).stat().st_ino == inode


@pytest.mark.parametrize("other", [PAYLOAD[:-1], PAYLOAD[:-1] + b"!"], ids=["shorter", "same-length"])
def test_other_bytes_under_a_number_are_refused_and_the_first_stay(store: SegmentStore, other: bytes) -> None:
    store.put("f", 1, PAYLOAD)
    with pytest.raises(SegmentConflict) as refusal:
        store.put("f", 1, other)
    assert refusal.value.stored == segment.checksum(PAYLOAD)
    assert refusal.value.offered == segment.checksum(other)
    assert store.get("f", 1) == PAYLOAD


def test_flip_of_any_byte_is_found_and_the_file_named(store: SegmentStore) -> None:
    store.put("f", 1, PAYLOAD)
    path = store.path("f", 1)
    good = path.read_bytes()
    for offset in range(len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[offset] ^= mask
            path.write_bytes(bad)
            with pytest.raises(SegmentCorrupt, match="segment") as corrupt:
                store.get("f", 1)
            assert corrupt.value.path == path
            with pytest.raises(SegmentCorrupt):
                store.put("f", 1, PAYLOAD)
            if offset < HEADER_BYTES:
                with pytest.raises(SegmentCorrupt):
                    store.checksum("f", 1)
    path.write_bytes(good)
    assert store.get("f", 1) == PAYLOAD


def test_truncation_anywhere_and_bytes_too_many_are_found(store: SegmentStore) -> None:
    store.put("f", 1, PAYLOAD)
    path = store.path("f", 1)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(SegmentCorrupt):
            store.get("f", 1)
    path.write_bytes(good + b"\0")
    with pytest.raises(SegmentCorrupt):
        store.get("f", 1)


def test_file_of_another_batch_or_version_is_found(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("f", 1, PAYLOAD)
    os.rename(store.path("f", 1), store.path("f", 2))
    with pytest.raises(SegmentCorrupt, match="holds batch 1 of f"):
        store.get("f", 2)
    store.put("g", 2, PAYLOAD)
    os.replace(store.path("g", 2), store.path("f", 2))
    for read in (store.get, store.checksum, lambda flow, number: store.piece(flow, number, 0, 10)):
        with pytest.raises(SegmentCorrupt, match="holds batch 2 of g"):
            read("f", 2)
    monkeypatch.setattr(segment_store, "VERSION", 2)
    newer = encode_header(Header("f", 3, 0, 0))
    monkeypatch.undo()
    store.path("f", 3).write_bytes(newer)
    with pytest.raises(SegmentCorrupt, match="version 1"):
        store.get("f", 3)


def test_dropped_corrupt_batch_can_be_written_again(store: SegmentStore) -> None:
    store.put("f", 1, PAYLOAD)
    store.path("f", 1).write_bytes(b"")
    store.drop("f", 1)
    store.put("f", 1, PAYLOAD)
    assert store.get("f", 1) == PAYLOAD


def test_numbers_are_listed_ascending_and_dropped_through(store: SegmentStore) -> None:
    for number in (10, 2, 1):
        store.put("f", number, PAYLOAD)
    store.put("f.g", 1, PAYLOAD)
    assert store.list("f") == [1, 2, 10]
    assert store.list("none") == []
    store.drop_through("f", 2)
    store.drop_through("f", 2)
    assert store.list("f") == [10]
    assert store.list("f.g") == [1]


def test_missing_batch_is_not_found(store: SegmentStore) -> None:
    with pytest.raises(NotFoundError):
        store.get("f", 1)
    with pytest.raises(NotFoundError):
        store.checksum("f", 1)
    store.drop("f", 1)


@pytest.mark.parametrize(("flow", "number"), [("../f", 1), ("", 1), ("a/b", 1), (".", 1), ("f", 0), ("f", 2**53)])
def test_names_and_numbers_that_are_no_batch_never_reach_the_disk(store: SegmentStore, flow: str, number: int) -> None:
    with pytest.raises(BadRequestError):
        store.put(flow, number, PAYLOAD)
    assert list(store.directory.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_failed_write_leaves_nothing_behind(store: SegmentStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store.put("f", 1, PAYLOAD)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        store.put("f", 2, PAYLOAD)
    monkeypatch.undo()
    assert [path.name for path in (store.directory / "f").iterdir()] == [store.path("f", 1).name]
    store.put("f", 2, PAYLOAD)


def test_file_aside_from_a_crash_is_removed_at_the_start(store: SegmentStore) -> None:
    store.put("f", 1, PAYLOAD)
    aside = store.path("f", 2).with_suffix(".aside")
    aside.write_bytes(PAYLOAD[:10])
    assert SegmentStore(store.directory).list("f") == [1]
    assert not aside.exists()


def test_a_batch_costs_two_flushes_and_its_flows_first_the_directorys_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    store = SegmentStore(tmp_path / "segments")
    monkeypatch.setattr(os, "fsync", noted)

    def flushes(number: int) -> list[str]:
        flushed.clear()
        store.put("f", number, b"payload")
        return list(flushed)

    first = [tmp_path.name, "segments", f"{1:016d}.aside", "f"]
    assert flushes(1) == first
    assert flushes(2) == [f"{2:016d}.aside", "f"]
    # A directory that was removed, by this store or by somebody else, is made again.
    store.drop_through("f", 2)
    assert flushes(1) == first
    store.drop("f", 1)
    (tmp_path / "segments" / "f").rmdir()
    with pytest.raises(OSError, match="No such file"):
        store.put("f", 1, b"payload")
    assert flushes(1) == first
