"""Fetches from peers that lack batches, fail, cut their answers and send others, against what each peer really has.

Whatever they answer: what is stored is right, all that is retained comes if one peer has it, what is dropped meanwhile
is given up, and no batch is asked for twice at the same time, nor more of them at once than there is memory for.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus.errors import PeerUnavailable
from oncegate.gateway.node import segment_fetch
from oncegate.gateway.node.segment_fetch import CONCURRENT_MAX, SegmentFetcher
from oncegate.rifl.errors import Code, OncegateError
from tests.at_once import AtOnce

FLOWS = ("f", "g")
BATCHES = 12
FLOOR = 2
"""Number up to which any name that is not known may have been used: one that was deleted long ago."""
PEERS = ("p", "q", "r")
Batch = tuple[str, int]


def payload_of(flow: str, number: int) -> bytes:
    return f"{flow}{number}.".encode() * (number % 4 + 1)


def check_of(payload: bytes) -> str:
    return f"sum of {payload!r}"


class Flows:
    """What the log says of the flows."""

    def __init__(self) -> None:
        self.first = dict.fromkeys(FLOWS, 1)
        self.now = {name: SimpleNamespace(first=1, last=BATCHES) for name in FLOWS}
        self.retired = SimpleNamespace(
            names=lambda: ["old"], used=lambda name: SimpleNamespace(batches=3 if name == "old" else FLOOR)
        )

    def names(self) -> list[str]:
        return list(FLOWS)

    def find(self, name: str) -> Any:
        if name not in FLOWS:
            return None
        self.now[name].first = self.first[name]
        return SimpleNamespace(batches=self.now[name])

    def batch(self, flow: str, number: int) -> Any:
        if number < self.first[flow]:
            raise OncegateError(Code.RETENTION_EXCEEDED, "dropped")
        return SimpleNamespace(items=len(payload_of(flow, number)))


class Cluster:
    """A node that lacks batches, and its peers."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.flows, self.here = Flows(), dict[Batch, bytes]()
        self.asked: Counter[Batch] = Counter()
        self.most_at_once = self.spoiled = 0
        self.dropped: list[Batch] = []
        self.mute: set[tuple[str, str, int]] = set()
        """Who sends no more of a batch, however often the rest is asked for."""
        self.refused: set[tuple[str, str, int]] = set()
        """Whose answer claimed more than a batch can be: the rest of it is not wanted."""
        self.wrong: list[str] = []
        """What a peer was asked for that it need not have been."""
        self.most_under_way = 0
        self.full_disk_share = 0.0
        """How often what has come cannot be written."""
        self.first_asked: dict[Batch, str] = {}
        """Who was asked first for each batch."""
        self.listed: Counter[str] = Counter()
        self.has = {peer: {(flow, n) for flow in FLOWS for n in range(1, BATCHES + 1)} for peer in PEERS}
        for peer in ("p", "q"):
            self.has[peer] = {one for one in sorted(self.has[peer]) if self.dice.random() < 0.4}
        store: Any = SimpleNamespace(
            flows=lambda: [*FLOWS, "old", "older"],
            list=self.list,
            has=lambda flow, number: (flow, number) in self.here,
            put=self.keep,
        )
        publisher: Any = SimpleNamespace(drop_through=lambda flow, number: self.dropped.append((flow, number)))
        machine: Any = SimpleNamespace(flows=self.flows)
        peers: Any = self
        self.fetcher = SegmentFetcher(peers, lambda: PEERS, machine, store, publisher)

    def list(self, name: str) -> list[int]:
        self.listed[name] += 1
        return sorted(number for flow, number in self.here if flow == name)

    def keep(self, flow: str, number: int, payload: bytes) -> None:
        if self.dice.random() < self.full_disk_share:
            self.spoiled += 1
            raise OSError(errno.ENOSPC, "no space left")
        self.put(flow, number, payload)

    def put(self, flow: str, number: int, payload: bytes) -> None:
        assert payload == payload_of(flow, number)
        assert (flow, number) not in self.here
        self.here[flow, number] = payload

    async def call(self, peer: str, request: bytes, *, timeout_s: float) -> bytes:
        flow, number, offset = (asked := segment_fetch._request.decode(request[1:])).flow, asked.number, asked.offset
        self.asked[flow, number] += 1
        self.first_asked.setdefault((flow, number), peer)
        assert self.asked[flow, number] == 1, "one fetch a batch"
        self.most_at_once = max(self.most_at_once, self.asked.total())
        self.most_under_way = max(self.most_under_way, len(self.fetcher._under_way))
        try:
            for _ in range(self.dice.randrange(4)):
                await asyncio.sleep(0)
            return self.answer(peer, flow, number, offset)
        finally:
            self.asked[flow, number] -= 1

    def answer(self, peer: str, flow: str, number: int, offset: int) -> bytes:
        payload = payload_of(flow, number)
        if (flow, number) not in self.has[peer]:
            return segment_fetch._encode((-1, "", b""))
        length, checksum, data = len(payload), check_of(payload), payload[offset : offset + 3]
        fault = self.dice.randrange(16)
        self.spoiled += fault < 7
        if offset == 0:
            self.mute.discard((peer, flow, number))
            self.refused.discard((peer, flow, number))
        assert (peer, flow, number) not in self.refused, "no more is asked of what cannot be"
        if (peer, flow, number) in self.mute:
            self.wrong.append(f"{peer} has sent nothing of {flow} {number}, and is asked for the same again")
            data = b""
        elif fault == 0:
            raise PeerUnavailable(peer, "not connected", outcome="not_applied")
        if fault == 1:
            self.mute.add((peer, flow, number))
            data = b""
        elif fault == 2:
            data = b"?" * len(data)
        elif fault == 3:
            length = segment_fetch.BATCH_BYTES_MAX + 1
            self.refused.add((peer, flow, number))
        elif fault == 4:
            checksum = check_of(b"another")
        elif fault == 5:
            return b"\xc1"
        elif fault == 6:
            # Whole and with its checksum, and of another number of items.
            other = payload[:-1] if number % 2 else payload + b"."
            length, checksum, data = len(other), check_of(other), other[offset:]
        return segment_fetch._encode((length, checksum, data))

    async def run_until(self, is_done: Any) -> None:
        async with asyncio.timeout(30):
            while not is_done():
                assert not self.wrong
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _plain_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = SimpleNamespace(checksum=check_of, read_table=lambda payload: SimpleNamespace(num_rows=len(payload)))
    monkeypatch.setattr(segment_fetch, "segment", tables)
    monkeypatch.setattr(segment_fetch, "BACKOFF_MIN_S", 0.0)
    longest = 1 + max(len(payload_of(flow, number)) for flow in FLOWS for number in range(1, BATCHES + 1))
    monkeypatch.setattr(segment_fetch, "BATCH_BYTES_MAX", longest)
    monkeypatch.setattr(segment_fetch.log, "disabled", True)


