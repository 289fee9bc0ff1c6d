"""A shelf of backups against a dictionary: what is on it after any saves, prunes, losses and damage, in any order.

The reference knows which files lie there and which backups name them. It is asked after each step which backups there
are, from the oldest to the newest, and of each whether all of its files are whole.
"""

from __future__ import annotations

import hashlib
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.backup.manifest import BackupFile, Manifest
from oncegate.gateway.backup.shelf import Shelf, name_of
from oncegate.stores.errors import StoreCode, StoreError

BEGAN = datetime(2024, 5, 1, tzinfo=UTC)


class Sides:
    """A shelf in a directory and what has to be on it; each method does one thing to both."""

    def __init__(self, seed: int, path: Path) -> None:
        self.dice, self.path = random.Random(seed), path
        self.shelf = Shelf(str(path))
        self.clock = 0
        self.files: dict[str, bytes | None] = {}
        """Content by SHA-256; None: damaged."""
        self.written: dict[str, int] = {}
        self.backups: dict[str, Manifest] = {}
        self.unreadable: set[str] = set()
        """Backups of which the manifest is damaged."""

    def _contents(self) -> list[bytes]:
        """A state grows from backup to backup, so that most of its files are those of the one before."""
        return [b"%d" % (self.clock // 3 + number) * (number + 1) for number in range(self.dice.randint(1, 4))]

    def save(self) -> None:
        """Save a backup as a client does, or be cut off before its end."""
        self.clock += self.dice.choice((0, 0, 1))
        contents = self._contents()
        files = [
            BackupFile(f"state/{number}", len(data), hashlib.sha256(data).hexdigest())
            for number, data in enumerate(contents)
        ]
        made_ms = int(BEGAN.timestamp() * 1000) + self.clock * 1000 + self.dice.randint(0, 999)
        commit = len(self.backups) * 7 + self.dice.randint(0, 200)
        manifest = Manifest(1, "c", "i" * 32, "n", "1", SavedPoint(7, 2, b""), commit, 6, made_ms, 0, 0, {}, {}, files)
        for file, data in zip(files, contents, strict=True):
            there = file.sha256 in self.files and self._size(file.sha256) == len(data)
            assert self.shelf.has(file) == there
            if not there:
                how = self.dice.random()
                if how < 0.1:
                    return
                if how < 0.15:
                    continue
                for other in (b"", data + b"0", bytes([data[0] ^ 1]) + data[1:]):
                    with pytest.raises(StoreError) as other_bytes:
                        self.shelf.add(file, other)
                    assert other_bytes.value.code is StoreCode.BAD_BACKUP
                    assert self.shelf.has(file) == there, "nothing was written in its place"
                self.shelf.add(file, data)
                self.files[file.sha256] = data
                self._age(file.sha256)
        name = name_of(manifest) if self.dice.random() < 0.5 else f"hand{self.dice.randint(0, 20)}"
        if not all(self.shelf.has(file) for file in files):
            with pytest.raises(StoreError) as pruned:
                self.shelf.finish("incomplete", manifest)
            assert pruned.value.code is StoreCode.BAD_BACKUP
            return
        if name in self.backups:
            with pytest.raises(StoreError) as taken:
                self.shelf.finish(name, manifest)
            assert taken.value.code is StoreCode.BAD_OPTION
            return
        self.shelf.finish(name, manifest)
        self.backups[name] = manifest

    def _size(self, sha256: str) -> int:
        return (self.path / "files" / sha256).stat().st_size

    def _age(self, sha256: str) -> None:
        """Give a file the time of this test's clock."""
        self.written[sha256] = self.clock
        at = (BEGAN + timedelta(seconds=self.clock)).timestamp()
        os.utime(self.path / "files" / sha256, (at, at))

    def lose(self) -> None:
        """A file is lost, cut short, or changed where it lies."""
        if not self.files:
            return
        sha256 = self.dice.choice(sorted(self.files))
        place, how = self.path / "files" / sha256, self.dice.random()
        if how < 0.4:
            place.unlink()
            del self.files[sha256], self.written[sha256]
            return
        data = place.read_bytes()
        place.write_bytes(data[:-1] if how < 0.7 else bytes([data[0] ^ 1]) + data[1:])
        self.files[sha256] = None
        self._age(sha256)

    def spoil(self) -> None:
        """A manifest is damaged, and stays where it is; somebody else puts things beside the backups."""
        if self.backups:
            name = self.dice.choice(sorted(self.backups))
            (self.path / "backups" / f"{name}.json").write_bytes(self.dice.choice((b"", b"{}", b"\xff")))
            self.unreadable.add(name)
        for other in self.dice.sample((".json", ".hand1.json", "hand1.json.part", "notes"), 2):
            (self.path / "backups").mkdir(parents=True, exist_ok=True)
            (self.path / "backups" / other).write_bytes(b"{}")

    def prune(self) -> None:
        """Prune; what was written from a moment on may be of a backup that is under way."""
        names = self.order()
        # Also more than there are: none goes then.
        keep, since = self.dice.randint(0, len(names) + 2), self.clock - self.dice.randint(-1, 3)
        gone = names[:-keep] if keep else names
        if self.unreadable - {*gone}:
            with pytest.raises(StoreError) as bad:
                self.shelf.prune(keep, BEGAN + timedelta(seconds=since))
            assert bad.value.code is StoreCode.BAD_BACKUP
            return  # and check() finds everything where it was
        left = {file.sha256 for name in names if name not in gone for file in self.backups[name].files}
        old = {sha256 for sha256, at in self.written.items() if at < since and sha256 not in left}
        assert self.shelf.prune(keep, BEGAN + timedelta(seconds=since)) == (gone, len(old))
        for name in gone:
            del self.backups[name]
            self.unreadable.discard(name)
        for sha256 in old:
            del self.files[sha256], self.written[sha256]

    def order(self) -> list[str]:
        """From the oldest to the newest: by second and commit number, whatever they are called."""
        made = {name: (one.made_ms // 1000, one.commit, name) for name, one in self.backups.items()}
        # A name that tells the time tells it still; of all others nobody knows it any more.
        made.update({name: (2**60, 0, name) for name in self.unreadable if name.startswith("hand")})
        return sorted(self.backups, key=made.__getitem__)

    def check(self) -> None:
        """Compare all that can be asked."""
        assert self.shelf.names() == self.order()
        assert {path.name for path in (self.path / "files").glob("*")} == set(self.files)
        for name in (None, "hand99", *self.backups):
            chosen = name or (self.order()[-1] if self.backups else None)
            if chosen in self.backups and chosen not in self.unreadable:
                assert chosen is not None
                assert self.shelf.manifest(name) == (chosen, self.backups[chosen])
                continue
            with pytest.raises(StoreError) as bad:
                self.shelf.manifest(name)
            assert bad.value.code is (StoreCode.BAD_BACKUP if chosen in self.unreadable else StoreCode.BAD_OPTION)
            assert ("there is none" in str(bad.value)) == (not self.backups)
        for manifest in self.backups.values():
            for file in manifest.files:
                content = self.files.get(file.sha256)
                if content is not None:
                    assert self.shelf.read(file) == content
                    continue
                with pytest.raises(StoreError) as bad:
                    self.shelf.read(file)
                assert bad.value.code is StoreCode.BAD_BACKUP
                assert file.sha256 in str(bad.value)


@pytest.mark.parametrize("seed", range(8))
def test_a_shelf_holds_the_newest_backups_whole_and_says_which_are_not(seed: int, tmp_path: Path) -> None:
    sides = Sides(seed, tmp_path)
    for _ in range(30):
        sides.dice.choices((sides.save, sides.prune, sides.lose, sides.spoil), (8, 3, 1, 1))[0]()
        sides.check()


def test_a_name_is_free_that_is_a_name_and_not_taken(tmp_path: Path) -> None:
    shelf = Shelf(str(tmp_path))
    empty = Manifest(1, "c", "i" * 32, "n", "1", SavedPoint(7, 2, b""), 1, 6, 0, 0, 0, {}, {}, [])
    shelf.finish("taken", empty)
    for name in ("taken", "", ".", "..", ".hidden", "a/b", "../a", "a b", "ä", "x" * 300):
        with pytest.raises(StoreError) as told:
            shelf.check_free(name)
        with pytest.raises(StoreError) as told_late:
            shelf.finish(name, empty)
        assert told.value.code is told_late.value.code is StoreCode.BAD_OPTION
    shelf.check_free("free")
    assert shelf.names() == ["taken"]


def test_a_shelf_that_does_not_answer_says_so_and_calls_nothing_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that counts as damaged is the newest; one that nobody could read just now keeps its place."""
    shelf = Shelf(str(tmp_path))
    shelf.finish("hand", Manifest(1, "c", "i" * 32, "n", "1", SavedPoint(7, 2, b""), 1, 6, 0, 0, 0, {}, {}, []))

    def silent(_: str) -> bytes:
        raise StoreError(StoreCode.STORE_UNAVAILABLE, "it does not answer")

    monkeypatch.setattr(shelf, "_read", silent)
    for ask in (shelf.names, shelf.manifest, lambda: shelf.prune(0, BEGAN)):
        with pytest.raises(StoreError) as told:
            ask()
        assert told.value.code is StoreCode.STORE_UNAVAILABLE
    monkeypatch.undo()
    assert shelf.names() == ["hand"]


def test_a_file_that_the_shelf_gives_back_changed_was_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, data = Shelf(str(tmp_path)), b"content"
    file, put = BackupFile("state/1", len(data), hashlib.sha256(data).hexdigest()), type(shelf._place).put
    monkeypatch.setattr(type(shelf._place), "put", lambda place, path, _: put(place, path, b"Content"))
    with pytest.raises(StoreError) as told:
        shelf.add(file, data)
    assert told.value.code is StoreCode.BAD_BACKUP


def test_a_path_means_the_same_wherever_its_user_goes_and_a_url_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Shelf("here").url == str(tmp_path / "here")
    assert Shelf(f"file://{tmp_path}").url == f"file://{tmp_path}"
