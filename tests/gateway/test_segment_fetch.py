"""A retained batch that a node lacks comes from a peer, whole and checked, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus.errors import PeerUnavailable
from oncegate.flows import segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.publisher import Publisher
from oncegate.flows.retired import Used
from oncegate.flows.segment_store import HEADER_BYTES, SegmentStore
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node import segment_fetch
from oncegate.gateway.node.segment_fetch import FETCH, PieceRequest, SegmentFetcher, serve_piece
from oncegate.rifl.errors import Code, OncegateError

BATCHES = 5


class Side:
    """A node's machine, its segment files and their writer."""

    def __init__(self, path: Path) -> None:
        self.machine = Machine()
        self.store = SegmentStore(path)
        self.publisher = Publisher(self.store, on_failure=lambda *_: None, retry_ms=1)
        self.publisher.start()

    def write(self, *, publish: bool) -> list[SealedBatch]:
        entries: list[list[c.Command]] = [[c.DeclareTable("s", "stream", 1 << 20), c.OpenSession("n", 60_000, 64)]]
        for number in range(1, BATCHES + 1):
            ops = [c.Op(number * 10 + n, int(c.OpKind.PUT), "s", f"k{n}", n, b'"%d"' % number) for n in range(8)]
            entries.append([c.Operate(1, 1, number * 10, ops), c.Seal("s", number)])
        for index, commands in enumerate(entries, 1):
            apply(self.machine, index, 1, c.encode_entry(index, commands))
        sealed = self.machine.flows.take_sealed()
        for batch in sealed if publish else []:
            self.publisher.submit(batch)
        assert self.publisher.wait_done(self.publisher.mark(), 60)  # the first batch loads numpy and pyarrow
        return sealed


class Network:
    """Peers by name; a call to a name that is not there fails."""

    def __init__(self) -> None:
        self.peers: dict[str, Side] = {}
        self.calls: list[tuple[str, PieceRequest]] = []
        self.spoil: Any = lambda reply: reply

    async def call(self, node_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        assert payload[:1] == FETCH
        self.calls.append((node_id, segment_fetch._request.decode(payload[1:])))
        if node_id not in self.peers:
            raise PeerUnavailable(node_id, "not connected", outcome="not_applied")
        return self.spoil(await serve_piece(self.peers[node_id].publisher, payload[1:]))


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Side]:
    side = Side(tmp_path / "full")
    side.write(publish=True)
    yield side
    side.publisher.close()


@pytest.fixture
async def network(full: Side) -> Network:
    """Calls reach the node that has everything."""
    made = Network()
    made.peers["full"] = full
    return made


async def assert_refused(fetcher: SegmentFetcher, number: int, code: Code) -> None:
    with pytest.raises(OncegateError) as refused:
        await fetcher.ensure("s", number)
    assert refused.value.code is code


Bare = tuple[Side, SegmentFetcher]


@pytest.fixture
async def bare(tmp_path: Path, network: Network) -> AsyncIterator[Bare]:
    """A node that knows of all batches and has no file."""
    side = Side(tmp_path / "bare")
    side.write(publish=False)
    fetcher = SegmentFetcher(network, lambda: ["gone", "empty", "full"], side.machine, side.store, side.publisher)
    network.peers["empty"] = Side(tmp_path / "empty")
    yield side, fetcher
    await fetcher.close()
    side.publisher.close()
    network.peers["empty"].publisher.close()


async def test_reader_gets_a_batch_this_node_never_wrote(network: Network, full: Side, bare: Bare) -> None:
    side, fetcher = bare
    await asyncio.gather(*(fetcher.ensure("s", 3) for _ in range(20)))
    assert side.store.get("s", 3) == full.store.get("s", 3)
    assert side.store.checksum("s", 3) == full.store.checksum("s", 3)
    assert fetcher.fetched == 1, "twenty readers, one fetch"


async def test_scan_fetches_all_that_is_missing(network: Network, full: Side, bare: Bare) -> None:
    side, fetcher = bare
    side.store.put("s", 2, full.store.get("s", 2))
    fetcher.scan()
    everything = list(range(1, BATCHES + 1))
    await until(lambda: side.store.list("s") == everything and not fetcher.missing, 60, "every batch is here")
    assert fetcher.fetched == BATCHES - 1


async def test_scan_removes_what_deleted_flows_left_and_nothing_that_the_log_may_still_declare(
    network: Network, full: Side, bare: Bare
) -> None:
    """A node that got its state as a snapshot never saw the deletion; one that replays its log sees flows later."""
    side, fetcher = bare
    payload = full.store.get("s", 1)
    for flow, number in (("old", 1), ("old", 3), ("old", 4), ("later", 1)):
        side.store.put(flow, number, payload)
    side.machine.flows.retired.retire("old", Used(3, 0, 2))
    fetcher.scan()
    await until(lambda: side.store.list("old") == [4], 60, "what the deleted flow had is gone")
    everything = list(range(1, BATCHES + 1))
    await until(lambda: side.store.list("s") == everything, 60, "the flow that is there is whole")
    assert side.store.list("later") == [1]


