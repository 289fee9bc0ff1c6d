"""Data directories of clusters that were stopped in order, and ways to spoil one file of them with right checksums."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.log.segment import KIND_ENTRY, SEGMENT_HEADER_BYTES, decode_header, encode_record, scan
from oncegate.consensus.ports import SavedPoint
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine.levels import NEWEST
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state.layout import ROWS, encode_row
from oncegate.gateway.machine.state.store import CellWriter, RocksStore, new_cache
from oncegate.gateway.node import node as node_module
from oncegate.gateway.node.node import Node, replica_config
from oncegate.gateway.node.settings import Settings
from tests.conftest import Api
from tests.gateway.http_contract import declare, put, sealed, send_range

SEGMENT_BYTES = 9 * 2**20
NODES = ("n1", "n2", "n3")


def _small_segments(settings: Settings) -> ReplicaConfig:
    return replace(replica_config(settings), journal_segment_bytes=SEGMENT_BYTES)


async def save(node: Node) -> None:
    """Have a node save its state where it stands."""
    status = node.replica.status()
    log = node.replica._running().log  # the term and configuration that consensus itself would save
    index = status.applied_index
    node.state.begin_save(SavedPoint(index, log.term_at(index) or 0, log.membership.at(index)))
    assert await asyncio.to_thread(node.state.wait_saved, 20)


async def _ready(http: aiohttp.ClientSession) -> None:
    async def ready() -> bool:
        return (await http.get("/readyz")).status == 200

    await until(ready, 60, "the node is ready")


async def _work(api: Api, nodes: list[Node], *, bulk: bool) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 4, "consumers": ["x"]})
    client_id = await api.session(lease_ms=600_000)
    for sequence in range(1, 11):
        await api.operate(client_id, put(sequence, f"k{sequence % 3}", f"v{sequence:02d}"))
    await api.operate(client_id, {"sequence": 11, "op": "increment", "table": "rows", "key": "n"})
    posts = [f"p{number}" for number in range(6)]
    await send_range(api, client_id, 12, posts)
    message = {"sender": 1, "receiver": 2, "sent_at": 3}
    await api.operate(client_id, *(put(18 + number, f"m{number}", message, "events") for number in range(4)))
    await sealed(api, "events")
    await until(lambda: nodes[0].machine.level == NEWEST, 60, "the new cluster has its level")
    await _rows_at_once_and_rows_that_end(api)
    if bulk:
        for number in range(60):
            await api.operate(client_id, put(22 + number, "big", "x" * 200_000), first_incomplete=22)
        await until(lambda: len({node.machine.commit for node in nodes}) == 1, 60, "all nodes at one commit")
    for node in nodes if bulk else nodes[:2]:
        await save(node)
    first = 82 if bulk else 22
    await api.operate(client_id, put(first, "after", 1), put(first + 1, "k1", 2), first_incomplete=12)
    for number in range(36 if bulk else 0):
        await api.operate(client_id, put(84 + number, "big", "y" * 200_000), first_incomplete=22)
    await sealed(api, "events")
    await sealed(api, "f")
    _, _, flow = await api.call("GET", "/v1/flows/events")
    for consumer in ("/v1/flows/events/consumers/job", "/v1/flows/events/consumers/rows"):
        _, _, attached = await api.call("POST", f"{consumer}/attach", {"nonce": "one"})
        move = {"batch": flow["last_batch"], "fence": attached["fence"]}
        assert (await api.call("POST", f"{consumer}/cursor", move))[0] == 200


async def _rows_at_once_and_rows_that_end(api: Api) -> None:
    """What takes several commit numbers in one entry, or some without a request: transactions, runs, ends of rows."""
    await declare(api, "sold", "stream")
    client_id = await api.session("at-once")
    await api.operate(client_id, *(put(number, f"run{number}", number) for number in range(1, 9)))

    def transaction(sequence: int) -> dict[str, Any]:
        absent = {"op": "put", "table": "rows", "key": "t1", "value": 1, "if": {"absent": True}}
        event = {"op": "put", "table": "sold", "key": "t2", "value": 1}
        counted = {"op": "increment", "table": "rows", "key": "t3"}
        return {"sequence": sequence, "op": "transaction", "writes": [absent, event, counted]}

    done = await api.operate(client_id, transaction(9), transaction(10))
    assert [one["status"] for one in done] == ["applied", "refused"], done
    bound = {**put(12, "bound", 1), "bound": True}
    await api.operate(client_id, {**put(11, "short", 1), "ttl_ms": 1}, bound, first_incomplete=9)
    assert (await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1"))[0] == 204
    for key in ("short", "bound"):

        async def is_gone(key: str = key) -> bool:
            return (await api.call("GET", f"/v1/tables/rows/rows/{key}"))[0] == 404

        await until(is_gone, 60, f"row {key} has ended")
    once = {"Idempotency-Key": '"once"'}
    assert (await api.call("POST", "/v1/tables/rows/rows/keyed/increment", {}, headers=once))[0] == 200


async def _life(directory: Path, *, bulk: bool) -> None:
    ports = free_ports(6)
    members = [f"{name}=127.0.0.1:{ports[2 * at]}:{ports[2 * at + 1]}" for at, name in enumerate(NODES)]
    async with AsyncExitStack() as stack:
        nodes = []
        for name in NODES:
            settings = Settings(node=name, members=members, data_dir=directory / name, log_kept_bytes=0)
            nodes.append(await stack.enter_async_context(running(settings)))
        base = nodes[0].settings.address.http
        async with aiohttp.ClientSession(base_url=base) as http:
            await _ready(http)
            await _work(Api(http), nodes, bulk=bulk)
        await until(
            lambda: len({node.replica.status().applied_index for node in nodes}) == 1, 60, "all nodes at one index"
        )


def made(directory: Path, *, bulk: bool) -> Path:
    """Run a cluster of three in this process, with both kinds of tables, flows, records, a save, and stop it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "replica_config", _small_segments)
        asyncio.run(_life(directory, bulk=bulk))
    return directory


