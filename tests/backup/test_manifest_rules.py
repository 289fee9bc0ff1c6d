"""What a manifest may name, row by row, and that a file of a backup is read as the batch that its header says it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from oncegate.consensus.ports import SavedPoint
from oncegate.flows.segment import checksum
from oncegate.flows.segment_store import HEADER_BYTES, SegmentStore
from oncegate.gateway.backup import manifest as manifests
from oncegate.gateway.backup.manifest import SEGMENTS, STATE, BackupFile, Manifest, decode, encode
from oncegate.gateway.backup.restoring import BackupOrigin
from oncegate.gateway.backup.shelf import Shelf
from oncegate.stores.errors import StoreCode, StoreError

SHA256 = "0f" * 32
BATCH = "segments/f/0000000000000001.segment"
EMPTY = Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 5, 6, 7, 0, 0, {}, {}, [])


def naming(*files: BackupFile) -> Manifest:
    return msgspec.structs.replace(EMPTY, files=list(files))


@pytest.mark.parametrize(
    "file",
    [
        BackupFile("state/a", 0, SHA256),
        BackupFile("state/a." + "x" * 62, 1, SHA256),
        BackupFile(BATCH, 2**40, SHA256),
        BackupFile("segments/_f.g-h/9999999999999999.segment", 1, SHA256),
    ],
)
def test_file_that_a_backup_has_is_named(file: BackupFile) -> None:
    assert decode(encode(naming(file)), "here").files == [file]


@pytest.mark.parametrize(
    "file",
    [
        # Paths that begin as good ones do and lead elsewhere, or are of no file.
        *(
            BackupFile(path, 1, SHA256)
            for path in (
                *("", "state", "state/", "/state/a", "x/a", "state/..", "state/.a", "state/a/../../b", "state/a/b"),
                *("state/a\n", "state/a\\b", "state/\u00e4", "state/a" + "x" * 64, f"{BATCH}/../../x", f"{BATCH}\n"),
                *("segments/f/1.segment", "segments/../0000000000000001.segment", "segments//0000000000000001.segment"),
                *("x/" + BATCH, BATCH.replace("1", "\u0661"), BATCH.removesuffix(".segment")),
            )
        ),
        # A checksum is also the file's name on the shelf.
        *(
            BackupFile("state/a", 1, sha256)
            for sha256 in ("", "../../etc/passwd", SHA256[:-1], SHA256 + "0", SHA256.upper(), SHA256 + "\n", "g" * 64)
        ),
        BackupFile("state/a", -1, SHA256),
    ],
)
def test_file_that_no_backup_has_is_refused_wherever_it_stands(file: BackupFile) -> None:
    good = BackupFile("state/good", 1, SHA256)
    for files in ((file,), (good, file), (file, good)):
        with pytest.raises(StoreError, match="here: it names a file that no backup has") as caught:
            decode(encode(naming(*files)), "here")
        assert caught.value.code is StoreCode.BAD_BACKUP


def test_as_many_files_as_there_may_be_are_named_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FILES_MAX", 3)
    files = [BackupFile(f"state/{at}", 1, SHA256) for at in range(4)]
    assert decode(encode(naming(*files[:3])), "here").files == files[:3]
    for bad in (files, [files[0], files[1], files[0]]):
        with pytest.raises(StoreError, match="twice, or too many"):
            decode(encode(naming(*bad)), "here")


@pytest.mark.parametrize("version", [-1, 0, 2, 3])
def test_manifest_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(StoreError, match=f"it has version {version}"):
        decode(encode(msgspec.structs.replace(EMPTY, version=version)), "here")


def test_files_are_told_apart_by_where_they_lie_and_not_by_what_they_are_called() -> None:
    state, batch = (
        BackupFile("state/segments", 3, SHA256),
        BackupFile("segments/state/0000000000000001.segment", 4, "a"),
    )
    made = naming(batch, state)
    assert (made.of(STATE), made.of(SEGMENTS), made.size_bytes) == ([state], [batch], 7)


def test_batch_is_read_from_the_file_that_holds_it_and_from_no_other(tmp_path: Path) -> None:
    """Whichever file the manifest names in its place: of another flow, of another number, cut short, or none."""
    store, shelf = SegmentStore(tmp_path / "store"), Shelf(str(tmp_path / "shelf"))
    places = [(flow, number) for flow in ("f", "g") for number in (1, 2)]
    whole: dict[tuple[str, int], bytes] = {}
    for flow, number in places:
        payload = f"{number} of {flow}".encode()
        assert store.put(flow, number, payload) == checksum(payload)
        whole[flow, number] = store.path(flow, number).read_bytes()
    contents = [*whole.values(), b"", whole["f", 1][: HEADER_BYTES - 1], b"x" + whole["f", 1][1:]]
    for flow, number in places:
        path = f"segments/{flow}/{number:016d}.segment"
        for data in contents:
            file = BackupFile(path, len(data), hashlib.sha256(data).hexdigest())
            shelf.add(file, data)
            origin = BackupOrigin(shelf, naming(file))
            if data == whole[flow, number]:
                assert origin.batch(flow, number) == f"{number} of {flow}".encode()
                continue
            with pytest.raises(StoreError) as caught:
                origin.batch(flow, number)
            assert caught.value.code is StoreCode.BAD_BACKUP
        with pytest.raises(StoreError, match=f"it lacks {path}") as caught:
            BackupOrigin(shelf, EMPTY).batch(flow, number)
        assert caught.value.code is StoreCode.BAD_BACKUP
