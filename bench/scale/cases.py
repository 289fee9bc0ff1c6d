"""What grows, from which size to which, and how a cluster is brought to a size.

Owns: the cases. A case brings a running cluster from one size to the next, and names the operation that is measured at
each. Must not know how it is measured: :mod:`bench.scale.growth`.
"""

from __future__ import annotations

import abc
import asyncio
import json
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

import aiohttp

from bench.harness import Side
from bench.load import Operation, window
from bench.scale.watches import TableWatches, Watches, watch_flags

VALUE_BYTES: Final = 200
AT_ONCE: Final = 512
CONNECTIONS: Final = 64
QUOTA_BYTES: Final = 1 << 36
LEASE_MS: Final = 86_400_000
EVENTS: Final = 2_000
"""Of a request."""
CONSUMERS: Final = 10
"""Of each flow."""
KEYS: Final = 1_000
"""Rows that are written where the number of rows is not what grows."""
_TAIL: Final = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=1 << 18))


def value_of(number: int, size_bytes: int = VALUE_BYTES) -> str:
    """Return a value of ``size_bytes`` as JSON, quotes included, that begins with its number as far as it has room."""
    room = size_bytes - 2
    if not 8 <= room <= len(_TAIL):
        raise ValueError("a value has 10 bytes to 256 KiB")
    return f"{number:08}"[-8:] + _TAIL[: room - 8]


def key_of(number: int, size_bytes: int) -> str:
    """Return a key of ``size_bytes``; other numbers below 10^7 have other keys."""
    return f"k{number:07}"[:8].ljust(size_bytes, "-")


def scattered(number: int, count: int) -> int:
    """Return one of ``count`` rows; adjacent numbers lie far apart."""
    return number * 2_654_435_761 % 2**32 * count >> 32


async def each(numbers: Sequence[int], act: Callable[[int], Awaitable[object]], at_once: int) -> None:
    """Await ``act`` of all numbers, so many at once."""
    await window(lambda at: act(numbers[at - 1]), at_once, most=len(numbers))