def copied(source: Path, target: Path) -> list[Path]:
    """Return the nodes' directories of a copy; files are links, so whoever spoils one replaces it."""
    shutil.copytree(source, target, copy_function=os.link)
    return [target / name for name in NODES]


def replaced(file: Path, data: bytes) -> None:
    """Give a file other content, and leave alone what links to the old."""
    file.unlink()
    file.write_bytes(data)


def flipped(file: Path, offset: int) -> None:
    """Flip a bit."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    replaced(file, bytes(data))


def rewritten_log(node: Path, change: Callable[[dict[int, bytes]], dict[int, bytes]]) -> None:
    """Replace commands of the newest journal segment that has some by others as long, with right checksums.

    ``change`` gets all commands by index and returns those that are replaced.
    """
    for file in sorted((node / "raft").glob("journal-*.segment")):
        data = bytearray(file.read_bytes())
        header = decode_header(bytes(data), label="", sequence=int(file.stem.rpartition("-")[2]), size=len(data))
        records = list(scan(bytes(data), SEGMENT_HEADER_BYTES, header.seed))
        new = change({record.log_index: record.payload for record in records if record.kind == KIND_ENTRY})
        for record in records:
            if record.kind == KIND_ENTRY and record.log_index in new:
                payload = new[record.log_index]
                assert len(payload) == len(record.payload)
                about = (record.kind, record.log_index, record.term, record.commit, record.prior_end)
                written = encode_record(header.seed, *about, payload) + payload
                data[record.offset : record.offset + len(written)] = written
        if new:
            replaced(file, bytes(data))


def cut_log(node: Path, last: int) -> None:
    """Take what follows the entry ``last`` out of a node's only journal segment, as if it had never been written."""
    file = min((node / "raft").glob("journal-*.segment"))
    data = bytearray(file.read_bytes())
    header = decode_header(bytes(data), label="", sequence=int(file.stem.rpartition("-")[2]), size=len(data))
    for record in scan(bytes(data), SEGMENT_HEADER_BYTES, header.seed):
        if record.log_index > last or (record.log_index == last and record.kind != KIND_ENTRY):
            data[record.offset :] = bytes(len(data) - record.offset)
            break
    replaced(file, bytes(data))


def changed_row(node: Path, table: int, key: str, row: StoredRow) -> None:
    """Change a row of a node's saved state the way a save would write it: every checksum is right."""
    (path,) = (node / "state").glob("store-*")
    for file in path.iterdir():
        replaced(file, file.read_bytes())
    store = RocksStore(path, new_cache(8 * 2**20), create=False)
    cells: CellWriter = store.writer(node / "state" / "cells")
    cells.put(ROWS.key(table, key), encode_row(row))
    cells.finish()
    store.ingest(node / "state" / "cells")
    store.close()


def changed_batch(node: Path, flow: str, number: int, change: Callable[[bytes], bytes]) -> None:
    """Change a batch's payload and put its checksum right."""
    store = SegmentStore(node / "segments")
    payload = change(store.get(flow, number))
    store.drop(flow, number)
    store.put(flow, number, payload)


def listing(directory: Path) -> dict[str, Any]:
    """Names, sizes and times of all files below a directory."""
    return {
        str(file): (file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_ctime_ns)
        for file in sorted(directory.rglob("*"))
    }
