"""A backup as a node gives it: a copy of its saved state with the batches that belong to it, for as long as it is read.

Owns: the order in which the copy is made, the manifest, and how long and how many copies are kept. Must not know HTTP.
Nothing stops meanwhile: the state is saved as at any other time, and both state and batches are copied by hard links.

1. The node reaches a linearizable read point: what was acknowledged before is applied here.
2. Batches that this node lacks are fetched; from here on none is removed.
3. The state is saved, which waits for the batches that were sealed before, and copied.
4. The batches that the copy retains are linked into it, every block of it is read, and every file is hashed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from oncegate.consensus.errors import ConsensusError
from oncegate.flows.errors import FlowError
from oncegate.gateway.backup.manifest import SEGMENTS, STATE, VERSION, BackupFile, Batches, Manifest
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.pacer import Pacer
from oncegate.gateway.machine.state.restore import Retained, contents, remembered_keys, verify
from oncegate.gateway.machine.state.snapshot import StoreSnapshot
from oncegate.gateway.machine.state.store import RocksStore, new_cache
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.refusals import translated
from oncegate.rifl.errors import Code, OncegateError

COPIES_MAX: Final = 2
"""Backups that are being read from one node; each holds on to disk space."""
IDLE_S: Final = 300.0
"""A copy that nobody has read from for so long is removed."""
SAVE_TIMEOUT_S: Final = 120.0
_CACHE_BYTES: Final = 8 * 2**20
_PIECE_BYTES: Final = 2**20


class Copy(NamedTuple):
    """A backup to be read from this node: its files are immutable until it is given back."""

    id: str
    directory: Path
    manifest: Manifest

    def path(self, file: BackupFile) -> Path:
        """Return where a file of the manifest lies."""
        kind, _, rest = file.path.partition("/")
        return self.directory / (rest if kind == STATE else file.path)


class Copies:
    """The backups that are being read from one node; every method belongs to its event loop."""

    def __init__(self, node: Node, built_by: str) -> None:
        self._node = node
        self._built_by = built_by
        self._copies: dict[str, tuple[Copy, StoreSnapshot, asyncio.TimerHandle]] = {}
        self._making = 0
        self._discarding: set[asyncio.Task[None]] = set()

    async def make(self) -> Copy:
        """Make a copy of everything that was acknowledged before this call; give it back with :meth:`discard`.

        Raises:
            OncegateError: OVERLOADED, when COPIES_MAX are there; NO_LEADER, NOT_READY, TIMEOUT, as a read; NOT_READY,
                when a batch cannot be fetched or a block is damaged: ask another node.
        """
        if len(self._copies) + self._making >= COPIES_MAX:
            raise OncegateError(Code.OVERLOADED, f"{COPIES_MAX} backups are being read here", retry_after_ms=5_000)
        self._making += 1
        try:
            snapshot, copy = await self._made()
        finally:
            self._making -= 1
        self._copies[copy.id] = copy, snapshot, self._expiry(copy.id)
        return copy

    def find(self, copy_id: str) -> Copy:
        """Return a copy and keep it for another IDLE_S; raises NOT_FOUND."""
        found = self._copies.get(copy_id)
        if found is None:
            raise OncegateError(Code.NOT_FOUND, "no such backup is being read here")
        copy, snapshot, timer = found
        timer.cancel()
        self._copies[copy_id] = copy, snapshot, self._expiry(copy_id)
        return copy

    async def discard(self, copy_id: str) -> None:
        """Give a copy back. Idempotent."""
        found = self._copies.pop(copy_id, None)
        if found is not None:
            found[2].cancel()
            await asyncio.to_thread(found[1].close)

    async def close(self) -> None:
        """Give all copies back."""
        for copy_id in list(self._copies):
            await self.discard(copy_id)
        await asyncio.gather(*self._discarding)

    def _expiry(self, copy_id: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(IDLE_S, self._expired, copy_id)

    def _expired(self, copy_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self.discard(copy_id))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def _made(self) -> tuple[StoreSnapshot, Copy]:
        node = self._node
        await node.reads.reach("linearizable", 0)
        with node.publisher.keeping():
            for name in node.machine.flows.names():
                await self._fetch(name)
            store_path = node.state.store_path
            snapshot = await self._saved()
            try:
                manifest = await asyncio.to_thread(self._described, snapshot, store_path)
            except BaseException:
                snapshot.close()
                raise
        return snapshot, Copy(secrets.token_hex(16), snapshot.directory, manifest)

    async def _fetch(self, name: str) -> None:
        node = self._node
        flow = node.machine.flows.find(name)
        if flow is None:
            return
        present = set(await asyncio.to_thread(node.store.list, name))
        for number in range(flow.batches.first, flow.batches.last + 1):
            # One that this node has sealed itself is on its way to the disk.
            if number not in present and not node.publisher.has(name, number):
                await node.fetcher.ensure(name, number)

    async def _saved(self) -> StoreSnapshot:
        node = self._node
        index = node.replica.status().applied_index
        node.state.ask_to_save()
        try:
            if not await asyncio.to_thread(node.state.wait_saved_at, index, SAVE_TIMEOUT_S):
                raise OncegateError(Code.TIMEOUT, "the state was not saved in time; its disk is too busy or full")
            return await asyncio.to_thread(node.state.open_snapshot)
        except ConsensusError as fault:
            raise translated(fault) from None

    def _described(self, snapshot: StoreSnapshot, store_path: Path) -> Manifest:
        """Link the batches, read every block of what was saved in ``store_path``, and hash every file. Worker thread.

        Damage is the node's own: it serves nothing more.
        """
        node, directory = self._node, snapshot.directory
        state_files = [file.name for file in snapshot.manifest.files]
        try:
            with closing(RocksStore(directory, new_cache(_CACHE_BYTES), create=False, read_only=True)) as store:
                verify(store, Pacer().rest)
                meta, retained = contents(store)
                keys = remembered_keys(store)
        except (ConsensusError, OSError) as fault:
            if isinstance(fault, StateCorrupt):
                node.state.found_in_copy(fault, directory, store_path)
            raise OncegateError(Code.NOT_READY, f"this node's state cannot be read: {fault}") from None
        files = [_hashed(f"{STATE}/{name}", directory / name) for name in state_files]
        for batches in retained:
            files += self._linked(directory, batches)
        return Manifest(
            version=VERSION,
            cluster=node.settings.cluster,
            identity=meta.identity,
            node=node.settings.node,
            built_by=self._built_by,
            point=snapshot.manifest.point,
            commit=meta.commit,
            time_ms=meta.time_ms,
            made_ms=time.time_ns() // 1_000_000,
            sessions=meta.sessions,
            keys=keys,
            rows={table.name: table.rows for table in meta.tables},
            flows={batches.flow: Batches(batches.first, batches.last) for batches in retained},
            files=files,
        )

    def _linked(self, directory: Path, batches: Retained) -> list[BackupFile]:
        made = directory / SEGMENTS / batches.flow
        made.mkdir(parents=True)
        files = []
        for number in range(batches.first, batches.last + 1):
            source = self._node.store.path(batches.flow, number)
            try:
                self._node.store.get(batches.flow, number)  # every byte checked
                os.link(source, made / source.name)
            except (FlowError, OSError) as fault:
                raise OncegateError(
                    Code.NOT_READY, f"batch {number} of {batches.flow} is not whole on this node: {fault}"
                ) from None
            files.append(_hashed(f"{SEGMENTS}/{batches.flow}/{source.name}", made / source.name))
        return files


def _hashed(path: str, place: Path) -> BackupFile:
    digest, size_bytes = hashlib.sha256(), 0
    with place.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            size_bytes += len(piece)
    return BackupFile(path, size_bytes, digest.hexdigest())
