"""What a backup is: a saved state and the sealed batches that it retains, as files under their SHA-256. Pure.

Owns: the manifest, version 1, and its checksum. A node makes it (:mod:`oncegate.gateway.backup.taking`), a shelf keeps
it beside the files (:mod:`oncegate.gateway.backup.shelf`), and a new cluster begins with it
(:mod:`oncegate.gateway.backup.restoring`). A backup holds everything that was acknowledged before it was asked for.

Encoded: JSON ``{"sha256": …, "manifest": {…}}``, the checksum being that of the manifest's own text.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from oncegate.consensus.ports import SavedPoint
from oncegate.stores.errors import StoreCode, StoreError

VERSION: Final = 1
FILES_MAX: Final = 1_000_000
STATE: Final = "state"
SEGMENTS: Final = "segments"
_PATH: Final = re.compile(r"state/[A-Za-z0-9][\w.-]{0,63}|segments/[A-Za-z0-9_][\w.-]{0,63}/\d{16}\.segment", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class BackupFile(msgspec.Struct, frozen=True):
    """One file: ``state/<name>``, or ``segments/<flow>/<number>.segment`` as a node keeps it."""

    path: str
    size_bytes: int
    sha256: str


class Batches(msgspec.Struct, frozen=True):
    """The batches of a flow that the backup holds: ``first .. last``."""

    first: int
    last: int


class Manifest(msgspec.Struct, frozen=True):
    """A backup.

    Attributes:
        version: of this shape.
        cluster, identity: configured name and identity of the cluster it is of.
        node: who made it.
        built_by: version of the node's software.
        point: the log entry up to which the state goes, and who were the members.
        commit: newest commit number; every write with it or a smaller one is in the backup.
        time_ms: cluster time of the newest entry.
        made_ms: the node's wall clock, for people, and for how long ago it was at most.
        sessions, keys: how many sessions and idempotency keys were alive.
        rows: number of resident rows, by table.
        flows: batches, by flow.
        files: everything it is made of.
    """

    version: int
    cluster: str
    identity: str
    node: str
    built_by: str
    point: SavedPoint
    commit: int
    time_ms: int
    made_ms: int
    sessions: int
    keys: int
    rows: dict[str, int]
    flows: dict[str, Batches]
    files: list[BackupFile]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    def of(self, kind: str) -> list[BackupFile]:
        """Return the files of :data:`STATE` or :data:`SEGMENTS`, in order."""
        return [file for file in self.files if file.path.startswith(f"{kind}/")]


class _Sealed(msgspec.Struct, frozen=True):
    sha256: str
    manifest: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def encode(manifest: Manifest) -> bytes:
    """Return the text of a manifest with its checksum."""
    text = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text)))


def decode(text: bytes, place: str) -> Manifest:
    """Read what :func:`encode` wrote; ``place`` names it in errors.

    Raises:
        StoreError: BAD_BACKUP, when it was changed, cut short, or is of a later version.
    """
    try:
        sealed = msgspec.json.decode(text, type=_Sealed)
        if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
            raise damaged(place, "its SHA-256 is not that of its content")
        version = msgspec.json.decode(sealed.manifest, type=_Versioned).version
        if version != VERSION:
            raise damaged(place, f"it has version {version}, and this build reads {VERSION}: take a newer one")
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest)
    except msgspec.DecodeError as fault:
        raise damaged(place, str(fault)) from None
    for file in manifest.files:
        if not _PATH.fullmatch(file.path) or not _SHA256.fullmatch(file.sha256) or file.size_bytes < 0:
            raise damaged(place, "it names a file that no backup has")
    if len({file.path for file in manifest.files}) != len(manifest.files) or len(manifest.files) > FILES_MAX:
        raise damaged(place, "it names a file twice, or too many")
    return manifest


def damaged(place: str, why: str) -> StoreError:
    """Return the refusal of a backup, or of a part of it, that is not what was written."""
    return StoreError(StoreCode.BAD_BACKUP, f"{place}: {why}")
