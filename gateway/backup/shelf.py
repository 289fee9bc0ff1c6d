"""A shelf of backups, in a directory or an S3-like store.

Owns: the layout below, and that a backup is on the shelf whole or not at all. Must not know nodes. Blocking.

| name | what |
|---|---|
| ``files/<SHA-256>`` | a file of one or more backups; never changes |
| ``backups/<name>.json`` | a manifest, written last (:mod:`oncegate.gateway.backup.manifest`) |

Files are named by their content, so a second backup on the same shelf adds only what is new: batches and merged files
of the state never change. A file that no manifest names is left over from a backup that was cut off, or was pruned.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow.fs

from oncegate.gateway.backup.manifest import BackupFile, Manifest, damaged, decode, encode
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.places import file_place, unavailable

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_SUFFIX: Final = ".json"
_TIME: Final = "%Y%m%dT%H%M%S"
_OURS: Final = re.compile(r"([0-9]{8}T[0-9]{6})Z-([0-9]+)", re.ASCII)
_UNKNOWN: Final = (math.inf, 0)
"""After all others: a backup of which nobody can say how old it is goes before no other one."""


class Shelf:
    """The backups at ``url``: a path, ``file:///…`` or ``s3://bucket/prefix?…``.

    Raises:
        StoreError: BAD_OPTION, when nothing can be there; STORE_UNAVAILABLE from every call, when the file system
            fails: the call may be repeated.
    """

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else str(Path(url).absolute())
        self._place = file_place(self.url, "backup")

    def names(self) -> list[str]:
        """Return the names of the backups, oldest first by when they were made; damaged manifests come last."""
        return sorted(self._names(), key=lambda name: (*self._made(name), name))

    def _names(self) -> list[str]:
        selected = pyarrow.fs.FileSelector(f"{self._place.root}/backups", allow_not_found=True)
        with unavailable(self.url):
            found = [info.base_name for info in self._place.files.get_file_info(selected)]
        return [name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX) and name[0] != "."]

    def _made(self, name: str) -> tuple[float, int]:
        """Return the second and the commit number at which a backup was made: a name of ours says both."""
        ours = _OURS.fullmatch(name)
        try:
            if ours is not None:
                return datetime.strptime(f"{ours[1]}+0000", f"{_TIME}%z").timestamp(), int(ours[2])
            path = self._manifest(name)
            manifest = decode(self._read(path), path)
        except ValueError:
            return _UNKNOWN
        except StoreError as fault:
            if fault.code is not StoreCode.BAD_BACKUP:
                raise
            return _UNKNOWN
        return manifest.made_ms // 1000, manifest.commit

    def manifest(self, name: str | None = None) -> tuple[str, Manifest]:
        """Return a backup and its name, by default the newest.

        Raises:
            StoreError: BAD_OPTION, when there is none; BAD_BACKUP, when its manifest is damaged.
        """
        names = self.names()
        chosen = name or (names[-1] if names else "")
        if chosen not in names:
            known = f"there are {', '.join(names[-5:])}" if names else "there is none"
            raise StoreError(StoreCode.BAD_OPTION, f"{self.url} holds no backup {chosen}: {known}".replace(" :", ":"))
        path = self._manifest(chosen)
        return chosen, decode(self._read(path), path)

    def has(self, file: BackupFile) -> bool:
        """Tell whether a file is there with its size; :meth:`read` says whether it is whole."""
        with unavailable(self.url):
            info = self._place.files.get_file_info(self._object(file))
        return bool(info.type == pyarrow.fs.FileType.File and info.size == file.size_bytes)

    def add(self, file: BackupFile, data: bytes) -> None:
        """Keep a file; durable and read back on return.

        Raises:
            StoreError: BAD_BACKUP, when the bytes are not the file's, or the shelf gives back others.
        """
        _check(file, data, file.path)
        self._place.put(self._object(file), data)
        self.read(file)

    def read(self, file: BackupFile) -> bytes:
        """Return a file; raises BAD_BACKUP when it is missing or differs."""
        data = self._read(self._object(file))
        _check(file, data, f"{self._object(file)} ({file.path})")
        return data

    def check_free(self, name: str) -> None:
        """Raise BAD_OPTION when a new backup cannot have this name: it is taken, or is none."""
        if not _NAME.fullmatch(name):
            raise StoreError(StoreCode.BAD_OPTION, f"{name} is no name of a backup: letters, digits, '_', '-' and '.'")
        if name in self._names():
            raise StoreError(StoreCode.BAD_OPTION, f"{self.url} holds a backup {name} already")

    def finish(self, name: str, manifest: Manifest) -> None:
        """Make a backup visible; all its files have been added.

        Raises:
            StoreError: BAD_OPTION, when the name is taken or is none; BAD_BACKUP, when a file is not there.
        """
        self.check_free(name)
        for file in manifest.files:
            if not self.has(file):  # it was there, and somebody has pruned the shelf meanwhile
                raise damaged(self._object(file), "it is missing: save again")
        self._place.put(self._manifest(name), encode(manifest))

    def prune(self, keep: int, before: datetime) -> tuple[list[str], int]:
        """Delete all but the newest ``keep`` backups, and files that no backup names.

        Files that were written after ``before`` stay: they may be of a backup that is under way.

        Returns:
            The names of the backups, and how many files went.

        Raises:
            StoreError: BAD_BACKUP, when a manifest that stays is damaged; no file was deleted then.
        """
        names = self.names()
        gone, left = names[: max(0, len(names) - keep)], names[max(0, len(names) - keep) :]
        named = {file.sha256 for name in left for file in self.manifest(name)[1].files}
        place, count = self._place.files, 0
        with unavailable(self.url):
            for name in gone:
                place.delete_file(self._manifest(name))
            for info in place.get_file_info(pyarrow.fs.FileSelector(f"{self._place.root}/files", allow_not_found=True)):
                if info.base_name not in named and info.mtime is not None and info.mtime < before:
                    place.delete_file(info.path)
                    count += 1
        return gone, count

    def _manifest(self, name: str) -> str:
        return f"{self._place.root}/backups/{name}{_SUFFIX}"

    def _object(self, file: BackupFile) -> str:
        return f"{self._place.root}/files/{file.sha256}"

    def _read(self, path: str) -> bytes:
        with unavailable(self.url):
            try:
                with self._place.files.open_input_stream(path) as stream:
                    data: bytes = stream.read()
            except FileNotFoundError:
                raise damaged(path, "it is missing") from None
        return data


def name_of(manifest: Manifest) -> str:
    """Return the name that a backup gets: when it was made, in UTC, and its commit number."""
    made = datetime.fromtimestamp(manifest.made_ms / 1000, UTC)
    return f"{made:{_TIME}}Z-{manifest.commit}"


def _check(file: BackupFile, data: bytes, place: str) -> None:
    if (len(data), hashlib.sha256(data).hexdigest()) != (file.size_bytes, file.sha256):
        raise damaged(place, "size or SHA-256 are not those of the manifest")
