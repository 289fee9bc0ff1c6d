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
                if self.dice.random() < 0.1:
                    return
                self.shelf.add(file, data)
                self.files[file.sha256] = data
                self._age(file.sha256)
        name = name_of(manifest) if self.dice.random() < 0.5 else f"hand{self.dice.randint(0, 20)}"
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

    def prune(self) -> None:
        """Prune; what was written from a moment on may be of a backup that is under way."""
        keep, since = self.dice.randint(0, 4), self.clock - self.dice.randint(-1, 3)
        names = self.order()
        gone = names[:-keep] if keep else names
        left = {file.sha256 for name in names if name not in gone for file in self.backups[name].files}
        old = {sha256 for sha256, at in self.written.items() if at < since and sha256 not in left}
        assert self.shelf.prune(keep, BEGAN + timedelta(seconds=since)) == (gone, len(old))
        for name in gone:
            del self.backups[name]
        for sha256 in old:
            del self.files[sha256], self.written[sha256]

    def order(self) -> list[str]:
        """From the oldest to the newest: by second and commit number, whatever they are called."""
        made = {name: (one.made_ms // 1000, one.commit, name) for name, one in self.backups.items()}
        return sorted(self.backups, key=made.__getitem__)

    def check(self) -> None:
        """Compare all that can be asked."""
        assert self.shelf.names() == self.order()
        assert {path.name for path in (self.path / "files").glob("*")} == set(self.files)
        if self.backups:
            assert self.shelf.manifest() == (self.order()[-1], self.backups[self.order()[-1]])
        for name, manifest in self.backups.items():
            assert self.shelf.manifest(name) == (name, manifest)
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
    for _ in range(25):
        sides.dice.choices((sides.save, sides.prune, sides.lose), (6, 2, 1))[0]()
        sides.check()