@pytest.mark.parametrize("seed", range(8))
async def test_all_that_is_retained_comes_and_nothing_else_whatever_peers_answer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_fetch, "SCANNED_MAX", 6)
    cluster = Cluster(seed)
    cluster.full_disk_share = 0.2
    dice, fetcher, flows = cluster.dice, cluster.fetcher, cluster.flows
    flows.first["g"] = 4
    for number in dice.sample(range(1, BATCHES + 1), 3):
        cluster.put("f", number, payload_of("f", number))
    held = len(cluster.here)
    fetcher.scan()
    waiting = [asyncio.create_task(fetcher.ensure("f", dice.randint(1, BATCHES))) for _ in range(12)]
    await asyncio.sleep(0)
    for gone in waiting[::3]:
        gone.cancel()
    if seed % 2:
        await cluster.run_until(lambda: len(cluster.here) > held + 2)
        fetcher.scan()
    if seed % 4 > 1:
        await cluster.run_until(lambda: len(cluster.here) > held)
        flows.first["f"] = 6
    await cluster.run_until(
        lambda: all((flow, n) in cluster.here for flow in FLOWS for n in range(flows.first[flow], BATCHES + 1))
    )
    await cluster.run_until(lambda: not fetcher._under_way and (scan := fetcher._scanning) and scan.done())
    assert fetcher.missing == 0
    results = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [one for one in results if isinstance(one, OncegateError)]
    assert all(one.code is Code.RETENTION_EXCEEDED for one in refused)
    assert sum(isinstance(one, asyncio.CancelledError) for one in results) == len(waiting[::3])
    assert not refused or seed % 4 > 1
    assert {number for flow, number in cluster.here if flow == "g"} == set(range(4, BATCHES + 1))
    assert fetcher.fetched == len(cluster.here) - held
    assert 1 < cluster.most_at_once <= CONCURRENT_MAX
    assert 0 < fetcher.failures <= cluster.spoiled
    retained = {("old", 3), ("older", FLOOR), ("g", 3), ("f", 0)}
    assert retained <= set(cluster.dropped) <= retained | {("f", flows.first["f"] - 1)}
    await fetcher.close()


async def test_batch_that_nobody_has_is_not_found_and_comes_later_without_another_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(0)
    for has in cluster.has.values():
        has.clear()
    monkeypatch.setattr(segment_fetch, "ENSURE_TIMEOUT_S", 0.01)
    with pytest.raises(OncegateError) as refused:
        await cluster.fetcher.ensure("f", 1)
    assert refused.value.code is Code.NOT_FOUND
    assert refused.value.retry_after_ms
    cluster.has["q"].add(("f", 1))
    await cluster.run_until(lambda: ("f", 1) in cluster.here)
    await cluster.fetcher.close()
    assert not cluster.fetcher._under_way