class Case(abc.ABC):
    """Something that grows; ``sizes[0]`` is also the size of the reference, unless ``reference`` says another."""

    name: ClassVar[str]
    title: ClassVar[str]
    what: ClassVar[str]
    """What is counted, and what is written, in a sentence."""
    sizes: ClassVar[tuple[int, ...]]
    quick: ClassVar[tuple[int, ...]]
    callers: ClassVar[int] = 8
    reference: ClassVar[int | None] = None
    anew: ClassVar[bool] = False
    """Each size has a fresh cluster."""
    flags: ClassVar[tuple[str, ...]] = ()

    def nodes(self, size: int) -> int:
        """Return how many nodes a cluster has."""
        return 3

    async def begin(self, side: Side) -> None:
        """Declare what every size needs."""
        await side.client.declare_table("probe", kind="resident")
        await side.client.declare_table("t", kind="resident", quota_bytes=QUOTA_BYTES)

    async def grow(self, side: Side, begin: int, end: int) -> None:  # noqa: B027 - most need nothing
        """Bring a cluster from one size to a larger one; ``begin`` is 0 at first."""

    def operation(self, side: Side, size: int) -> Operation:
        """Return what is measured: by default, one of few rows is overwritten."""
        return lambda number: side.session.put("t", f"row{number % KEYS}", value_of(number))

    async def end(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the case holds beside the cluster."""


class Rows(Case):
    name, title = "rows", "Rows of a table"
    what = "Rows of 200 bytes in one resident table; overwritten at random."
    sizes, quick = (10_000, 100_000, 1_000_000, 10_000_000), (1_000, 20_000)

    async def grow(self, side: Side, begin: int, end: int) -> None:
        async def put(number: int) -> None:
            await side.session.put("t", f"r{number}", value_of(number))

        await each(range(begin, end), put, AT_ONCE)

    def operation(self, side: Side, size: int) -> Operation:
        return lambda number: side.session.put("t", f"r{scattered(number, size)}", value_of(number))


class Values(Case):
    name, title = "values", "Size of a value"
    what = "Bytes of each value, as JSON; 1,000 rows are overwritten. 256 KiB is the limit."
    sizes, quick = (200, 20, 2_000, 20_000, 200_000), (200, 20_000)
    reference = 200

    def operation(self, side: Side, size: int) -> Operation:
        return lambda number: side.session.put("t", f"row{number % KEYS}", value_of(number, size))


class Keys(Case):
    name, title = "keys", "Size of a key"
    what = "Bytes of each key; 1,000 rows of 200 bytes are overwritten. 512 bytes is the limit."
    sizes, quick = (8, 64, 256, 512), (8, 512)

    def operation(self, side: Side, size: int) -> Operation:
        return lambda number: side.session.put("t", key_of(number % KEYS, size), value_of(number))


class Sessions(Case):
    name, title = "sessions", "Live sessions"
    what = (
        "Live sessions that have been opened and write nothing; another session writes. `python -m bench.sessions` "
        "has sessions at random, renewals and the end of leases."
    )
    sizes, quick = (10, 1_000, 100_000, 1_000_000), (10, 1_000)

    async def grow(self, side: Side, begin: int, end: int) -> None:
        leader = side.cluster.endpoint(await asyncio.to_thread(side.cluster.leader))
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        async with aiohttp.ClientSession(leader, connector=connector, raise_for_status=True) as http:

            async def open_one(_: int) -> None:
                sent = {"nonce": uuid.uuid4().hex, "lease_ms": LEASE_MS, "window": 64}
                async with http.post("/v1/sessions", json=sent) as answer:
                    await answer.read()

            await each(range(begin, end), open_one, CONNECTIONS)


class Remembered(Case):
    name, title = "remembered", "Remembered idempotency keys"
    what = "Keys of events that came before, each remembered for a day; rows are overwritten, each under a new key."
    sizes, quick = (10_000, 100_000, 1_000_000), (1_000, 10_000)
    flags = ("--idempotency-keys-bytes-max", str(1 << 36))

    async def begin(self, side: Side) -> None:
        await super().begin(side)
        await side.client.declare_table("log", kind="stream", quota_bytes=QUOTA_BYTES)

    async def grow(self, side: Side, begin: int, end: int) -> None:
        leader = side.cluster.endpoint(await asyncio.to_thread(side.cluster.leader))
        async with aiohttp.ClientSession(leader, raise_for_status=True) as http:

            async def send(first: int) -> None:
                numbers = range(first, min(first + EVENTS, end))
                events = [{"specversion": "1.0", "type": "t", "source": "s", "id": f"{one:08}"} for one in numbers]
                sent, headers = json.dumps(events), {"Content-Type": "application/cloudevents-batch+json"}
                async with http.post("/v1/tables/log/events", data=sent, headers=headers) as answer:
                    await answer.read()

            await each(range(begin, end, EVENTS), send, 4)

    def operation(self, side: Side, size: int) -> Operation:
        def put(number: int) -> Awaitable[object]:
            row, value = f"row{number % KEYS}", value_of(number)
            return side.client.put("t", row, value, idempotency_key=str(uuid.uuid4()))

        return put


class Tables(Case):
    name, title = "tables", "Tables"
    what = "Resident tables, written at random. 1,000 is the limit, the two of the bench among them."
    sizes, quick = (1, 10, 100, 998), (1, 40)

    async def grow(self, side: Side, begin: int, end: int) -> None:
        await each(range(begin, end), lambda n: side.client.declare_table(f"t{n}", kind="resident"), 16)

    def operation(self, side: Side, size: int) -> Operation:
        return lambda number: side.session.put(f"t{scattered(number, size)}", f"row{number % KEYS}", value_of(number))


class Flows(Case):
    name, title = "flows", "Flows of ten consumers each"
    what = (
        "Stream tables, each with its flow and ten consumers that have attached and read nothing; new rows are written "
        "to tables at random."
    )
    sizes, quick = (1, 10, 100), (1, 4)

    async def grow(self, side: Side, begin: int, end: int) -> None:
        async def make(number: int) -> None:
            await side.client.declare_table(f"s{number}", kind="stream", quota_bytes=QUOTA_BYTES)
            for consumer in range(CONSUMERS):
                await side.client.start_consumer(f"s{number}", f"c{consumer}", start="now")

        await each(range(begin, end), make, 8)

    def operation(self, side: Side, size: int) -> Operation:
        return lambda number: side.session.put(f"s{scattered(number, size)}", f"{size}-{number}", value_of(number))


class Watching(Case):
    name, title = "watchers", "Watches of rows"
    what = "Watches of single rows at one of three nodes, each told of every write of its row; all rows are written."
    sizes, quick = (1, 100, 1_000, 10_000), (1, 100)
    flags = watch_flags(11_000)

    def __init__(self) -> None:
        self._watchers: list[Watches] = []

    async def grow(self, side: Side, begin: int, end: int) -> None:
        self._watchers.append(watches := Watches(side.cluster.endpoints[0], "t"))
        await watches.begin([f"?key=row{number}" for number in range(begin, end)])

    def operation(self, side: Side, size: int) -> Operation:
        return lambda number: side.session.put("t", f"row{number % size}", value_of(number))

    async def end(self) -> None:
        for watches in self._watchers:
            await watches.close()
        self._watchers.clear()


class BusyTable(Case):
    name, title = "busy-table", "Watches of one busy table"
    what = (
        "Watches of a whole table at the leader, a connection each, in a process of their own; a third of them read "
        "nothing. All writes are to this table, by five callers."
    )
    sizes, quick = (1, 100, 1_000, 10_000), (1, 60)
    callers = 5
    flags = watch_flags(11_000)

    def __init__(self) -> None:
        self._watches: list[TableWatches] = []

    async def grow(self, side: Side, begin: int, end: int) -> None:
        if begin < end:
            leader = side.cluster.endpoint(await asyncio.to_thread(side.cluster.leader))
            self._watches.append(await TableWatches.open(leader, "t", end - begin))

    async def end(self) -> None:
        for watches in self._watches:
            await watches.close()
        self._watches.clear()


class Nodes(Case):
    name, title = "nodes", "Nodes of a cluster"
    what = "Members, each a process on this machine; 1,000 rows are overwritten. The ratios are to three nodes."
    sizes, quick = (1, 3, 5), (1, 3)
    reference = 3
    anew = True

    def nodes(self, size: int) -> int:
        return size


CASES: Final[tuple[type[Case], ...]] = (
    Rows, Values, Keys, Sessions, Remembered, Tables, Flows, Watching, BusyTable, Nodes,
)  # fmt: skip