async def test_batch_that_nobody_has_holds_up_no_other(network: Network, full: Side, bare: Bare) -> None:
    side, fetcher = bare
    full.store.drop("s", BATCHES)  # the newest, which is asked for first
    fetcher.scan()
    others = list(range(1, BATCHES))
    await until(lambda: side.store.list("s") == others and fetcher.missing == 1, 60, "all but the newest are here")


async def test_large_batch_comes_in_pieces(
    network: Network, full: Side, bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, fetcher = bare
    monkeypatch.setattr(segment_fetch, "PIECE_BYTES_MAX", 100)
    await fetcher.ensure("s", 1)
    payload = full.store.get("s", 1)
    assert side.store.get("s", 1) == payload
    asked = [request.offset for peer, request in network.calls if peer == "full"]
    assert asked == list(range(0, len(payload), 100))


async def test_batch_still_waiting_for_the_disk_is_served_too(tmp_path: Path, network: Network, bare: Any) -> None:
    side, fetcher = bare
    waiting = Side(tmp_path / "waiting")
    sealed = waiting.write(publish=False)
    waiting.publisher.close()
    waiting.publisher = Publisher(waiting.store, on_failure=lambda *_: None)
    for batch in sealed:
        waiting.publisher.submit(batch)
    network.peers["full"] = waiting
    await fetcher.ensure("s", 4)
    assert not waiting.store.has("s", 4)
    assert side.store.has("s", 4)


async def test_damaged_piece_is_not_stored_and_another_peer_is_asked(network: Network, full: Side, bare: Bare) -> None:
    side, fetcher = bare
    network.peers["gone"] = full
    spoiled = iter(range(1))

    def spoil(reply: bytes) -> bytes:
        whole = segment_fetch._reply.decode(reply)
        if whole.length_bytes >= 0 and next(spoiled, None) is not None:
            data = bytearray(whole.data)
            data[len(data) // 2] ^= 1
            return segment_fetch._encode((whole.length_bytes, whole.checksum, bytes(data)))
        return reply

    network.spoil = spoil
    await fetcher.ensure("s", 5)
    assert side.store.get("s", 5) == full.store.get("s", 5)
    assert fetcher.failures >= 1


async def test_batch_with_another_value_that_can_be_read_is_refused_by_its_checksum(
    network: Network, full: Side, bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, fetcher = bare
    read = []

    def spoil(reply: bytes) -> bytes:
        whole = segment_fetch._reply.decode(reply)
        other = whole.data.replace(b'"5"', b'"6"', 1)
        if whole.length_bytes >= 0:
            read.append(segment.read_table(other).column("value").to_pylist())
        return segment_fetch._encode((whole.length_bytes, whole.checksum, other))

    network.spoil = spoil
    monkeypatch.setattr(segment_fetch, "ENSURE_TIMEOUT_S", 0.2)
    await assert_refused(fetcher, 5, Code.NOT_FOUND)
    assert read[0] == ['"6"', *['"5"'] * 7], "nothing but the checksum tells"
    assert not side.store.has("s", 5)


async def test_damaged_file_of_a_peer_is_not_spread(
    network: Network, full: Side, bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, fetcher = bare
    path = full.store.path("s", 1)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 20] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(segment_fetch, "ENSURE_TIMEOUT_S", 0.5)
    await assert_refused(fetcher, 1, Code.NOT_FOUND)
    assert not side.store.has("s", 1)


async def test_batch_dropped_meanwhile_is_said_to_be_dropped(
    network: Network, bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, fetcher = bare
    monkeypatch.setattr(segment_fetch, "ENSURE_TIMEOUT_S", 20)
    del network.peers["full"]
    waiting = asyncio.create_task(fetcher.ensure("s", 2))
    while not network.calls:
        await asyncio.sleep(0)
    side.machine.flows.get("s").batches.drop_through(3)
    with pytest.raises(OncegateError) as refused:
        await waiting
    assert refused.value.code is Code.RETENTION_EXCEEDED


async def test_call_that_is_none_is_refused(full: Side) -> None:
    with pytest.raises(Exception, match="array"):
        await serve_piece(full.publisher, b"\x01")
    reply = segment_fetch._reply.decode(await serve_piece(full.publisher, segment_fetch._encode(("../x", 1, 0))))
    assert reply.length_bytes == -1