async def test_batch_that_is_dropped_while_it_is_looked_for_in_vain_is_told_to_be_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reader goes on behind what is retained, instead of asking again for what will never come."""
    cluster = Cluster(0)
    for has in cluster.has.values():
        has.clear()
    monkeypatch.setattr(segment_fetch, "ENSURE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(segment_fetch, "BACKOFF_MIN_S", 60.0)
    looking = asyncio.create_task(cluster.fetcher.ensure("f", 1))
    await cluster.run_until(lambda: len(cluster.first_asked) == 1 and not cluster.asked.total())
    cluster.flows.first["f"] = 6
    with pytest.raises(OncegateError) as refused:
        await looking
    assert refused.value.code is Code.RETENTION_EXCEEDED
    await cluster.fetcher.close()


async def test_batch_that_nobody_had_for_long_is_asked_for_as_often_as_the_longest_pause_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_fetch, "BACKOFF_MIN_S", 0.0001)
    monkeypatch.setattr(segment_fetch, "BACKOFF_MAX_S", 0.0004)
    cluster = Nobody(0)
    fetching = asyncio.create_task(cluster.fetcher.ensure("f", 1))
    async with asyncio.timeout(10):  # pauses that went on to double would take a minute
        while cluster.times < 20 * len(PEERS):
            await asyncio.sleep(0.0001)
    fetching.cancel()
    await cluster.fetcher.close()


class Nobody(Cluster):
    """Peers that have nothing."""

    times = 0

    def answer(self, peer: str, flow: str, number: int, offset: int) -> bytes:
        self.times += 1
        return segment_fetch._encode((-1, "", b""))


async def test_flow_that_is_deleted_while_a_node_looks_at_another_one_is_passed_over() -> None:
    cluster = Whole(1)
    find, listed = cluster.flows.find, cluster.list

    def deleted_meanwhile(name: str) -> list[int]:
        cluster.flows.find = lambda flow: None if flow == "g" else find(flow)  # type: ignore[method-assign]
        return listed(name)

    cluster.fetcher._store.list = deleted_meanwhile  # type: ignore[method-assign]
    cluster.fetcher.scan()
    scan = cluster.fetcher._scanning
    assert scan is not None
    await cluster.run_until(lambda: len(cluster.here) == BATCHES and scan.done())
    assert scan.exception() is None
    assert {flow for flow, _ in cluster.here} == {"f"}
    await cluster.fetcher.close()


class Whole(Cluster):
    """Peers that have everything and never fail."""

    def answer(self, peer: str, flow: str, number: int, offset: int) -> bytes:
        payload = payload_of(flow, number)
        return segment_fetch._encode((len(payload), check_of(payload), payload[offset : offset + 3]))


@pytest.mark.parametrize("scanned_max", [1, 3, 64])
async def test_newest_batches_are_asked_for_first_and_each_peer_in_its_turn(
    scanned_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers follow the end of a flow; and no peer sends all of what a node lacks while others stand idle."""
    monkeypatch.setattr(segment_fetch, "SCANNED_MAX", scanned_max)
    cluster = Whole(1)
    cluster.fetcher.scan()
    await cluster.run_until(lambda: len(cluster.here) == len(FLOWS) * BATCHES)
    numbers = [number for _, number in cluster.first_asked]
    assert numbers == sorted(numbers, reverse=True)
    share = Counter(cluster.first_asked.values())
    assert set(share.values()) == {len(FLOWS) * BATCHES // len(PEERS)}
    assert cluster.most_under_way <= scanned_max
    await cluster.fetcher.close()


@pytest.mark.parametrize("steps", range(4))
async def test_a_look_for_missing_batches_replaces_the_one_before_and_ends_with_its_node(steps: int) -> None:
    asyncio.get_running_loop().set_default_executor(AtOnce(max_workers=1))
    cluster = Whole(1)
    scans = []
    for _ in range(3):
        cluster.fetcher.scan()
        scans.append(cluster.fetcher._scanning)
        for _ in range(steps):
            await asyncio.sleep(0)
    looked = Counter(cluster.listed)
    await cluster.fetcher.close()
    for scan in scans:
        assert scan is not None
        assert scan.cancelled() or (scan is scans[-1] and scan.done())
    for _ in range(2 * len(FLOWS)):
        await asyncio.sleep(0)
    assert cluster.listed == looked, "nobody looks any more"


class Sealing(Whole):
    """A node that goes on to seal batches while it looks for those it lacks."""

    def list(self, name: str) -> list[int]:
        self.flows.now[name].last += 1
        return super().list(name)


async def test_a_batch_that_is_sealed_while_a_node_looks_is_its_own_and_is_not_fetched() -> None:
    cluster = Sealing(1)
    cluster.fetcher.scan()
    await cluster.run_until(lambda: len(cluster.here) == len(FLOWS) * BATCHES and not cluster.fetcher._under_way)
    assert max(number for _, number in cluster.first_asked) == BATCHES
    await cluster.fetcher.close()
