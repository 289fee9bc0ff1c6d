"""A state that was shipped equals its source, and a damaged one is refused by name, never taken for an empty one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from oncegate.consensus.errors import DirectoryLocked, NotReady, SafetyViolation, StorageError
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.ports import SnapshotFile, SnapshotManifest
from oncegate.flows.retired import RetiredState
from oncegate.gateway.machine.state import MachineState, layout, state_digest
from oncegate.gateway.machine.state.directory import StateDirectory
from oncegate.gateway.machine.state.errors import StateCorrupt, StateVersionUnknown
from oncegate.gateway.machine.state.layout import (
    FLOWS,
    KEYS,
    KEYS_HEAD,
    META,
    SESSIONS,
    FlowIndex,
    KeysHead,
    Meta,
    TableMeta,
)
from oncegate.gateway.machine.state.restore import restore, verify
from oncegate.gateway.machine.state.store import RocksStore
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import ClusterTimeMs, SequenceNumber
from oncegate.rifl.key_buckets import Bucket, Held
from oncegate.rifl.key_records import KeyRecord
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SessionRecord
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import Member, copy_files, digest_at, held, point, received, ship, wrong_after_crash


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Member]:
    member = Member(tmp_path / "leader", RandomLog(11))
    member.apply(60)
    member.save()
    member.apply(60)
    member.save()
    yield member
    member.close()


def follower_of(leader: Member, tmp_path: Path, *, applied: int, save: bool = False) -> Member:
    follower = Member(tmp_path / "follower", leader.log)
    follower.apply(applied)
    if save:
        follower.save()
    return follower


def test_installed_snapshot_equals_its_source_and_goes_on(leader: Member, tmp_path: Path) -> None:
    follower = follower_of(leader, tmp_path, applied=30, save=True)
    follower.apply(10)
    machine = follower.machine
    leader.apply(20)
    ship(leader.state, follower.state).install()
    follower.at = 120
    assert follower.machine is machine
    assert follower.state.saved == point(120)
    assert follower.wrong() is None
    follower.apply(40)
    follower.save()
    follower.apply(10)
    assert follower.wrong() is None
    follower.close()
    assert wrong_after_crash(tmp_path / "follower", leader.log, 170) is None
    assert sorted(path.name for path in (tmp_path / "follower").iterdir())[0] == "CURRENT"
    assert len([path for path in (tmp_path / "follower").iterdir() if path.is_dir()]) == 1


def test_snapshot_is_of_its_moment_whatever_is_saved_later(leader: Member, tmp_path: Path) -> None:
    source = leader.state.open_snapshot()
    for _ in range(6):
        leader.apply(10)
        leader.save()
    follower = MachineState(tmp_path / "follower")
    received(source, follower).install()
    assert state_digest(follower.machine) == digest_at(leader.log, 120)
    source.close()
    source.close()
    assert not list((tmp_path / "leader").glob("copy-*"))
    follower.close()


def test_install_while_a_save_is_written_abandons_it(
    leader: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(monkeypatch) as gate:
        follower = follower_of(leader, tmp_path, applied=30)
        sink = ship(leader.state, follower.state)
        follower.begin_save()
        sink.install()
        assert not follower.state.saving
        follower.at = 120
        follower.apply(10)
        follower.begin_save()
        gate.set()
        follower.wait_saved()
    assert follower.state.saved == point(130)
    follower.close()
    assert wrong_after_crash(tmp_path / "follower", leader.log, 140) is None


def test_install_behind_the_last_byte_of_a_save_keeps_it_out_of_the_new_state(
    leader: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, installed, write = threading.Event(), threading.Event(), MachineState._write

    def held_back(state: MachineState, save: Any) -> Path:
        file = write(state, save)
        written.set()
        assert installed.wait(20)
        return file

    monkeypatch.setattr(MachineState, "_write", held_back)
    follower = follower_of(leader, tmp_path, applied=30)
    sink = ship(leader.state, follower.state)
    follower.begin_save()
    assert written.wait(20)
    sink.install()
    installed.set()
    follower.at = 120
    follower.apply(10)
    follower.save()
    assert follower.state.saved == point(130)
    follower.close()
    assert wrong_after_crash(tmp_path / "follower", leader.log, 140) is None


def test_crash_between_finish_and_install_keeps_the_old_state(leader: Member, tmp_path: Path) -> None:
    follower = follower_of(leader, tmp_path, applied=30, save=True)
    sink = ship(leader.state, follower.state)
    copy_files(tmp_path / "follower", tmp_path / "before")
    sink.install()
    copy_files(tmp_path / "follower", tmp_path / "after")
    follower.close()
    for image, index in (("before", 30), ("after", 120)):
        crashed = MachineState(tmp_path / image)
        assert crashed.saved == point(index)
        crashed.close()
        assert len(list((tmp_path / image).glob("store-*"))) == 1
        assert wrong_after_crash(tmp_path / image, leader.log, 130) is None


def test_older_snapshot_never_replaces_a_newer_state(leader: Member, tmp_path: Path) -> None:
    follower = follower_of(leader, tmp_path, applied=30)
    sink = ship(leader.state, follower.state)
    follower.apply(100)
    follower.save()
    with pytest.raises(SafetyViolation):
        sink.install()
    assert follower.wrong() is None
    follower.close()
    assert wrong_after_crash(tmp_path / "follower", leader.log, 140) is None


def test_nothing_saved_means_no_snapshot(tmp_path: Path) -> None:
    state = MachineState(tmp_path / "s")
    with pytest.raises(NotReady):
        state.open_snapshot()
    state.close()


@pytest.mark.parametrize("what", ["flip", "short", "other point", "order", "twice", "path"])
def test_snapshot_that_is_not_whole_is_refused_and_leaves_nothing(leader: Member, tmp_path: Path, what: str) -> None:
    source = leader.state.open_snapshot()
    follower = follower_of(leader, tmp_path, applied=20)
    files = source.manifest.files
    largest = max(range(len(files)), key=lambda number: files[number].size)
    manifest = source.manifest
    if what == "other point":
        manifest = SnapshotManifest(point(121), files)
    elif what == "twice":
        manifest = SnapshotManifest(point(120), [*files, files[0]])
    elif what == "path":
        manifest = SnapshotManifest(point(120), [*files, SnapshotFile("../x", 1)])

    def receive() -> None:
        sink = follower.state.open_sink(manifest)
        for number, file in enumerate(manifest.files):
            data = source.read(number, 0, file.size)
            if what == "flip" and number == largest:
                data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
            if what == "short" and number == len(files) - 1:
                data = data[:-1]
            if what == "order" and number == 1:
                sink.write(number, 1, data[1:])
            if data:
                sink.write(number, 0, data)
        sink.finish()

    with pytest.raises(StorageError):
        receive()
    source.close()
    assert follower.wrong() is None
    follower.state.open_sink(leader.state.open_snapshot().manifest).abort()
    assert len(list((tmp_path / "follower").glob("store-*"))) == 1
    follower.close()


# --- what is on disk ---------------------------------------------------------------------------------------------


def opened_or_refused(path: Path) -> str:
    """Open, read every cell and the digest; return the digest, or why the state was refused or found damaged."""
    try:
        state = MachineState(path)
    except StorageError as refusal:
        return str(refusal)
    try:
        verify(state._store)
        return state_digest(state.machine)
    except StorageError as damage:
        return str(damage if state.broken is None else state.broken)
    finally:
        state.close()


def refused(image: Path, expected: str) -> bool:
    """Open ``image``; it is either equal to ``expected`` or refused with a reason that names the place."""
    found = opened_or_refused(image)
    shutil.rmtree(image)
    assert found == expected or str(image) in found, found
    return found != expected


def kinds_refused(leader: Member, original: Path, damages: Callable[[bytes], Iterable[bytes | None]]) -> set[str]:
    """Damage each file in each way (None: it is gone); return the kinds of files for which that was refused."""
    expected, image, kinds = digest_at(leader.log, leader.at), original.with_name("image"), set()
    leader.close()
    shutil.copytree(leader.path, original)
    for file in sorted(file for file in original.rglob("*") if file.is_file() and file.stat().st_size):
        for data in damages(file.read_bytes()):
            shutil.copytree(original, image)
            damaged = image / file.relative_to(original)
            if data is None:
                damaged.unlink()
            else:
                damaged.write_bytes(data)
            if refused(image, expected):
                kinds.add(file.suffix or file.name.split("-")[0])
    return kinds


def flipped(data: bytes) -> Iterator[bytes]:
    size = len(data)
    for at in sorted({0, 3, size // 3, size // 2, size - 5, size - 1} & set(range(size))):
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_flipped_byte_in_any_file_is_refused_or_changes_nothing(leader: Member, tmp_path: Path) -> None:
    assert kinds_refused(leader, tmp_path / "original", flipped) >= {"CURRENT", "MANIFEST", ".sst"}


def test_missing_or_truncated_file_is_refused_or_changes_nothing(leader: Member, tmp_path: Path) -> None:
    kinds = kinds_refused(leader, tmp_path / "original", lambda data: (None, b"", data[: len(data) // 2], data[:-1]))
    assert kinds >= {"CURRENT", "MANIFEST", ".sst"}


def test_lost_store_is_refused_not_taken_for_an_empty_state(leader: Member, tmp_path: Path) -> None:
    leader.close()
    (store,) = (tmp_path / "leader").glob("store-*")
    shutil.rmtree(store)
    with pytest.raises(StateCorrupt, match="missing"):
        MachineState(tmp_path / "leader")


def test_damaged_current_is_refused_by_name_never_taken_for_a_new_directory(leader: Member, tmp_path: Path) -> None:
    leader.close()
    current = tmp_path / "leader" / "CURRENT"
    written = current.read_bytes()
    damaged = [written[:length] for length in range(len(written))]
    damaged += [written[:at] + bytes([written[at] ^ 0x40]) + written[at + 1 :] for at in range(len(written))]
    for content in damaged:
        current.write_bytes(content)
        with pytest.raises(StateCorrupt, match="CURRENT"):
            StateDirectory(tmp_path / "leader")
        assert current.read_bytes() == content, "what is there is evidence"
    current.unlink()
    with pytest.raises(StateCorrupt, match="CURRENT"):
        StateDirectory(tmp_path / "leader")


def test_switch_that_a_killed_process_left_unflushed_is_flushed_before_the_old_store_goes(
    leader: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.close()
    (tmp_path / "leader" / "store-77").mkdir()
    done: list[str] = []
    flush, remove = DirectoryStorage.sync_directory, shutil.rmtree
    monkeypatch.setattr(DirectoryStorage, "sync_directory", lambda storage: (done.append("flush"), flush(storage)))
    monkeypatch.setattr(shutil, "rmtree", lambda path: (done.append(path.name), remove(path)))
    StateDirectory(tmp_path / "leader").close()
    assert done == ["flush", "store-77"]


def test_state_of_another_format_is_refused_by_name(
    leader: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", 77)
        leader.save()
    leader.close()
    with pytest.raises(StateVersionUnknown, match=str(tmp_path / "leader")):
        MachineState(tmp_path / "leader")


def test_directory_is_opened_once(leader: Member, tmp_path: Path) -> None:
    with pytest.raises(DirectoryLocked, match="open in another process"):
        MachineState(tmp_path / "leader")
    assert leader.wrong() is None


def test_leftovers_of_a_crash_are_removed_at_the_start(leader: Member, tmp_path: Path) -> None:
    leader.state.open_snapshot()
    leader.close()
    (tmp_path / "leader" / "save-77").write_bytes(b"half a file")
    (tmp_path / "leader" / "store-78").mkdir()
    state = MachineState(tmp_path / "leader")
    assert sorted(path.name for path in (tmp_path / "leader").iterdir()) == ["CURRENT", "reserve", "store-1"]
    state.close()


class Cells(NamedTuple):
    """What :func:`restore` reads of a store."""

    path: Path
    of: dict[bytes, bytes]

    def value(self, key: bytes) -> bytes | None:
        return self.of.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in sorted(self.of.items()) if key.startswith(prefix))


_SESSIONS = [SessionRecord(1, 1, "n", 1_000, 8, 9), SessionRecord(2, 1, "m", 1_000, 8, 9)]


@pytest.mark.parametrize(
    ("sessions", "next_client_id", "table_bytes", "next_key", "reason"),
    [
        ([_SESSIONS[0], SessionRecord(2, 1, "n", 1_000, 8, 9)], 3, 0, 1, "nonce"),
        ([_SESSIONS[0], SessionRecord(2, 0, "m", 1_000, 8, 9)], 3, 0, 1, "epoch"),
        (_SESSIONS, 2, 0, 1, "given out again"),
        (_SESSIONS, 3, -1, 1, "-1 bytes"),
        (_SESSIONS, 3, 0, 0, "idempotency key 1 "),
        (_SESSIONS, 3, 0, 1, "above 0"),
    ],
)
def test_saved_state_that_contradicts_itself_is_corrupt_and_names_its_place(
    sessions: list[SessionRecord], next_client_id: int, table_bytes: int, next_key: int, reason: str
) -> None:
    """Its checksums are right: only what the bookkeeping promises of itself tells that it must not be served."""
    tables = [TableMeta("t", "resident", 1, table_bytes, 0, 0, 0, None)]
    meta = Meta(point(1), 5, 5, next_client_id, 0, 2, 0, tables, next_key, -1, "", "", 0, 1, 0, 1, [])
    kept = ResultTracker(window=8)
    kept.record(1, 1, 1)
    if reason == "above 0":
        kept.highest = SequenceNumber(0)
    cells = {SESSIONS.key(session.client_id): SESSIONS.encode((session, kept)) for session in sessions}
    cells[META.key()] = META.encode(meta)
    cells[FLOWS.key()] = FLOWS.encode(FlowIndex([], RetiredState()))
    held = [] if next_key else [Bucket(1, 2, 5, 1, 9, {"k": Held(1, 320)})]
    cells[KEYS_HEAD.key()] = KEYS_HEAD.encode(KeysHead(1, held))
    used = KeyRecord(SequenceNumber(1), "", "k", ClusterTimeMs(1), ClusterTimeMs(9), CompletionRecord(7, 1))
    cells[KEYS.key(1)] = KEYS.encode(used)
    with pytest.raises(StateCorrupt, match=rf"/state/store-1 is corrupt: .*{reason}"):
        restore(cast("RocksStore", Cells(Path("/state/store-1"), cells)))
